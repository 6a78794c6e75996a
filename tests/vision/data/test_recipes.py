"""The recipes of data/README.md for archives that the program does not sort: ImageNet's, and a set
for fine-tuning.
"""

import csv
import gzip
import io
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hub_server import tar_of
from scipy.io import savemat
from vision_cases import prepare

from dystress_text.errors import DataError
from dystress_text.preparation.data_sets import Request
from vision.data.sources import find_images

README = (Path(__file__).resolve().parents[3] / "data" / "README.md").read_text()


def snippets(heading, kind):
    return re.findall(
        rf"```{kind}\n(.*?)```", README.split(f"## {heading}\n", 1)[1].split("\n## ")[0], re.S
    )


def test_imagenets_archives(tmp_path):
    (shell,), (python,) = snippets("ImageNet", "bash unpack"), snippets("ImageNet", "python")
    wnids = ["n01440764", "n01443537", "n15075141"]
    inner = io.BytesIO()
    train = {
        f"{wnid}.tar": tar_of({f"{wnid}_{i}.JPEG": wnid.encode() for i in range(2)})
        for wnid in wnids
    }
    (tmp_path / "ILSVRC2012_img_train.tar").write_bytes(tar_of(train))
    truth = [3, 1, 2, 1]  # numbers of synsets, in the order of the images
    numbered = ["n01443537", "n15075141", "n01440764"]  # not in the order of their names
    images = {
        f"ILSVRC2012_val_{i:08}.JPEG": numbered[n - 1].encode() for i, n in enumerate(truth, 1)
    }
    (tmp_path / "ILSVRC2012_img_val.tar").write_bytes(tar_of(images))
    synsets = np.zeros(
        4, dtype=[("ILSVRC2012_ID", object), ("WNID", object), ("num_children", object)]
    )
    synsets[:] = [(i + 1, wnid, 0) for i, wnid in enumerate(numbered)] + [(4, "n00001740", 3)]
    savemat(inner, {"synsets": synsets})
    (tmp_path / "ILSVRC2012_devkit_t12.tar.gz").write_bytes(
        gzip.compress(
            tar_of(
                {
                    "ILSVRC2012_devkit_t12/data/meta.mat": inner.getvalue(),
                    "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt": "".join(
                        f"{n}\n" for n in truth
                    ).encode(),
                }
            )
        )
    )
    subprocess.run(["bash", "-euo", "pipefail", "-c", shell], cwd=tmp_path, check=True)
    root = tmp_path / "prepared"
    with pytest.raises(DataError, match=r"imagenet1k: train/ and val/ .* data/README.md says"):
        prepare("imagenet1k", Request(root, tmp_path, "toy"))
    subprocess.run([sys.executable, "-c", python], cwd=tmp_path, check=True)
    for split, count in (("train", 6), ("val", 4)):
        files = list((tmp_path / split).glob("*/*.JPEG"))
        assert len(files) == count
        assert all(file.read_text() == file.parent.name for file in files)
    assert prepare("imagenet1k", Request(root, tmp_path, "toy")).counts == {"train": 6, "val": 4}


def test_a_set_for_fine_tuning(tmp_path, monkeypatch):
    (python,) = snippets("Sets for fine-tuning", "python")
    head = (
        "Image Name",
        "Majority Vote Label",
        "Number of Annotators who Selected SSA (Out of 7)",
        "Partition",
    )
    rows = [("a.png", "SSA", 6, "train"), ("b.png", "HP", 0, "train"), ("c.png", "HP", 3, "test")]
    (tmp_path / "images").mkdir()
    for name, *_ in rows:
        (tmp_path / "images" / name).touch()
    with (tmp_path / "annotations.csv").open("w", newline="") as file:
        csv.writer(file).writerows([head, *rows])
    monkeypatch.chdir(tmp_path)
    exec(compile(python, "snippet", "exec"), {})
    images = find_images("sorted", "train")
    assert [images.classes[label] for label in images.labels] == ["HP", "SSA"]
    assert [images.files[row][0].name for row in range(len(images))] == ["b.png", "a.png"]
