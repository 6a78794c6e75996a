"""What the page of an image run shows: test images of several classes and their nearest training
images.
"""

import base64
import io
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import reset_accelerator
from PIL import Image
from sklearn.neighbors import NearestNeighbors
from vision_cases import HALF, colour_images

from vision import train
from vision.evaluation.features import image_features
from vision.evaluation.knn import OnlineKnn
from vision.pretraining.neighbours import NEAREST, SIDE, gallery, nearest
from vision.resnet import build_encoder


def png(source):
    return Image.open(io.BytesIO(base64.b64decode(source.removeprefix("data:image/png;base64,"))))


@pytest.fixture
def knn():
    images = colour_images(60, 4)
    return OnlineKnn(images.subset(range(40)), images.subset(range(40, 60)), HALF, 5, 7)


def test_neighbours_are_those_of_scikit_learn(knn):
    encoder = build_encoder("resnet10_narrow", "imagenet", "cifar", 16)
    known, asked = (
        image_features(encoder, images, HALF, 7).numpy() for images in (knn.bank, knn.queries)
    )
    index = NearestNeighbors(n_neighbors=NEAREST, metric="cosine").fit(known)
    labels = knn.queries.labels.tolist()
    first = [labels.index(label) for label in sorted({*labels})]
    shown = [first[int(place)] for place in np.linspace(0, len(first) - 1, min(6, len(first)))]
    assert nearest(encoder, knn) == index.kneighbors(asked[shown], return_distance=False).tolist()


def test_the_gallery_names_and_holds_the_images(knn):
    found = {"before": [[0, 1, 2, 3, 4]] * 4, "after": [[5, 6, 7, 8, 9]] * 4}
    heading, pictures = gallery(knn, found)
    assert heading.startswith("Test images")
    names = [knn.bank.classes[label] for label in knn.bank.labels.tolist()]
    _, caption, source = pictures[0]
    assert caption.endswith(
        f"before training: {', '.join(names[:5])}; after it: {', '.join(names[5:10])}."
    )
    drawn = torch.from_numpy(
        np.array(png(source).convert("RGB"))
    )  # of 16 pixels and a gap of 2 at each side
    assert drawn.shape == (40, 120, 3)
    tile = drawn[22:38, 22:38].permute(2, 0, 1).float()  # the first one after training
    others = torch.stack([(tile - knn.bank.image(row).float()).abs().mean() for row in range(40)])
    assert others.argmin() == 5  # in 256 colours


def test_large_images_are_small_on_the_page(knn):
    sets = [
        replace(s, pixels=s.pixels.repeat(1, 1, 10, 10), size=160) for s in (knn.bank, knn.queries)
    ]
    found = {when: [[0, 1, 2, 3, 4]] * 4 for when in ("before", "after")}
    _, pictures = gallery(OnlineKnn(*sets, HALF, 5, 7), found)
    assert {png(source).size for *_, source in pictures} == {(SIDE * 6, SIDE * 2)}


def test_the_page_of_a_run_shows_them(tmp_path):
    options = "--dataset=shapes --architecture=resnet10_narrow --stem=imagenet --image_size=16 "
    options += (
        "--out_dim=16 --train_batch_size=8 --max_steps=1 --knn_k=5 --mixed_precision=no "
        "--max_train_samples=64"
    )
    assert train.main([*options.split(), f"--output_dir={tmp_path / 'out'}"]) == 0
    reset_accelerator()
    page = (tmp_path / "out" / "report.html").read_text()
    assert re.search(r"<h1>.*shapes.*</h1>", page)
    assert len(re.findall(r'<img src="data:image/png;base64,', page)) == 6
    rows = json.loads((tmp_path / "out" / "run.json").read_text())["neighbours"]
    assert [len(rows["before"]), len(rows["after"])] == [6, 6]
