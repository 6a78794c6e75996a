"""The program: from a model's folder to its table, record and picture; and the lines it ends with."""

import json

import pytest
import torch
from encoder_cases import colour_images, tiny_encoder
from sklearn.neighbors import KNeighborsClassifier

from dystress_text.errors import UserError
from vision.data import loading
from vision.data.augment import evaluation_transform
from vision.data.images import mean_std
from vision.evaluate import main
from vision.evaluation import run as evaluation
from vision.evaluation.features import image_features
from vision.evaluation.geometry import measure_geometry, plot_geometry
from vision.evaluation.measures import Subject
from vision.resnet import ImageInput, build_encoder, load_encoder, save_encoder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("out_vision")
    save_encoder(tiny_encoder(seed=7), folder)
    return folder


@pytest.fixture
def data(monkeypatch):
    """What load_images gives, by split; tests put other sets in."""
    sets = {
        "train": colour_images(48, name="colours", variant="JPEG copy"),
        "test": colour_images(21, seed=1, name="colours", variant="JPEG copy"),
    }
    monkeypatch.setattr(loading, "load_images", lambda name, split, *rest: sets[split])
    return sets


def fails(capsys, *arguments):
    assert main([str(argument) for argument in arguments]) == 2
    line = capsys.readouterr().err.strip().split("\n")[-1]
    assert line.startswith("evaluate.py: error: ")
    return line


def test_everything_of_two_encoders(model, data, tmp_path, capsys):
    state = torch.get_rng_state()
    output, plot = tmp_path / "results.json", tmp_path / "similarities.png"
    flags = ["--dataset=colours", "--k=5", "--probe_epochs=3", "--transfer_epochs=1", "--class_weights", "c=1.5", "a=2"]
    tasks = ["--tasks", "knn", "linear", "geometry", "transfer"]
    assert main([f"--model={model}", *flags, *tasks, "--compare", f"--plot={plot}", f"--output={output}"]) == 0
    assert torch.equal(torch.get_rng_state(), state)
    assert plot.stat().st_size > 10_000
    record = json.loads(output.read_text())
    assert list(record["results"]) == ["untrained", str(model)]
    assert set(record["versions"]) >= {"python", "torch", "transformers", "scikit-learn"}
    assert record["settings"]["l2_k"] == [1, 10]
    assert record["settings"]["class_weights"] == {"c": 1.5, "a": 2.0}
    assert (record["data"]["train_images"], record["data"]["test_images"]) == (48, 21)
    assert record["encoders"][str(model)]["input"]["image_size"] == 16
    assert record["encoders"]["untrained"] == record["encoders"][str(model)]
    for found in record["results"].values():
        assert list(found) == tasks[1:]
        assert all(task["data_variant"] == "JPEG copy" for task in found.values())
    mine = record["results"][str(model)]
    assert mine["geometry"] != record["results"]["untrained"]["geometry"]
    assert sum(mine["geometry"]["true_positive"]) == 21

    encoder = load_encoder(model)
    mean, std = mean_std(data["train"])
    bank, queries = (
        image_features(encoder, data[split], lambda x: evaluation_transform(x, 16, mean, std), normalise=True)
        for split in ("train", "test")
    )
    theirs = KNeighborsClassifier(10, weights="distance").fit(bank, data["train"].labels)
    assert mine["knn"]["10-NN L2"]["top1"] == pytest.approx(100 * theirs.score(queries, data["test"].labels))

    printed = capsys.readouterr().out
    lines = [line for line in printed.split("\n") if "JPEG copy" in line]
    assert lines[0] == "colours (JPEG copy), 21 test images"
    assert len(lines) == 1 + 3 + 1 + 4 + 1  # the title, kNN, probe, geometry, fine-tuning
    assert f"{mine['linear']['top1']:.2f}" in printed


@pytest.mark.parametrize(("side", "expected"), [(96, (1.0, False, 0.08)), (112, (2.0, True, 0.08))])
def test_views_of_geometry_are_those_of_the_recipes(side, expected):
    train, test = colour_images(4, size=side), colour_images(4, size=side)
    taken = ImageInput(side, 1.0, (0.5,) * 3, (0.25,) * 3)
    views = Subject(tiny_encoder(), loading.Splits(train, test, side, taken.mean, taken.std), taken).two_views
    assert (views.augment.jitter, views.augment.blur, views.augment.crop.min_scale) == expected
    assert (views.count, len(views.images)) == (2, 4)


def test_a_second_run_gives_the_same_figures(model, data, tmp_path):
    found = []
    for name in ("a.json", "b.json"):
        assert main([f"--model={model}", "--dataset=colours", "--k=5", f"--output={tmp_path / name}"]) == 0
        found.append(json.loads((tmp_path / name).read_text())["results"])
    assert found[0] == found[1]


def test_results_go_into_the_models_folder(model, data):
    assert main([f"--model={model}", "--dataset=some/colours", "--tasks", "knn", "--k=5", "--limit=20"]) == 0
    record = json.loads((model / "vision-colours.json").read_text())
    assert (record["data"]["train_images"], record["data"]["test_images"]) == (20, 20)


def test_another_folder_beside_the_model(model, data, tmp_path):
    torch.manual_seed(1)
    save_encoder(build_encoder("resnet10_narrow", "imagenet", "simclr", 8), tmp_path / "other")
    flags = ["--dataset=colours", "--tasks", "knn", "--k=5", f"--output={tmp_path / 'r.json'}"]
    assert main([f"--model={model}", *flags, f"--compare={tmp_path / 'other'}"]) == 0
    encoders = json.loads((tmp_path / "r.json").read_text())["encoders"]
    assert encoders[str(tmp_path / "other")]["out_dim"] == 8
    assert encoders[str(model)]["out_dim"] == 16


def test_encoders_of_two_sides_need_the_side(model, data, tmp_path, capsys):
    for name, side in (("small", 16), ("large", 24)):
        encoder = tiny_encoder()
        encoder.input = ImageInput(side, 1.0, (0.5,) * 3, (0.25,) * 3)
        save_encoder(encoder, tmp_path / name)
    flags = [f"--model={tmp_path / 'small'}", "--dataset=colours", "--tasks", "knn", "--k=5"]
    flags += [f"--compare={tmp_path / 'large'}", f"--output={tmp_path / 'r.json'}"]
    assert "--image_size: the encoders were trained on images of 16 and 24 pixels" in fails(capsys, *flags)
    assert main([*flags, "--image_size=24"]) == 0


def test_without_a_record_the_images_must_be_named(model, capsys):
    assert "--dataset: " in fails(capsys, f"--model={model}")


def test_what_cannot_be_is_one_line(model, data, tmp_path, capsys):
    base = [f"--model={model}", "--dataset=colours", f"--output={tmp_path / 'r.json'}"]
    assert "--k: 200 neighbours of a bank of 48 images; give 1 to 48" in fails(capsys, *base)
    assert "--l2_k: 49 neighbours of a bank of 48" in fails(capsys, *base, "--k=5", "--l2_k", 1, 49)
    assert "--class_weights: no class 'normal'; known are a, b, c" in fails(
        capsys, *base, "--tasks", "transfer", "--class_weights", "chaoyang"
    )
    transfer = [*base, "--tasks", "transfer"]
    assert "neither CLASS=WEIGHT nor one of" in fails(capsys, *transfer, "--class_weights", "lots")
    for rate in ("nan", "inf", "0"):
        assert f"--transfer_lr: must be above 0, got {rate}" in fails(capsys, *transfer, f"--transfer_lr={rate}")
        assert "--knn_temperature: must be above 0" in fails(capsys, *base, f"--knn_temperature={rate}")
    assert "--tasks: knn is named twice" in fails(capsys, *base, "--tasks", "knn", "linear", "knn")
    assert "is not a saved image encoder" in fails(capsys, f"--model={tmp_path}", "--dataset=colours")
    assert "--batch_size: must be at least 1, got 0" in fails(capsys, *base, "--batch_size=0")
    assert "(see --help)" in fails(capsys, *base, "--tasks", "knitting")
    (tmp_path / "file").write_text("")
    assert "--output: cannot write" in fails(capsys, *base[:2], "--k=5", f"--output={tmp_path / 'file' / 'r.json'}")


@pytest.mark.parametrize(
    ("task", "option"),
    [("linear", ["--k=5"]), ("linear", ["--knn_temperature=0.2"]), ("linear", ["--l2_k", "1", "5"]),
     ("linear", ["--l2_weights=uniform"]), ("knn", ["--probe_epochs=3"]), ("knn", ["--plot=x.png"]),
     ("knn", ["--class_weights", "a=2"]), ("knn", ["--transfer_epochs=3"]), ("knn", ["--transfer_lr=1"])],
)  # fmt: skip
def test_an_option_of_another_task_is_refused(task, option, model, capsys):
    name = option[0].split("=")[0]
    line = fails(capsys, f"--model={model}", "--dataset=colours", "--tasks", task, *option)
    assert f"{name} is for " in line


def test_a_picture_that_cannot_be_drawn_is_refused_first(model, data, tmp_path, monkeypatch, capsys):
    base = [f"--model={model}", "--dataset=colours", f"--output={tmp_path / 'r.json'}", "--k=5"]
    monkeypatch.setattr(evaluation, "load_encoders", None)  # nothing is loaded for it
    assert "--plot: 'x.foo' has none of the endings of pictures" in fails(capsys, *base, "--plot=x.foo")
    assert "x.png' cannot be written" in fails(capsys, *base, f"--plot={tmp_path / 'nodir' / 'x.png'}")
    found = measure_geometry(torch.eye(4), torch.eye(4), torch.eye(4), torch.tensor([0, 0, 1, 1]))
    with pytest.raises(UserError, match="--plot: cannot write"):
        plot_geometry({"one": found}, "colours", tmp_path / "nodir" / "x.png")


def test_images_that_say_nothing_are_one_line(model, data, tmp_path, capsys):
    base = [f"--model={model}", "--dataset=colours", f"--output={tmp_path / 'r.json'}", "--k=5"]
    whole = dict(data)
    data["train"] = colour_images(12, classes=1)
    data["test"] = colour_images(12, classes=1)
    assert "are of one class only" in fails(capsys, *base)
    data.update(whole)
    data["test"] = colour_images(12, classes=2)
    assert "has 3 classes for training and 2 for the test" in fails(capsys, *base)
    data.update(whole)
    data["train"].labels = None
    assert "the training images of colours have no labels" in fails(capsys, *base)
