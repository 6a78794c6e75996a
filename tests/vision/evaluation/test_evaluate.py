"""The program from a model's folder to its table and results; features."""

import json
import os
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import accuracy_score, recall_score
from vision_cases import as_float, colour_images, tiny_encoder, write_folder

from vision.data import loading
from vision.evaluate import main
from vision.evaluation import evaluate_encoders
from vision.evaluation.features import image_features
from vision.evaluation.knn import cosine_votes
from vision.resnet import ImageEncoder, load_encoder, save_encoder

TASKS = ["knn", "linear", "geometry", "svm", "transfer"]


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
    for module in (evaluate_encoders, loading):
        monkeypatch.setattr(module, "load_images", lambda name, split, *rest: sets[split])
    return sets


@pytest.fixture
def evaluate(model, data, tmp_path):
    """Evaluate the model on the data by options; return the lines of the results so far."""

    def run(*options):
        file = tmp_path / "results.jsonl"
        assert main([f"--model={model}", "--dataset=colours", f"--output={file}", *options]) == 0
        return [json.loads(line) for line in file.read_text().splitlines()]

    return run


def refused(capsys, *options):
    """Return the last line of what options that are refused print."""
    assert main([*options]) == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_every_task_of_two_encoders(model, data, evaluate, capsys):
    weights = ["--class_weights", "c=1.5", "a=2"]
    epochs = ["--probe_epochs=3", "--transfer_epochs=1"]
    lines = evaluate("--k=5", *epochs, "--compare", *weights, "--tasks", *TASKS)
    printed = capsys.readouterr().out
    assert [line["task"] for line in lines] == TASKS * 2
    untrained = lines[0]
    mine = lines[5]
    assert untrained["model"] == "untrained"
    assert mine["model"] == str(model)
    assert mine["weights"] != untrained["weights"]
    assert mine["settings"]["class_weights"] == {"c": 1.5, "a": 2.0}
    assert mine["network"] == asdict(load_encoder(model).description)
    assert mine["data"]["test_images"] == 21
    assert sum(lines[7]["figures"]["true_positive"]) == 21

    encoder = load_encoder(model)
    bank = image_features(encoder, data["train"], 7)
    queries = image_features(encoder, data["test"], 7)
    predicted = cosine_votes(bank, data["train"].labels, queries, 3, 5).argmax(1)
    accuracy = 100 * accuracy_score(data["test"].labels, predicted)
    assert mine["figures"]["top1"] == pytest.approx(accuracy)
    assert f"{accuracy:.2f}" in printed
    of_classes = 100 * recall_score(data["test"].labels, predicted, average=None)
    assert [of["top1"] for of in mine["figures"]["by_class"].values()] == pytest.approx(of_classes)
    for line in lines:
        if line["task"] != "geometry":
            of_classes = line["figures"]["by_class"].values()
            assert [of["images"] for of in of_classes] == [7, 7, 7]
            mean = np.mean([of["top1"] for of in of_classes])
            assert line["figures"]["top1"] == pytest.approx(mean)
    assert "5-NN top-1 of b (n = 7) " in printed
    assert "colours (JPEG copy), 21 test images" in printed
    assert evaluate("--k=4", "--tasks=knn")[:-1] == lines  # earlier results stay


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize("content", [b"notes\n", b"the last line is open", b"\x08\xff{"])
def test_output_never_changes_another_file(model, tmp_path, content, capsys):
    file = tmp_path / "notes.txt"
    file.write_bytes(content)
    line = refused(capsys, f"--model={model}", "--dataset=colours", f"--output={file}")
    assert line.startswith("evaluate.py: error: --output: ")
    assert file.read_bytes() == content


@pytest.mark.usefixtures("data")
def test_results_have_the_name_of_the_folder(model, tmp_path, monkeypatch):
    (tmp_path / "sorted").mkdir()
    monkeypatch.chdir(tmp_path / "sorted")
    copy = shutil.copytree(model, tmp_path / "model")
    assert main([f"--model={copy}", "--dataset=.", "--tasks=knn", "--k=2"]) == 0
    assert (copy / "vision-sorted.jsonl").is_file()


@pytest.mark.usefixtures("data")
def test_a_pipe_is_refused_with_a_reason(model, capsys):
    ends = os.pipe()
    file = f"--output=/dev/fd/{ends[1]}"
    line = refused(capsys, f"--model={model}", "--dataset=colours", file, "--tasks=knn")
    for end in ends:
        os.close(end)
    assert "--output" in line
    assert "None" not in line


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize(
    ("options", "named"), [(["--dataset=colours", "--k=49"], "--k"), ([], "--dataset")]
)
def test_bad_options_are_named(model, options, named, capsys):
    """Too many neighbours; and no images, for a model that no run trained."""
    line = refused(capsys, f"--model={model}", *options)
    assert line.startswith(f"evaluate.py: error: {named}: ")


def test_encoders_of_different_sizes_are_refused(model, tmp_path, capsys):
    encoder = tiny_encoder()
    encoder.input = replace(encoder.input, image_size=24)
    save_encoder(encoder, tmp_path)
    options = ["--dataset=shapes", f"--compare={tmp_path}"]
    assert "--compare: " in refused(capsys, f"--model={model}", *options)


def test_undefined_figures_are_left_out(data, evaluate):
    """Of one image."""
    data |= {"train": colour_images(12, 2), "test": colour_images(1, 2, seed=1)}
    of_views, of_classifier = evaluate("--transfer_epochs=1", "--tasks", "geometry", "transfer")
    undefined = {"uniformity", "interclass_uniformity", "tolerance"}
    assert not undefined & of_views["figures"].keys()
    assert "auc" not in of_classifier["figures"]


@pytest.mark.parametrize("batch_size", [3, 7])
def test_batch_size_rules_every_task(evaluate, batch_size, monkeypatch):
    encoded = []
    features = ImageEncoder.features

    def counted(self, images):
        encoded.append(len(images))
        return features(self, images)

    monkeypatch.setattr(ImageEncoder, "features", counted)
    epochs = ["--probe=augmented", "--probe_epochs=1", "--transfer_epochs=1"]
    evaluate(f"--batch_size={batch_size}", "--k=5", *epochs, "--tasks", *TASKS)
    # train and test; probe; test, twice; fine-tuning; test
    assert sum(encoded) == 48 + 21 + 48 + 2 * 21 + 48 + 21
    assert max(encoded) == batch_size


@pytest.mark.parametrize(("k", "has_top5"), [(4, False), (5, True)])
def test_four_neighbours_have_no_top5(data, evaluate, k, has_top5, capsys):
    """Of nine classes, of which four neighbours rank no five."""
    for split, images in data.items():
        labels = torch.arange(len(images)) % 9
        data[split] = replace(images, labels=labels, classes=tuple("abcdefghi"))
    (line,) = evaluate(f"--k={k}", "--tasks=knn")
    assert (line["figures"]["top5"] is not None) == has_top5
    assert (f"{k}-NN top-5" in capsys.readouterr().out) == has_top5


def test_fewer_images_than_the_default_of_neighbours_all_vote(evaluate):
    (line,) = evaluate("--tasks=knn")
    assert line["figures"]["k"] == 48


def check_features(model, arrays):
    """Compare with those of the named files, read by Pillow at the size of the encoder's input."""
    pixels = [np.asarray(Image.open(name).convert("RGB")) for name in arrays["names"]]
    images = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)
    with torch.no_grad():
        expected = load_encoder(model).eval().features(as_float(images)).numpy()
    assert arrays["features"].dtype == np.float32
    np.testing.assert_allclose(arrays["features"], expected, rtol=1e-4, atol=1e-5)


def test_features_of_photos_without_labels(model, tmp_path):
    photos = tmp_path / "photos"
    write_folder(tmp_path, {"photos": range(0, 250, 25)}, side=16)
    output = tmp_path / "new" / "features.npz"
    assert main([f"--model={model}", f"--dataset={photos}", f"--features={output}"]) == 0
    with np.load(output) as arrays:
        assert set(arrays) == {"features", "names", "split"}
        assert sorted(arrays["names"]) == sorted(map(str, photos.iterdir()))
        check_features(model, arrays)
    assert not list(model.glob("*.jsonl"))


@pytest.mark.parametrize("tasks", [[], ["--tasks=knn", "--k=2"]])
def test_features_of_labelled_images(model, tmp_path, tasks):
    """Some of them, in an order that is drawn."""
    for split, start in (("train", 0), ("test", 5)):
        grays = {name: range(start + i, 250, 25) for i, name in enumerate(["cat", "dog"])}
        write_folder(tmp_path / "sorted" / split, grays, side=16)
    output = tmp_path / "features.npz"
    file = tmp_path / "r.jsonl"
    flags = [f"--dataset={tmp_path / 'sorted'}", f"--features={output}", "--limit=7"]
    assert main([f"--model={model}", *flags, *tasks, f"--output={file}"]) == 0
    assert file.is_file() == bool(tasks)
    with np.load(output) as arrays:
        check_features(model, arrays)
        assert arrays["split"].tolist() == ["train"] * 7 + ["test"] * 7
        folders = [Path(name).parts[-3:-1] for name in arrays["names"]]
        labels = arrays["classes"][arrays["labels"]]
        assert folders == list(zip(arrays["split"], labels, strict=True))


@pytest.mark.parametrize("name", ["features.npy", "file/x.npz"])
def test_features_need_a_file_that_can_be_written(model, tmp_path, name, capsys):
    write_folder(tmp_path, {"photos": [1, 2]}, side=16)
    (tmp_path / "file").touch()
    output = f"--features={tmp_path / name}"
    line = refused(capsys, f"--model={model}", f"--dataset={tmp_path / 'photos'}", output)
    assert "--features: " in line


def test_features_are_those_of_each_image_alone():
    encoder = tiny_encoder().train()
    images = colour_images(20)
    features = image_features(encoder, images, 7)
    assert encoder.backbone.training
    encoder.eval()
    with torch.no_grad():
        alone = [encoder.features(as_float(image[None])) for image in images.pixels]
    torch.testing.assert_close(features, torch.cat(alone), rtol=1e-4, atol=1e-5)
