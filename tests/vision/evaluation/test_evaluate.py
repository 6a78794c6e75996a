"""The program: from a model's folder to its table and record; the lines it ends with; features and
their geometry.
"""

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
from vision.evaluation import run
from vision.evaluation.features import image_features
from vision.evaluation.measures import geometry_of
from vision.evaluation.paper import row_of
from vision.resnet import ImageInput, load_encoder, save_encoder

CIFAR, GEOMETRY = (
    row_of(t, "DySTreSS") for t in ("cifar10n100_bal_bs128_sgd0p1_200eps", "unifalginmentmetrics")
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


def test_everything_of_two_encoders(model, data, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")  # so the GPU is left alone
    state = torch.get_rng_state()
    output = tmp_path / "results.json"
    flags = [
        "--dataset=colours",
        "--k=5",
        "--probe_epochs=3",
        "--transfer_epochs=1",
        "--class_weights",
        "c=1.5",
        "a=2",
    ]
    tasks = ["--tasks", "knn", "linear", "geometry", "svm", "transfer"]
    assert main([f"--model={model}", *flags, *tasks, "--compare", f"--output={output}"]) == 0
    assert torch.equal(torch.get_rng_state(), state)
    record = json.loads(output.read_text())
    assert list(record["results"]) == ["untrained", str(model)]
    assert record["settings"]["class_weights"] == {"c": 1.5, "a": 2.0}
    assert (record["data"]["train_images"], record["data"]["test_images"]) == (48, 21)
    assert record["encoders"][str(model)]["input"]["image_size"] == 16
    assert record["encoders"]["untrained"] == record["encoders"][str(model)]
    for found in record["results"].values():
        assert list(found) == tasks[1:]
        assert all(task["data_variant"] == "JPEG copy" for task in found.values())
    mine = record["results"][str(model)]
    assert (
        mine["linear"]["probe_epochs"],
        mine["transfer"]["transfer_epochs"],
        mine["knn"]["seed"],
    ) == (3, 1, 0)
    assert mine["geometry"] != record["results"]["untrained"]["geometry"]
    assert sum(mine["geometry"]["true_positive"]) == 21

    encoder = load_encoder(model)
    shown = ImageInput(16, 1.0, *mean_std(data["train"]))
    bank, queries = (
        unit_vectors(image_features(encoder, data[split], shown, 7)) for split in ("train", "test")
    )
    theirs = KNeighborsClassifier(
        5, metric="cosine", weights=lambda distance: np.exp((1 - distance) / 0.1)
    ).fit(bank, data["train"].labels)
    assert mine["knn"]["5-NN"]["top1"] == pytest.approx(
        100 * theirs.score(queries, data["test"].labels)
    )

    printed = capsys.readouterr().out
    lines = [line for line in printed.split("\n") if "JPEG copy" in line]
    assert lines[0] == "colours (JPEG copy), 21 test images"
    assert len(lines) == 1 + 1 + 1 + 4 + 1 + 1  # the title, kNN, probe, geometry, SVM, fine-tuning
    assert f"{mine['linear']['top1']:.2f}" in printed


def test_what_cannot_be_is_one_line(model, data, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for flags, message in (
        ([], "--k: 200 neighbours of a bank of 48 images; give 1 to 48"),
        ([f"--model={tmp_path}"], "is not a saved image encoder"),
        (["--k=5", f"--output={tmp_path / 'file' / 'r.json'}"], "--output: cannot write"),
    ):
        assert main([f"--model={model}", "--dataset=colours", *flags]) == 2
        line = capsys.readouterr().err.strip().split("\n")[-1]
        assert line.startswith("evaluate.py: error: ")
        assert message in line


def test_the_papers_figures_stand_in_a_column_of_their_own(data, tmp_path, capsys):
    model = tmp_path / "out"
    save_encoder(tiny_encoder(), model)
    entry = {"rows": [CIFAR, GEOMETRY], "differs": "--max_steps 5 (row: -1)"}
    record = {
        "program": "vision/train.py",
        "settings": {"dataset": "cifar10", "data_dir": None},
        "paper": entry,
    }
    (model / "run.json").write_text(json.dumps(record))
    assert (
        main(
            [
                f"--model={model}",
                f"--output={tmp_path / 'r.json'}",
                "--tasks",
                "knn",
                "geometry",
                "--k=20",
            ]
        )
        == 0
    )
    content, printed = json.loads((tmp_path / "r.json").read_text()), capsys.readouterr().out
    assert content["paper"][str(model)]["rows"][CIFAR] == {"knn": {"200-NN": {"top1": 85.68}}}
    lines = printed.splitlines()
    heading = next(line for line in lines if CIFAR in line)
    assert heading.split("  ")[-1].strip() == GEOMETRY
    assert next(line for line in lines if line.startswith("200-NN top-1")).split()[-3:] == [
        "-",
        "85.68",
        "85.83",
    ]
    uniform = next(line for line in lines if line.startswith("uniformity"))
    assert uniform.split()[-2:] == ["-", "-2.843"]
    assert f"{content['results'][str(model)]['geometry']['uniformity']:.3f}" in uniform
    assert f"{model} differs from the row in --max_steps 5 (row: -1)" in lines


@pytest.mark.parametrize("change", ["weights", "pixels", "seed"])
def test_figures_of_others_stand_apart_and_come_back(change, data, tmp_path):
    """Of a model that was trained again in its folder, of other images in the same number, of
    another untrained one.
    """
    model, output, test = tmp_path / "out", tmp_path / "results.json", data["test"]
    flags = [f"--model={model}", "--dataset=colours", f"--output={output}", "--compare", "--tasks"]

    def record_of(*more, seed=7):
        save_encoder(tiny_encoder(seed=seed), model)
        assert main([*flags, *more]) == 0
        return json.loads(output.read_text())

    knn = record_of("knn", "--k=5")["results"]
    if change == "pixels":
        data["test"] = colour_images(21, seed=9, variant="JPEG copy")
    more = ["--seed=3"] if change == "seed" else []
    other = record_of("geometry", *more, seed=8 if change == "weights" else 7)
    assert [of.keys() for of in other["results"].values()] == [{"geometry"}] * 2
    assert [each["results"] for each in other["others"]] == [knn]
    data["test"] = test
    back = record_of("geometry")
    assert (
        back["results"][str(model)]["knn"] == knn[str(model)]["knn"]
    )  # what was not measured again stays
    assert [each["results"] for each in back["others"]] == [other["results"]]
    mine = record_of("knn", "--k=7")["results"][str(model)]["knn"]
    assert mine["7-NN"]
    changed = {"7-NN": None, "seconds": None}
    assert {**mine, **changed} == {**knn[str(model)]["knn"], **changed}  # with other neighbours'


@pytest.mark.parametrize(
    ("kept", "missing"),
    [
        (
            [0],
            {"uniformity", "interclass uniformity", "tolerance", "auc", "balanced accuracy"},
        ),  # one image
        ([0, 2, 4], {"interclass uniformity", "auc", "balanced accuracy"}),  # one class
        ([0, 1], {"tolerance"}),
    ],  # one image a class, one pair
)
def test_figures_that_do_not_exist_are_left_out(
    kept, missing, model, data, tmp_path, capsys, recwarn
):
    data |= {"train": colour_images(12, 2), "test": colour_images(6, 2, seed=1).subset(kept)}
    tasks = [
        "--tasks",
        "knn",
        "linear",
        "geometry",
        "transfer",
        "--k=5",
        "--probe_epochs=2",
        "--transfer_epochs=1",
    ]
    assert (
        main([f"--model={model}", "--dataset=colours", *tasks, f"--output={tmp_path / 'r.json'}"])
        == 0
    )
    said, written = capsys.readouterr().out, (tmp_path / "r.json").read_text()
    names = {"uniformity", "interclass uniformity", "tolerance", "auc", "balanced accuracy"}
    lines = [line.removeprefix("fine-tuned ") for line in said.splitlines()]
    assert {
        name for name in names if any(line.startswith(name) for line in lines)
    } == names - missing
    assert "nan" not in said.lower() + written.lower()
    results = json.loads(written)["results"][str(model)]
    assert {
        name.replace("_", " ") for task in ("geometry", "transfer") for name in results[task]
    }.isdisjoint(missing)
    assert [str(warning.message) for warning in recwarn if "class" in str(warning.message)] == []


def test_features_are_those_of_each_image_alone_and_modes_stay():
    encoder, images = tiny_encoder().train(), colour_images(20)
    encoder.projector.eval()
    before = [part.training for part in encoder.modules()]
    features = image_features(encoder, images, HALF, 7)
    assert [part.training for part in encoder.modules()] == before
    encoder.eval()
    with torch.no_grad():
        one_by_one = torch.cat([encoder.features(as_float(image[None])) for image in images.pixels])
    torch.testing.assert_close(features, one_by_one, rtol=1e-4, atol=1e-5)
    assert (features.dtype, features.requires_grad) == (torch.float32, False)


def test_figures_are_of_the_images_and_pairs_of_their_views():
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
