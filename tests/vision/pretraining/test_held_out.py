"""Pictures without labels: those held out, how their views agree, and the page."""

import base64
import io
import json
import re

import numpy as np
import pytest
import torch
from conftest import reset_accelerator
from PIL import Image
from vision_cases import colour_images, tiny_encoder

from dystress_text.training.accelerator import make_accelerator
from vision import train
from vision.evaluation.features import image_features
from vision.pretraining.build_task import prepare_run
from vision.pretraining.held_out import agreement, nearest

QUICK = [
    "--architecture=resnet10_narrow",
    "--image_size=32",
    "--mixed_precision=no",
    "--max_steps=2",
]


def cosine(a, b):
    return float(a @ b / (a.norm() * b.norm()))


def test_agreement_against_a_loop():
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(30, 4, generator=generator)
    second = first + 0.7 * torch.randn(30, 4, generator=generator)
    for k in (1, 3):
        hits = []
        for row in range(12):
            for asked, others in ((first, second), (second, first)):
                similarities = [cosine(asked[row], other) for other in others]
                hits.append(row in np.argsort(similarities)[-k:])
        assert 0 < np.mean(hits) < 1
        assert agreement(first, second, 12, k) == pytest.approx(100 * np.mean(hits))


def test_equal_features_do_not_agree():
    equal = torch.ones(30, 4)
    assert agreement(equal, equal, 12, 5) == 0


def test_nearest_against_a_loop():
    """The picture itself is not among them."""
    images = colour_images(20)
    encoder = tiny_encoder().eval()
    features = image_features(encoder, images, 8)
    rows = nearest(encoder, images, 8)
    assert len(rows) == 12
    for row, found in enumerate(rows):
        others = [other for other in range(20) if other != row]
        ranked = sorted(others, key=lambda other: -cosine(features[row], features[other]))
        assert found == ranked[:5]


@pytest.fixture
def photos(tmp_path):
    """Twenty-four photos without labels, of several sizes and shapes."""
    folder = tmp_path / "photos"
    folder.mkdir()
    noise = np.random.default_rng(0)
    for i in range(24):
        colours = noise.integers(0, 255, (3, 4, 3), dtype=np.uint8)
        size = (150 + 9 * i, 310 - 5 * i)
        Image.fromarray(colours).resize(size).save(folder / f"{i}.jpg")
    return folder


def run(photos, output, *flags):
    code = train.main([*QUICK, f"--dataset={photos}", f"--output_dir={output}", *flags])
    reset_accelerator()
    return code


def test_own_photos_need_no_other_option(photos, tmp_path, capsys):
    """The batch is fitted to them, and a page shows a dozen with their neighbours."""
    out = tmp_path / "out"
    assert run(photos, out) == 0
    record = json.loads((out / "run.json").read_text())
    assert record["settings"]["preset"] == "own-photos"
    assert record["data"]["held_out"] == 5
    assert record["data"]["images"] == record["settings"]["train_batch_size"] == 19
    assert 0 <= record["trained"]["held_out_agreement"] <= 100
    uris = re.findall(r"data:image/jpeg;base64,([\w+/=]+)", (out / "report.html").read_text())
    assert len(uris) == 12
    widths = {Image.open(io.BytesIO(base64.b64decode(uri))).width for uri in uris}
    assert len(widths) == 1
    assert widths.pop() > 6 * 90
    capsys.readouterr()
    assert run(photos, out, "--resume_from_checkpoint") == 0
    assert "has finished" in capsys.readouterr().out


def test_no_samples(photos, tmp_path):
    out = tmp_path / "out"
    assert run(photos, out, "--no_samples") == 0
    assert "image/jpeg" not in (out / "report.html").read_text()
    assert "nearest" not in json.loads((out / "run.json").read_text())


def test_pictures_held_out_are_not_trained_on(photos, tmp_path):
    settings = train.parse([*QUICK, f"--dataset={photos}", f"--output_dir={tmp_path / 'out'}"])
    _, task, examples, _ = prepare_run(settings, make_accelerator(settings.training))
    trained = {path for path, _ in map(task.views.images.files.__getitem__, range(19))}
    shown = [examples.files[row][0] for row in range(24)]
    assert set(shown[5:]) == trained
    assert not set(shown[:5]) & trained
    reset_accelerator()


def test_repeated_files_are_held_out_wholly(photos, tmp_path):
    listed = tmp_path / "list.txt"
    listed.write_text("".join(f"{i}.jpg\n" * 3 for i in range(24)))
    options = [f"--dataset={photos}", f"--train_list={listed}", f"--output_dir={tmp_path / 'out'}"]
    settings = train.parse([*QUICK, *options])
    _, task, examples, _ = prepare_run(settings, make_accelerator(settings.training))
    files = task.views.images.files
    trained = {files.name(row) for row in range(len(files))}
    held_out = {examples.files.name(row) for row in range(7)}
    assert not held_out & trained
    assert len(held_out | trained) == 24
    reset_accelerator()


@pytest.mark.parametrize(("count", "held_out"), [(1, None), (2, 0), (5, 0), (10, 0), (11, 2)])
def test_few_photos(photos, tmp_path, capsys, count, held_out):
    """A figure that chance alone would make high is left out, and training goes on."""
    few = tmp_path / "few"
    few.mkdir()
    for i in range(count):
        (photos / f"{i}.jpg").rename(few / f"{i}.jpg")
    out = tmp_path / "out"
    code = run(few, out)
    if held_out is None:
        assert code == 2
        assert "train_batch_size" not in capsys.readouterr().err
        return
    assert code == 0
    record = json.loads((out / "run.json").read_text())
    assert record["data"]["held_out"] == held_out
    assert record["data"]["images"] == count - held_out


def test_no_name_is_not_the_working_directory(photos, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(photos)
    assert run("", tmp_path / "out") == 2
    assert "--dataset" in capsys.readouterr().err


def test_the_figure_depends_on_the_seed_alone(photos, tmp_path):
    """And measuring does not change what training draws."""
    settings = train.parse([*QUICK, f"--dataset={photos}", f"--output_dir={tmp_path / 'out'}"])
    task = prepare_run(settings, make_accelerator(settings.training)).task
    state = torch.get_rng_state()
    figures = task.evaluate()
    torch.rand(1)
    assert task.evaluate() == figures
    torch.set_rng_state(state)
    task.evaluate()
    assert torch.equal(torch.get_rng_state(), state)
    reset_accelerator()
