"""Parquet files: which are a split's, whether all are there, and their columns."""

import os

import pyarrow.parquet as pq
import pytest
from vision_cases import write_folder, write_parquet

from dystress_text.errors import DataError, ParameterError
from vision.data.loading import load_images


def grays(images):
    return images.pixels[:, 0, 0, 0].tolist()


def write(root, *names):
    for gray, name in enumerate(names):
        write_parquet(root / f"{name}.parquet", [gray, gray], [0, 1])


@pytest.mark.parametrize(
    "names",
    [
        ("train-00000-of-00005", "train-00002-of-00005"),
        ("default/train/0000", "default/train/0002"),
        ("train-00000-of-00001", "train-00000-of-00002", "train-00001-of-00002"),
        ("train-00000-of-00001", "train-00000-of-00001-0123456789abcdef"),
        ("train", "train-00000-of-00001"),
        ("train_1", "train_3"),
        ("default/train/0001",),
    ],
)
def test_an_incomplete_set_is_refused(names, tmp_path):
    write(tmp_path, *names)
    with pytest.raises(DataError, match=r"0000|train"):
        load_images(str(tmp_path))


@pytest.mark.parametrize(
    "names",
    [
        ("train-00000-of-00002", "train-00001-of-00002", "test-00000-of-00001"),
        ("default/train/0000", "default/train/0001", "default/test/0000"),
        ("train-00000-of-00002-0123456789abcdef", "train-00001-of-00002-fedcba9876543210", "test"),
        ("TRAIN_1", "TRAIN_2", "Test"),
        ("train-part-0", "train-part-1", "validation"),
        ("training-0", "training-1", "dev"),
        ("own-train-0", "own-train-1", "own-test"),
        ("train/a7", "train/b3", "test/c5"),
    ],
)
@pytest.mark.parametrize("other", ["testmini-0", "test-mini-0", "trains", "extra-0"])
def test_layouts(names, other, tmp_path):
    write(tmp_path, *names, other)
    train = load_images(str(tmp_path))
    test = load_images(str(tmp_path), "test")
    assert grays(train) == [0, 0, 1, 1]
    assert grays(test) == [2, 2]
    assert other.removesuffix("-0") in " ".join(train.notes + test.notes)


def test_two_training_splits_are_refused(tmp_path):
    write(tmp_path, "train-clean-0", "train-noisy-0")
    with pytest.raises(DataError, match="train-noisy"):
        load_images(str(tmp_path))


def test_one_of_several_configurations_is_to_be_named(tmp_path):
    write(tmp_path, "default/train/0000", "small/train/0000")
    with pytest.raises(ParameterError, match=r"default.*small"):
        load_images(str(tmp_path))
    assert len(load_images(str(tmp_path / "small"))) == 2


@pytest.mark.parametrize("label", ["labels", "fine_label", "class", "target"])
@pytest.mark.parametrize("image", ["image", "img"])
def test_columns_of_other_names(image, label, tmp_path):
    file = tmp_path / "train-0.parquet"
    write_parquet(file, [1, 2, 3], [0, 1, 1])
    pq.write_table(pq.read_table(file).rename_columns([image, label]), file)
    images = load_images(str(tmp_path))
    assert grays(images) == [1, 2, 3]
    assert images.labels.tolist() == [0, 1, 1]


def test_only_texts_called_label_are_refused(tmp_path):
    file = tmp_path / "train-0.parquet"
    write_parquet(file, [1, 2], ["cat", "dog"])
    with pytest.raises(DataError, match="whole numbers"):
        load_images(str(tmp_path))
    pq.write_table(pq.read_table(file).rename_columns(["img", "class"]), file)
    assert load_images(str(tmp_path)).labels is None


def test_tables_are_read_next_to_a_few_pictures(tmp_path):
    """Such as the hub's repository of a set, with a figure of its page."""
    write(tmp_path, "data/train-00000-of-00002", "data/train-00001-of-00002")
    write_folder(tmp_path, {"assets": [9]})
    images = load_images(str(tmp_path))
    assert grays(images) == [0, 0, 1, 1]
    assert "assets" in " ".join(images.notes)


@pytest.mark.parametrize("folder", ["a*b[1]", "my::set", "price $HOME", "~"])
def test_changed_parquet_files_are_read_again(folder, tmp_path):
    """With the signs of patterns in their names, and within the same time."""
    file = tmp_path / folder / "train-[0]*.parquet"
    for values in ([1, 2, 3], [4, 5, 6]):
        write_parquet(file, values, [0, 1, 1])
        os.utime(file, (1e9, 1e9))
        assert grays(load_images(str(file.parent))) == values
