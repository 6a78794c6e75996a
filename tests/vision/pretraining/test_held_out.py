"""Pictures without labels: those held out, how their views agree, and the page."""

import base64
import io
import re

import numpy as np
import pytest
import torch
from conftest import reset_accelerator
from PIL import Image
from vision_cases import TINY_RUN, colour_images, pretrain, record_of, tiny_encoder

from dystress_text.training.accelerator import make_accelerator
from vision import train
from vision.evaluation.features import image_features
from vision.pretraining import held_out
from vision.pretraining.build_task import prepare_run
from vision.pretraining.held_out import agreement, nearest

SHORT = ["--image_size=32", "--max_steps=1"]


def cosines(a, b):
    """Of each row of a with each row of b."""
    return [[float(x @ y / (x.norm() * y.norm())) for y in b] for x in a]


def test_agreement_against_a_loop():
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(30, 4, generator=generator)
    second = first + 0.7 * torch.randn(30, 4, generator=generator)
    similarity = np.array(cosines(first, second))
    for k in (1, 3):
        hits = []
        for row in range(12):
            hits.append(row in np.argsort(similarity[row])[-k:])
            hits.append(row in np.argsort(similarity[:, row])[-k:])
        assert 0 < np.mean(hits) < 1
        assert agreement(first, second, 12, k) == pytest.approx(100 * np.mean(hits))


def test_equal_features_do_not_agree():
    equal = torch.ones(30, 4)
    assert agreement(equal, equal, 12, 5) == 0


@pytest.mark.parametrize("count", [20, 4])
def test_nearest_against_a_loop(count):
    """The picture itself is not among them."""
    images = colour_images(count)
    encoder = tiny_encoder().eval()
    features = image_features(encoder, images, 8)
    similarity = cosines(features, features)
    neighbours = nearest(encoder, images, 8)
    assert len(neighbours) == min(count, 12)
    for row, ranked in enumerate(neighbours):
        others = [other for other in range(count) if other != row]
        assert ranked == sorted(others, key=lambda other: -similarity[row][other])[:5]


@pytest.fixture
def photos(tmp_path, monkeypatch):
    """Twenty-four photos without labels, of several sizes and shapes."""
    monkeypatch.setattr(held_out, "MEASURED", 10)
    folder = tmp_path / "photos"
    folder.mkdir()
    noise = np.random.default_rng(0)
    for i in range(24):
        colours = noise.integers(0, 255, (3, 4, 3), dtype=np.uint8)
        size = (150 + 9 * i, 310 - 5 * i)
        Image.fromarray(colours).resize(size).save(folder / f"{i}.jpg")
    return folder


@pytest.fixture
def prepared(photos, tmp_path):
    """Prepare a run on the photos by options."""

    def prepare(*flags):
        options = [*TINY_RUN, *SHORT, f"--dataset={photos}", f"--output_dir={tmp_path / 'out'}"]
        settings = train.parse([*options, *flags])
        run = prepare_run(settings, make_accelerator(settings.training))
        reset_accelerator()
        return run

    return prepare


def names(images):
    """Of the files of some images."""
    return [images.files.name(row) for row in range(len(images))]


def test_own_photos_need_no_other_option(photos, tmp_path, capsys):
    """The batch is fitted to them, and a page shows a dozen with their neighbours."""
    out = tmp_path / "out"
    assert pretrain(photos, out, *SHORT) == 0
    record = record_of(out)
    assert record["settings"]["preset"] == "own-photos"
    assert record["data"]["held_out"] == 5
    assert record["data"]["images"] == record["settings"]["train_batch_size"] == 19
    assert 0 <= record["trained"]["held_out_agreement"] <= 100
    uris = re.findall(r"data:image/jpeg;base64,([\w+/=]+)", (out / "report.html").read_text())
    sizes = [Image.open(io.BytesIO(base64.b64decode(uri))).size for uri in uris]
    assert sizes == [(6 * 102, 2 * 102)] * 12
    assert "By chance 20.8 of 100" in capsys.readouterr().out  # 5 of 24
    assert pretrain(photos, out, *SHORT, "--resume_from_checkpoint") == 0
    assert "has finished" in capsys.readouterr().out


def test_no_samples(photos, tmp_path):
    out = tmp_path / "out"
    assert pretrain(photos, out, *SHORT, "--no_samples") == 0
    assert "image/jpeg" not in (out / "report.html").read_text()
    assert "nearest" not in record_of(out)


@pytest.mark.parametrize("copies", [1, 3])
def test_pictures_held_out_are_not_trained_on(copies, prepared, tmp_path):
    """Nor copies of them in a list."""
    listed = tmp_path / "list.txt"
    listed.write_text("".join(f"{i}.jpg\n" * copies for i in range(24)))
    run = prepared(f"--train_list={listed}")
    trained = set(names(run.task.views.images))
    shown = names(run.examples)
    first = shown[: run.task.online.count]
    assert len(first) == (5 if copies == 1 else 7)
    assert not set(first) & trained
    assert set(shown) == {*first, *trained}
    assert len(set(shown)) == 24


def test_few_files_of_a_long_list_are_not_held_out(prepared, tmp_path):
    """With all copies of the files held out, fewer others remain than neighbours."""
    listed = tmp_path / "list.txt"
    listed.write_text("".join(f"{i}.jpg\n" * 30 for i in range(4)))
    run = prepared(f"--train_list={listed}", "--knn_k=50")
    assert run.task.online is None
    assert "none of 120 images is held out" in " ".join(run.notes)
    assert len(run.task.views.images) == 120


@pytest.mark.parametrize(("count", "held_out"), [(1, None), (2, 0), (10, 0), (11, 2)])
def test_few_photos(photos, tmp_path, capsys, count, held_out):
    """A figure that chance alone would make high is left out, and training goes on."""
    for i in range(count, 24):
        (photos / f"{i}.jpg").unlink()
    out = tmp_path / "out"
    code = pretrain(photos, out, *SHORT, "--no_samples")
    printed = capsys.readouterr()
    if held_out is None:
        assert code == 2
        assert "train_batch_size" not in printed.err
        return
    assert code == 0
    assert (f"none of {count} images is held out" in printed.out) == (held_out == 0)
    data = record_of(out)["data"]
    assert data["held_out"] == held_out
    assert data["images"] == count - held_out


def test_no_name_is_not_the_working_directory(photos, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(photos)
    assert pretrain("", tmp_path / "out") == 2
    assert "--dataset" in capsys.readouterr().err


def test_few_pictures_are_seen_in_several_pairs_of_views(prepared, monkeypatch):
    seeds = []

    def features(encoder, views, batch_size):
        seeds.append(views.seed)
        return torch.ones(24, 4), torch.ones(24, 4)

    monkeypatch.setattr(held_out, "view_features", features)
    prepared("--seed=3").task.evaluate()
    assert seeds == [3, 4]


def test_the_figure_depends_on_the_seed_alone(prepared):
    """And measuring does not change what training draws."""
    task = prepared().task
    state = torch.get_rng_state()
    figures = task.evaluate()
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(1)
    assert task.evaluate() == figures
