"""The program from a model's folder to its table and results; features and their geometry."""

import json

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from vision_cases import HALF, as_float, colour_images, tiny_encoder

from dystress_text.losses import geometry
from dystress_text.losses.vectors import unit_vectors
from vision.data import loading
from vision.data.images import mean_std
from vision.evaluate import main
from vision.evaluation import paper, run
from vision.evaluation.features import image_features
from vision.evaluation.measures import geometry_of
from vision.resnet import ImageInput, load_encoder, save_encoder

CIFAR, GEOMETRY = (
    paper.row_of(t, "DySTreSS")
    for t in ("cifar10n100_bal_bs128_sgd0p1_200eps", "unifalginmentmetrics")
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("out_vision")
    save_encoder(tiny_encoder(seed=7), folder)
    return folder


@pytest.fixture
def data(monkeypatch):
    """What load_images gives, by split; tests put other sets in."""
    sets = {
        "train": colour_images(48, variant="JPEG copy"),
        "test": colour_images(21, seed=1, variant="JPEG copy"),
    }
    for module in (run, loading):
        monkeypatch.setattr(module, "load_images", lambda name, split, *rest: sets[split])
    return sets


def results(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_every_task_of_two_encoders(model, data, tmp_path, capsys):
    output = tmp_path / "results.jsonl"
    tasks = ["knn", "linear", "geometry", "svm", "transfer"]
    flags = ["--dataset=colours", "--k=5", "--probe_epochs=3", "--transfer_epochs=1", "--compare"]
    weights = ["--class_weights", "c=1.5", "a=2"]
    assert (
        main([f"--model={model}", *flags, *weights, "--tasks", *tasks, f"--output={output}"]) == 0
    )
    lines = results(output)
    untrained, mine = lines[:5], lines[5:]
    assert [line["task"] for line in mine] == tasks
    assert {line["model"] for line in untrained} == {"untrained"}
    assert mine[0]["weights"] != untrained[0]["weights"]
    assert mine[0]["settings"]["class_weights"] == {"c": 1.5, "a": 2.0}
    assert (mine[0]["data"]["train_images"], mine[0]["data"]["test_images"]) == (48, 21)
    assert mine[0]["input"]["image_size"] == 16
    assert mine[2]["figures"] != untrained[2]["figures"]
    assert sum(mine[2]["figures"]["true_positive"]) == 21

    encoder = load_encoder(model)
    shown = ImageInput(16, *mean_std(data["train"]))
    bank, queries = (
        unit_vectors(image_features(encoder, data[split], shown, 7)) for split in ("train", "test")
    )
    theirs = KNeighborsClassifier(
        5, metric="cosine", weights=lambda distance: np.exp((1 - distance) / 0.1)
    ).fit(bank, data["train"].labels)
    accuracy = 100 * theirs.score(queries, data["test"].labels)
    assert mine[0]["figures"]["top1"] == pytest.approx(accuracy)
    printed = capsys.readouterr().out
    assert "colours (JPEG copy), 21 test images" in printed
    assert f"{accuracy:.2f}" in printed


@pytest.mark.parametrize(
    ("flags", "option"), [([], "--k: "), (["--k=5", "--output=file/r.jsonl"], "--output: ")]
)
@pytest.mark.usefixtures("data")
def test_bad_options_are_one_line(flags, option, model, tmp_path, capsys, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.chdir(tmp_path)
    assert main([f"--model={model}", "--dataset=colours", *flags]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"evaluate.py: error: {option}")


@pytest.mark.usefixtures("data")
def test_the_papers_figures_have_columns(tmp_path, capsys):
    model = tmp_path / "out"
    save_encoder(tiny_encoder(), model)
    record = {
        "program": "vision/train.py",
        "settings": {"dataset": "cifar10", "data_dir": None},
        "paper": {"rows": [CIFAR, GEOMETRY], "differs": "--max_steps 5 (row: -1)"},
    }
    (model / "run.json").write_text(json.dumps(record))
    assert main([f"--model={model}", "--tasks", "knn", "geometry", "--k=20"]) == 0
    printed = capsys.readouterr().out.splitlines()
    values = {line.split("  ")[0]: line.split()[-3:] for line in printed}
    assert values["200-NN top-1"] == ["-", "85.68", "85.83"]
    uniformity = results(model / "vision-cifar10.jsonl")[1]["figures"]["uniformity"]
    assert values[paper.UNIFORMITY] == [f"{uniformity:.3f}", "-", "-2.843"]
    assert f"{model} differs from the row in --max_steps 5 (row: -1)" in printed


def test_undefined_figures_are_left_out(model, data, tmp_path, capsys):
    """Of one image."""
    data |= {"train": colour_images(12, 2), "test": colour_images(1, 2, seed=1)}
    flags = ["--dataset=colours", "--tasks", "geometry", "transfer", "--transfer_epochs=1"]
    output = tmp_path / "r.jsonl"
    assert main([f"--model={model}", *flags, f"--output={output}"]) == 0
    names = {name for line in results(output) for name in line["figures"]}
    assert not names & {"uniformity", "interclass_uniformity", "tolerance", "auc"}
    assert "nan" not in capsys.readouterr().out.lower() + output.read_text().lower()


def test_features_are_those_of_each_image_alone():
    encoder = tiny_encoder().train()
    images = colour_images(20)
    features = image_features(encoder, images, HALF, 7)
    assert encoder.backbone.training
    encoder.eval()
    with torch.no_grad():
        one_by_one = torch.cat([encoder.features(as_float(image[None])) for image in images.pixels])
    torch.testing.assert_close(features, one_by_one, rtol=1e-4, atol=1e-5)


def test_geometry_is_of_images_and_their_views():
    features, *noise = torch.randn(3, 12, 5, generator=torch.Generator().manual_seed(0))
    views, labels = [features + 0.3 * each for each in noise], torch.arange(12) % 3
    figures = geometry_of(features, *views, labels)
    labelled = (features, labels)
    given = {
        "uniformity": [features],
        "alignment": views,
        "interclass_uniformity": labelled,
        "tolerance": labelled,
    }
    for name, tensors in given.items():
        assert figures[name] == pytest.approx(getattr(geometry, name)(*tensors).item())
    pairs = geometry.similarity_histograms(*views, labels, 100)
    counts = [figures[kind] for kind in ("true_positive", "false_negative", "true_negative")]
    assert counts == [of_kind.tolist() for of_kind in pairs[1:]]
