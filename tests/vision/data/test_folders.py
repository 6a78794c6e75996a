"""Which folders of a set are splits, classes or neither, and what a user is told is not read."""

import pytest
from vision_cases import grays, write_folder, write_parquet

from dystress_text.errors import DataError, ParameterError
from vision.data import absolute_paths
from vision.data.images import NoAccuracyError
from vision.data.loading import load_images

# folders with the grays of their images; then the training images, their labels, the test images
# ("" if there are none), and what the notes name
LAYOUTS = {
    "splits": ("train/b: 10 20, train/a: 30, Test/b: 40", "30 10 20", "0 1 1", "40", ""),
    "synonyms": ("TRAIN/a: 1, validation/a: 2", "1", "0", "2", ""),
    "class train": ("train: 1, bus: 2, car: 3", "2 3 1", "0 1 2", "", "train"),
    "class Training": ("Training: 1, car: 3", "1 3", "0 1", "", "Training"),
    "class val": ("val: 1, bus: 2", "2 1", "0 1", "", "val"),
    "flat": ("training: 1, Testing: 2, unlabeled: 3", "1", "", "2", "unlabeled"),
    "further": ("train/a: 1, test/a: 2, Unlabelled/a: 3", "1", "0", "2", "Unlabelled"),
    "extra": ("train: 1, test: 2, extra: 3", "1", "", "2", "extra"),
    "longer extra": ("train: 1, test: 2, unlabeled_images: 3", "1", "", "2", "unlabeled_images"),
    "image beside splits": ("train: 1, test: 2, .: 3", "1", "", "2", "0.png"),
    "two test splits": ("train/a: 1, train/b: 2, val/a: 3, test/b: 4", "1 2", "0 1", "4", "val"),
    "longer names": ("train_images/a: 1, train_images/b: 2, test_x/a: 3", "1 2", "0 1", "3", ""),
    "empty val": ("train/a: 1, train/b: 2, val:", "1 2", "0 1", "", "val"),
    "images and folders": (".: 1 2, trip/2024: 3, train: 4, empty:", "1 2 4 3", "", "", "0.png"),
    "below classes": ("cat/spring: 1, cat/autumn: 2, dog: 3", "2 1 3", "0 0 1", "", ""),
}
REFUSED = {
    "Train": ("train: 1, Train: 2, test: 3", DataError, "Train"),
    "training": ("train: 1, training: 2, test: 3", DataError, "training"),
    "train among classes": ("train/cat: 1, train/dog: 2, bus: 3", ParameterError, "train"),
    "Test among classes": ("Test/cat: 1, Test/dog: 2, bus: 3", ParameterError, "Test"),
    "folder around the set": ("photos/train/a: 1, photos/val/a: 2", ParameterError, "photos"),
    "empty class": ("a: 1 2, b:", DataError, "b has no images"),
    "nothing": ("empty:", DataError, "empty"),
}


def write_layout(root, text):
    for part in text.split(", "):
        folder, values = part.split(":")
        write_folder(root, {folder: map(int, values.split())})


def numbers(text):
    return [*map(int, text.split())]


@pytest.mark.parametrize(
    ("folders", "train", "labels", "test", "named"), LAYOUTS.values(), ids=LAYOUTS
)
def test_layouts(folders, train, labels, test, named, tmp_path):
    write_layout(tmp_path, folders)
    images = load_images(str(tmp_path))
    assert grays(images) == numbers(train)
    assert (images.labels is not None) == bool(labels)
    if labels:
        assert images.labels.tolist() == numbers(labels)
    notes = images.notes
    if test:
        tested = load_images(str(tmp_path), "test")
        assert grays(tested) == numbers(test)
        notes += tested.notes
    else:
        with pytest.raises(NoAccuracyError):
            load_images(str(tmp_path), "test")
    assert bool(notes) == bool(named)
    assert named in " ".join(notes)


@pytest.mark.parametrize(("folders", "error", "named"), REFUSED.values(), ids=REFUSED)
def test_unclear_layouts_are_refused(folders, error, named, tmp_path):
    write_layout(tmp_path, folders)
    with pytest.raises(error, match=rf"^[^\n]*{named}[^\n]*$"):
        load_images(str(tmp_path))


def test_a_loop_of_folders_is_read_once(tmp_path):
    write_folder(tmp_path, {"cat": [1], "dog": [3]})
    (tmp_path / "dog" / "around").symlink_to(tmp_path / "dog")
    assert grays(load_images(str(tmp_path))) == [1, 3]


def test_a_link_to_itself_is_a_damaged_image(tmp_path):
    write_folder(tmp_path, {"cat": [1, 2], "dog": [3]})
    (tmp_path / "cat" / "9.png").symlink_to("9.png")
    with pytest.raises(DataError, match=r"9\.png"):
        load_images(str(tmp_path))
    images = load_images(str(tmp_path), skip_corrupt=True)
    assert grays(images) == [1, 2, 3]
    assert images.corrupt == 1


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


def test_other_files_are_counted_and_named(tmp_path):
    write_folder(tmp_path, {"a": [1, 2], "b": [3]})
    for name in ("IMG_0.HEIC", "a/IMG_1.HEIC", ".hidden", "a/._0.png"):
        (tmp_path / name).touch()
    images = load_images(str(tmp_path))
    assert grays(images) == [1, 2, 3]
    (note,) = images.notes
    assert note.startswith("2 files")
    assert "IMG_0.HEIC" in note


def test_pictures_are_read_next_to_a_table(tmp_path):
    write_folder(tmp_path, {"a": [1, 2], "b": [3]})
    write_parquet(tmp_path / "a" / "train-0.parquet", [7, 8, 9], [0, 0, 1])  # such as a copy
    (tmp_path / "embeddings.parquet").write_bytes(b"PAR1 of others")
    images = load_images(str(tmp_path))
    assert grays(images) == [1, 2, 3]
    assert "2 files are not read" in " ".join(images.notes)


def test_paths_are_recorded_as_absolute(tmp_path, monkeypatch):
    """So that a run resumes from another folder."""
    write_folder(tmp_path, {"photos": [1], "runs": []})
    monkeypatch.chdir(tmp_path / "runs")
    options = {"dataset": "../photos", "data_dir": None, "train_list": "../list.txt"}
    paths = {"dataset": str(tmp_path / "photos"), "train_list": str(tmp_path / "list.txt")}
    cifar = {"dataset": "cifar10", "data_dir": None, "train_list": None}
    monkeypatch.setenv("DYSTRESS_DATA", "prepared")
    assert absolute_paths(options) == paths
    assert absolute_paths(cifar) == {"data_dir": str(tmp_path / "runs" / "prepared")}
    assert absolute_paths({**cifar, "dataset": "shapes"}) == {}
    monkeypatch.setenv("DYSTRESS_DATA", str(tmp_path))
    assert absolute_paths(cifar) == {}
    assert absolute_paths({**cifar, "data_dir": "own"}) == {
        "data_dir": str(tmp_path / "runs" / "own")
    }
