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
from sklearn.metrics import recall_score
from vision_cases import as_float, colour_images, tiny_encoder, write_folder

from vision.data import loading
from vision.evaluate import main
from vision.evaluation import evaluate_encoders
from vision.evaluation.features import image_features
from vision.evaluation.knn import Accuracy, cosine_votes
from vision.resnet import ImageEncoder, load_encoder, save_encoder


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


def results(file):
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_every_task_of_two_encoders(model, data, tmp_path, capsys):
    output = tmp_path / "results.jsonl"
    tasks = ["knn", "linear", "geometry", "svm", "transfer"]
    flags = ["--dataset=colours", "--k=5", "--probe_epochs=3", "--transfer_epochs=1", "--compare"]
    weights = ["--class_weights", "c=1.5", "a=2"]
    argv = [f"--model={model}", *flags, *weights, f"--output={output}", "--tasks", *tasks]
    assert main(argv) == 0
    lines = results(output)
    assert [line["task"] for line in lines] == tasks * 2
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
    votes = cosine_votes(bank, data["train"].labels, queries, 3, 5)
    accuracy = Accuracy.of(votes, data["test"].labels).top1
    assert mine["figures"]["top1"] == pytest.approx(accuracy)
    of_each = recall_score(data["test"].labels, votes.argmax(1), average=None)
    for name, recall in zip("abc", of_each, strict=True):
        assert mine["figures"]["by_class"][name] == {
            "top1": pytest.approx(100 * recall),
            "images": 7,
        }
    for line in lines:
        if line["task"] != "geometry":
            figures = line["figures"]
            of_classes = [of_class["top1"] for of_class in figures["by_class"].values()]
            assert sum(of_classes) / 3 == pytest.approx(figures["top1"])  # classes of one size
    printed = capsys.readouterr().out
    assert "5-NN top-1 of b (n = 7) " in printed
    assert "colours (JPEG copy), 21 test images" in printed
    assert f"{accuracy:.2f}" in printed

    assert main([*argv[:2], "--k=4", f"--output={output}", "--tasks=knn"]) == 0
    assert results(output)[:-1] == lines  # earlier results stay


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize("content", [b"notes\n", b"the last line is open", b"\x08\xff{"])
def test_output_never_changes_another_file(model, tmp_path, content, capsys):
    file = tmp_path / "notes.txt"
    file.write_bytes(content)
    assert main([f"--model={model}", "--dataset=colours", "--k=5", f"--output={file}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
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
    assert main([f"--model={model}", f"--output=/dev/fd/{ends[1]}", "--tasks=knn"]) == 2
    for end in ends:
        os.close(end)
    assert "None" not in capsys.readouterr().err


@pytest.mark.usefixtures("data")
def test_bad_options_are_one_line(model, capsys):
    assert main([f"--model={model}", "--dataset=colours", "--k=49"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("evaluate.py: error: --k: ")


def test_undefined_figures_are_left_out(model, data, tmp_path):
    """Of one image."""
    data |= {"train": colour_images(12, 2), "test": colour_images(1, 2, seed=1)}
    output = tmp_path / "r.jsonl"
    tasks = ["--tasks", "geometry", "transfer", "--transfer_epochs=1"]
    assert main([f"--model={model}", "--dataset=colours", f"--output={output}", *tasks]) == 0
    of_views, of_classifier = results(output)
    undefined = {"uniformity", "interclass_uniformity", "tolerance"}
    assert not undefined & of_views["figures"].keys()
    assert "auc" not in of_classifier["figures"]


@pytest.mark.parametrize("batch_size", [3, 7])
@pytest.mark.usefixtures("data")
def test_batch_size_rules_every_task(model, tmp_path, batch_size, monkeypatch):
    encoded = []
    features = ImageEncoder.features

    def counted(self, images):
        encoded.append(len(images))
        return features(self, images)

    monkeypatch.setattr(ImageEncoder, "features", counted)
    flags = ["--dataset=colours", f"--batch_size={batch_size}", f"--output={tmp_path / 'r.jsonl'}"]
    epochs = ["--k=5", "--probe=augmented", "--probe_epochs=1", "--transfer_epochs=1"]
    tasks = ["--tasks", "knn", "linear", "geometry", "svm", "transfer"]
    assert main([f"--model={model}", *flags, *epochs, *tasks]) == 0
    # train and test; probe; test, twice; fine-tuning; test
    assert sum(encoded) == 48 + 21 + 48 + 2 * 21 + 48 + 21
    assert max(encoded) == batch_size


@pytest.mark.parametrize(("k", "has_top5"), [(1, False), (4, False), (5, True)])
def test_four_neighbours_have_no_top5(model, data, tmp_path, k, has_top5, capsys):
    """Of nine classes, of which four neighbours rank no five."""
    for split, images in data.items():
        labels = torch.arange(len(images)) % 9
        data[split] = replace(images, labels=labels, classes=tuple("abcdefghi"))
    output = tmp_path / "r.jsonl"
    flags = ["--dataset=colours", f"--k={k}", "--tasks=knn", f"--output={output}"]
    assert main([f"--model={model}", *flags]) == 0
    (line,) = results(output)
    assert (line["figures"]["top5"] is not None) == has_top5
    assert (f"{k}-NN top-5" in capsys.readouterr().out) == has_top5


def features_of(encoder, names):
    """Of the files, read by Pillow; they have the size of the encoder's input."""
    pixels = [np.asarray(Image.open(name).convert("RGB")) for name in names]
    images = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2)
    with torch.no_grad():
        return encoder.eval().features(as_float(images)).numpy()


def test_features_of_photos_without_labels(model, tmp_path):
    photos = tmp_path / "photos"
    write_folder(tmp_path, {"photos": range(0, 250, 25)}, side=16)
    output = tmp_path / "new" / "features.npz"
    assert main([f"--model={model}", f"--dataset={photos}", f"--features={output}"]) == 0
    with np.load(output) as found:
        assert set(found) == {"features", "names", "split"}
        assert found["features"].dtype == np.float32
        assert sorted(found["names"]) == sorted(map(str, photos.iterdir()))
        expected = features_of(load_encoder(model), found["names"])
        np.testing.assert_allclose(found["features"], expected, rtol=1e-4, atol=1e-5)
    assert not list(model.glob("*.jsonl"))


@pytest.mark.parametrize("tasks", [[], ["--tasks=knn", "--k=2"]])
def test_features_of_labelled_images(model, tmp_path, tasks):
    """Some of them, in an order that is drawn."""
    for split, start in (("train", 0), ("test", 5)):
        grays = {name: range(start + i, 250, 25) for i, name in enumerate(["cat", "dog"])}
        write_folder(tmp_path / "sorted" / split, grays, side=16)
    output = tmp_path / "features.npz"
    flags = [f"--dataset={tmp_path / 'sorted'}", f"--features={output}", "--limit=7"]
    file = tmp_path / "r.jsonl"
    assert main([f"--model={model}", *flags, *tasks, f"--output={file}"]) == 0
    assert file.is_file() == bool(tasks)
    with np.load(output) as found:
        expected = features_of(load_encoder(model), found["names"])
        np.testing.assert_allclose(found["features"], expected, rtol=1e-4, atol=1e-5)
        assert found["split"].tolist() == ["train"] * 7 + ["test"] * 7
        named = [Path(name).parts[-3:-1] for name in found["names"]]
        labels = found["classes"][found["labels"]]
        assert named == list(zip(found["split"], labels, strict=True))


@pytest.mark.parametrize("name", ["features.npy", "file/x.npz"])
def test_features_need_a_file_that_can_be_written(model, tmp_path, name, capsys):
    write_folder(tmp_path, {"photos": [1, 2]}, side=16)
    (tmp_path / "file").touch()
    flags = [f"--dataset={tmp_path / 'photos'}", f"--features={tmp_path / name}"]
    assert main([f"--model={model}", *flags]) == 2
    assert "--features: " in capsys.readouterr().err.splitlines()[-1]


def test_fewer_images_than_the_default_of_neighbours_all_vote(model, data, tmp_path):
    output = tmp_path / "r.jsonl"
    assert main([f"--model={model}", "--dataset=x", "--tasks=knn", f"--output={output}"]) == 0
    assert results(output)[0]["figures"]["k"] == len(data["train"])


def test_features_are_those_of_each_image_alone():
    encoder = tiny_encoder().train()
    images = colour_images(20)
    features = image_features(encoder, images, 7)
    assert encoder.backbone.training
    encoder.eval()
    with torch.no_grad():
        alone = [encoder.features(as_float(image[None])) for image in images.pixels]
    torch.testing.assert_close(features, torch.cat(alone), rtol=1e-4, atol=1e-5)
