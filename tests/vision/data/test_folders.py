"""Which folders of a set are splits, classes or neither, and what a user is told is not read."""

from collections import Counter

import pytest
from vision_cases import write_folder, write_parquet

from dystress_text.errors import DataError, ParameterError
from vision.data import absolute_paths
from vision.data.images import NoAccuracyError
from vision.data.loading import load_images


def grays(images):
    return images.pixels[:, 0, 0, 0].tolist()


@pytest.mark.parametrize("name", ["train", "Training", "val"])
def test_a_class_may_be_called_like_a_split(name, tmp_path):
    write_folder(tmp_path, {name: [1, 2], "bus": [3], "car": [4]})
    images = load_images(str(tmp_path))
    assert images.classes == tuple(sorted((name, "bus", "car")))
    assert Counter(grays(images)) == Counter([1, 2, 3, 4])
    with pytest.raises(NoAccuracyError):
        load_images(str(tmp_path), "test")


@pytest.mark.parametrize("classes", [("",), ("a", "b")])
@pytest.mark.parametrize(("train", "test"), [("train", "test"), ("training", "Testing")])
def test_a_folder_that_is_not_read_is_named(train, test, classes, tmp_path):
    for name in classes:
        write_folder(tmp_path, {f"{train}/{name}": [1], f"{test}/{name}": [2], "unlabeled": [3]})
    images = load_images(str(tmp_path))
    assert grays(images) == [1] * len(classes)
    assert "unlabeled" in " ".join(images.notes)
    assert grays(load_images(str(tmp_path), "test")) == [2] * len(classes)


def test_the_other_test_split_is_named(tmp_path):
    write_folder(tmp_path, {"train/a": [1], "train/b": [2], "val/a": [3], "test/b": [4]})
    test = load_images(str(tmp_path), "test")
    assert grays(test) == [4]
    assert "val" in " ".join(test.notes)


@pytest.mark.parametrize("other", ["unlabeled_images", "Unlabelled", "extra"])
def test_images_without_labels_may_be_a_further_split(other, tmp_path):
    write_folder(tmp_path, {"train": [1], "test": [2], other: [3]})
    images = load_images(str(tmp_path))
    assert grays(images) == [1]
    assert other in " ".join(images.notes)


@pytest.mark.parametrize("other", ["Train", "training"])
def test_two_training_splits_are_refused(other, tmp_path):
    write_folder(tmp_path, {"train": [1], other: [2], "test": [3]})
    with pytest.raises(DataError, match=other):
        load_images(str(tmp_path))


@pytest.mark.parametrize("split", ["train", "Test"])
def test_a_split_among_classes_is_refused(split, tmp_path):
    """Class folders in it, and pictures in those next to it: it may be either."""
    write_folder(tmp_path, {f"{split}/cat": [1], f"{split}/dog": [2], "bus": [3]})
    with pytest.raises(ParameterError, match=split):
        load_images(str(tmp_path))


def test_pictures_next_to_a_folder_are_read_with_it(tmp_path):
    write_folder(tmp_path, {".": [1, 2], "holiday/2024": [3], "train": [4], "empty": []})
    images = load_images(str(tmp_path))
    assert Counter(grays(images)) == Counter([1, 2, 3, 4])
    assert images.labels is None
    assert "without labels" in " ".join(images.notes)
    assert "such as 0.png" in " ".join(images.notes)


def test_folders_below_a_class_are_of_the_class(tmp_path):
    write_folder(tmp_path, {"cat/spring": [1], "cat/autumn": [2], "dog": [3]})
    (tmp_path / "dog" / "around").symlink_to(tmp_path / "dog")
    images = load_images(str(tmp_path))
    assert grays(images) == [2, 1, 3]
    assert images.labels.tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("output", "classes"),
    [("out", "."), ("runs/out", "."), ("out", "ab"), ("a/out", "ab")],
)
def test_runs_in_the_picture_folder_are_no_images(output, classes, tmp_path):
    for name in classes:
        write_folder(tmp_path, {name: [1, 2]})
    write_folder(tmp_path, {output: [], f"{output}/figures": [9]})
    for name in ("run.json", ".lock"):  # of a finished run, and of one that begins
        (tmp_path / output / name).touch()
        images = load_images(str(tmp_path))
        assert grays(images) == [1, 2] * len(classes)
        (tmp_path / output / name).unlink()


def test_pictures_are_read_next_to_a_table(tmp_path):
    write_folder(tmp_path, {"a": [1, 2], "b": [3]})
    write_parquet(tmp_path / "a" / "train-0.parquet", [7, 8, 9], [0, 0, 1])  # such as a copy
    (tmp_path / "embeddings.parquet").write_bytes(b"PAR1 of others")
    images = load_images(str(tmp_path))
    assert grays(images) == [1, 2, 3]
    assert "parquet" in " ".join(images.notes)


def test_files_next_to_class_folders_are_counted(tmp_path):
    write_folder(tmp_path, {"a": [1, 2], "b": [3]})
    for name in ("IMG_0.HEIC", "a/IMG_1.HEIC", ".hidden"):
        (tmp_path / name).touch()
    images = load_images(str(tmp_path))
    assert grays(images) == [1, 2, 3]
    (note,) = images.notes
    assert note.startswith("2 files")
    assert "IMG_0.HEIC" in note


def test_folders_called_like_two_splits_are_splits(tmp_path):
    write_folder(tmp_path, {"train_images/a": [1], "train_images/b": [2], "test_images/a": [3]})
    assert load_images(str(tmp_path)).classes == ("a", "b")
    assert grays(load_images(str(tmp_path), "test")) == [3]


def test_splits_below_a_class_are_refused(tmp_path):
    """One folder around the set, or splits of each class: all would train."""
    write_folder(tmp_path, {"photos/train/a": [1], "photos/val/a": [2]})
    with pytest.raises(ParameterError, match="photos"):
        load_images(str(tmp_path))


def test_an_empty_test_split_is_none(tmp_path):
    write_folder(tmp_path, {"train/a": [1], "train/b": [2], "val": []})
    assert grays(load_images(str(tmp_path))) == [1, 2]
    with pytest.raises(NoAccuracyError):
        load_images(str(tmp_path), "test")


def test_a_folder_has_one_path_from_all_others(tmp_path, monkeypatch):
    """So that a run resumes from another folder."""
    write_folder(tmp_path, {"photos": [1], "runs": []})
    monkeypatch.chdir(tmp_path / "runs")
    options = {"dataset": "../photos", "data_dir": None, "train_list": "../list.txt"}
    paths = {"dataset": str(tmp_path / "photos"), "train_list": str(tmp_path / "list.txt")}
    assert absolute_paths(options) == paths
    monkeypatch.setenv("DYSTRESS_DATA", "prepared")
    assert absolute_paths(options) == paths
    named = {"dataset": "cifar10", "data_dir": None, "train_list": None}
    assert absolute_paths(named) == {"data_dir": str(tmp_path / "runs" / "prepared")}
    monkeypatch.setenv("DYSTRESS_DATA", str(tmp_path))
    assert absolute_paths(named) == {}
    assert absolute_paths({**named, "dataset": "shapes"}) == {}
