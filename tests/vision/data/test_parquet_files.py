"""Parquet files: which are a split's, whether all are there, and their columns."""

import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from vision_cases import grays, write_folder, write_parquet

from dystress_text.errors import DataError, ParameterError
from vision.data.images import EncodedImages
from vision.data.loading import load_images
from vision.resnet import Square


def write(root, names):
    """Write a file under each name, the first one with the gray 0."""
    for gray, name in enumerate(names.split()):
        write_parquet(root / f"{name}.parquet", [gray, gray], [0, 1])


@pytest.mark.parametrize(
    ("names", "error", "named"),
    [
        ("train-00000-of-00005 train-00002-of-00005", DataError, "00005"),
        ("default/train/0000 default/train/0002", DataError, "0002"),
        ("train-0-of-1 train-0-of-2 train-1-of-2", DataError, "train-0-of-1"),
        ("train-0-of-1 train-0-of-1-0123456789abcdef", DataError, "cdef"),
        ("train train-0-of-1", DataError, "train"),
        ("train_1 train_3", DataError, "train_3"),
        ("default/train/0001", DataError, "0001"),
        ("train-clean-0 train-noisy-0", DataError, "train-noisy"),
        ("default/train/0000 small/train/0000", ParameterError, "default.*small"),
    ],
)
def test_incomplete_and_unclear_sets_are_refused(names, error, named, tmp_path):
    write(tmp_path, names)
    with pytest.raises(error, match=named):
        load_images(str(tmp_path))


@pytest.mark.parametrize(
    "names",
    [
        "train-00000-of-00002 train-00001-of-00002 test-00000-of-00001",
        "default/train/0000 default/train/0001 default/test/0000",
        "train-0-of-2-0123456789abcdef train-1-of-2-fedcba9876543210 test",
        "TRAIN_1 TRAIN_2 Test",
        "train-part-0 train-part-1 validation",
        "training-0 training-1 dev",
        "own-train-0 own-train-1 own-test",
        "train/a7 train/b3 test/c5",
    ],
)
def test_layouts(names, tmp_path):
    write(tmp_path, f"{names} testmini-0 test-mini-0 trains-0 extra-0")
    train = load_images(str(tmp_path))
    test = load_images(str(tmp_path), "test")
    assert grays(train) == [0, 0, 1, 1]
    assert grays(test) == [2, 2]
    notes = " ".join(train.notes + test.notes)
    for name in ("testmini", "test-mini", "trains", "extra"):
        assert name in notes


@pytest.mark.parametrize(
    ("image", "label"),
    [("image", "labels"), ("img", "fine_label"), ("image", "class"), ("image", "target")],
)
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


@pytest.mark.parametrize(
    ("labels", "names", "named"),
    [([0, 3], ["cat", "dog"], "label 3"), ([0, None], None, "label None"), ([-1, 0], None, "-1")],
)
def test_labels_that_are_no_classes_are_refused(labels, names, named, tmp_path):
    write_parquet(tmp_path / "train-0.parquet", [1, 2], labels, names)
    with pytest.raises(DataError, match=named):
        load_images(str(tmp_path))


def test_rows_without_an_image_are_refused(tmp_path):
    file = tmp_path / "train.parquet"
    write_parquet(file, [1, 2], [0, 1])
    table = pq.read_table(file)
    rows = [*table.slice(0, 1).to_pylist(), {"img": None, "label": 1}]
    pq.write_table(pa.Table.from_pylist(rows, table.schema), file)
    with pytest.raises(DataError, match="rows without an image"):
        load_images(str(tmp_path), skip_corrupt=True)


def test_a_damaged_file_is_named(tmp_path):
    write(tmp_path, "train-0 train-1")
    (tmp_path / "train-1.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(DataError, match=r"^[^\n]*train-1[^\n]*$"):
        load_images(str(tmp_path))


def test_tables_are_read_next_to_a_few_pictures(tmp_path):
    """Such as the hub's repository of a set, with a figure of its page."""
    write(tmp_path, "data/train-00000-of-00002 data/train-00001-of-00002")
    write_folder(tmp_path, {"assets": [9]})
    images = load_images(str(tmp_path))
    assert grays(images) == [0, 0, 1, 1]
    assert "assets" in " ".join(images.notes)


def test_a_part_of_large_pictures(tmp_path):
    for k in range(3):
        file = tmp_path / f"train-0000{k}-of-00003.parquet"
        values = [50 * k + i for i in range(4)]
        write_parquet(file, values, [0, 1, 1, 0], ["tick", "tock"], side=100)
    pictures = load_images(str(tmp_path))
    assert isinstance(pictures, EncodedImages)
    assert pictures.classes == ("tick", "tock")
    part = pictures.subset([11, 5, 0]).subset([1, 2])
    assert part.labels.tolist() == [1, 0]
    assert part.squares(np.array([1, 0]), Square(16, 0.875))[:, 0, 0, 0].tolist() == [0, 51]
    assert part.files.name(0).endswith("row 5")


@pytest.mark.parametrize("folder", ["a*b[1]", "my::set", "price $HOME", "~"])
def test_changed_parquet_files_are_read_again(folder, tmp_path):
    """With the signs of patterns in their names, and within the same time."""
    file = tmp_path / folder / "train-[0]*.parquet"
    for values in ([1, 2, 3], [4, 5, 6]):
        write_parquet(file, values, [0, 1, 1])
        os.utime(file, (1e9, 1e9))
        assert grays(load_images(str(file.parent))) == values
