"""Parts of the training images: lists in the forms in which people write them, and long tails."""

import hashlib
from pathlib import Path

import numpy as np
import pytest
import torch
from vision_cases import grays, write_folder, write_parquet

from dystress_text.errors import DataError, ParameterError
from dystress_text.io.prepared_data import Manifest, write_manifest
from vision.data.images import KNOWN_MEAN_STD, mean_std
from vision.data.loading import load_images, load_test
from vision.data.subsets import long_tail_counts, long_tail_indices
from vision.resnet import Square

ONE_LINE = r"^train_list: [^\n]*$"


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Return a set of six images, by a path from the working directory."""
    write_folder(tmp_path / "own", {"train/n02": [10, 20, 30], "train/n01": [40, 50, 60]})
    monkeypatch.chdir(tmp_path)
    return "own"


def select(images, content, **options):
    """Return the images that a list selects, which is a text or positions."""
    file = Path("LT.txt")
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        file = file.with_suffix(".npy")
        np.save(file, content)
    return load_images(images, train_list=str(file), **options)


# lists of the last image of n01 and the second of n02
FORMS = {
    "published": b"n01/2.png 0\nn02/1.png 1\n",
    "byte order mark": b"\xef\xbb\xbftrain/n01/2.png\ntrain/n02/1.png",
    "of Windows": "\ufefftrain\\n01\\2.png 0\r\ntrain\\n02\\1.png 1\r\n".encode("utf-16-le"),
    "absolute": b"ROOT/own/train/n01/2.png\nROOT/own/train/../train/n02/1.png 1",
    "dots": b"./train/n01/2.png\n../train/n02/1.png",
    "comma": b"n01/2.png,0\nn02/1.png, cat",
    "table": b'path,label,split\n"n01/2.png",0,train\n"n02/1.png",1,train',
    "last column": b",label,path\n0,5,n01/2.png\n1,7,n02/1.png",
    "set's folder": b"own/train/n01/2.png\nown/train/n02/1.png",
    "tab": b"file\tclass\nn01/2.png\ta cat\nn02/1.png\ta dog",
    "positions": np.array([4, 2], dtype=np.int32),
}


@pytest.mark.parametrize("content", FORMS.values(), ids=FORMS)
def test_forms_of_lists(content, own):
    if isinstance(content, bytes):
        content = content.replace(b"ROOT", bytes(Path.cwd()))
    images = select(own, content)
    assert grays(images) == [60, 20]
    assert images.labels.tolist() == [0, 1]


BAD = {
    "another class": b"train/cow/1.jpg 3",
    "another encoding": b"\xff",
    "no header": b"n01/2\nn02/1.png",
    "two in a line": b"n01/2.png n02/1.png",
    "empty": b"\n",
    "an object": np.array([{}]),
    "no position": np.array([], dtype=int),
    "before the first": np.array([-1, 2]),
    "after the last": np.array([2, 6]),
    "fractions": np.array([1.0]),
    "a table": np.array([[1], [2]]),
}


@pytest.mark.parametrize("content", BAD.values(), ids=BAD)
def test_bad_lists_are_one_line(content, own):
    with pytest.raises(ParameterError, match=ONE_LINE):
        select(own, content)


def test_an_archive_is_no_array(own):
    with Path("LT.npy").open("wb") as file:
        np.savez(file, np.array([1]))
    with pytest.raises(ParameterError, match=ONE_LINE):
        load_images(own, train_list="LT.npy")


@pytest.mark.parametrize("content", [b"n01/0.png\nn02/0.png\nn01/0.png\n\n", np.array([3, 0, 0])])
def test_repeated_lines_repeat_images(content, own):
    """As people oversample a class."""
    assert grays(select(own, content)) == [40, 40, 10]


def test_names_that_look_like_more_than_a_path(tmp_path, own):
    file = tmp_path / "own" / "train" / "n01" / "0.png"
    (tmp_path / "own" / "train" / "a, b").mkdir()
    file.rename(tmp_path / "own" / "train" / "a, b" / "x\\1 2.png")
    assert grays(select(own, b"a, b/x\\1 2.png\n")) == [40]


def test_lists_of_a_prepared_set(tmp_path, own):
    """ImageNet100, prepared from a folder elsewhere."""
    prepared = tmp_path / "imagenet100"
    prepared.mkdir()
    (prepared / "classes.txt").write_text("n02\nn01\n")
    write_manifest(prepared, Manifest("imagenet100", "", folder=str(tmp_path / "own")))
    published = b"train/n01/2.png 0\ntrain/n02/1.png 1\ntrain/n01/0.png 0\n"
    images = select("imagenet100_lt", published, data_dir=str(tmp_path))
    assert images.classes == ("n02", "n01")
    assert images.labels.tolist() == [0, 1, 1]
    assert grays(images) == [20, 40, 60]
    assert images.variant == "listed in LT.txt, 3 images, 1 to 2 a class"
    write_folder(tmp_path / "own", {"val/n01": [70]})  # without n02
    assert load_test(images, "imagenet100", str(tmp_path)).labels.tolist() == [1]


def test_parquet_files_have_positions_alone(tmp_path, own):
    write_parquet(tmp_path / "cifar" / "train-0.parquet", [10, 20, 30, 40], [0, 1, 0, 1])
    assert grays(select("cifar", np.array([3, 1]))) == [20, 40]
    with pytest.raises(ParameterError, match="parquet"):
        select("cifar", b"0.png")


@pytest.mark.parametrize(("n_max", "classes", "total"), [(5000, 10, 12_406), (500, 100, 10_847)])
def test_totals_of_long_tails_are_the_papers(n_max, classes, total):
    counts = long_tail_counts(n_max, classes)
    assert counts[0] == n_max
    assert counts[-1] == n_max // 100
    assert sum(counts) == total


def test_the_choice_of_a_long_tail_never_changes():
    """It is integers and SHA-256, the same on every machine; the smallest class is n_max."""
    indices = long_tail_indices((np.arange(50_000) % 10).astype(">u2"))
    known = "80ff317560e7170425dac3f73b121b8d385a22b1342de4f279268a2133725c71"
    assert hashlib.sha256(indices.astype("<i8").tobytes()).hexdigest() == known
    few = np.array([0] * 100 + [1] * 300)
    assert np.bincount(few[long_tail_indices(few)]).tolist() == [100, 1]


def test_a_long_tail_has_images_of_each_class():
    assert long_tail_counts(100, 1) == [100]
    with pytest.raises(DataError, match="99"):
        long_tail_counts(99, 10)


def test_the_long_tail_of_a_prepared_set(tmp_path):
    """Ten classes of a hundred grays each, prepared as CIFAR-10."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 100))
    values = [k % 250 for k in range(1000)]
    folder = tmp_path / "cifar10"
    write_parquet(folder / "train-00000-of-00001.parquet", values, labels.tolist())
    write_parquet(folder / "test-00000-of-00001.parquet", [1] * 10, list(range(10)))
    write_manifest(folder, Manifest("cifar10", "here", "tiny copy"))
    assert load_images("cifar10", data_dir=str(tmp_path)).title == "cifar10 (tiny copy)"
    tail = load_images("cifar10-lt", data_dir=str(tmp_path))
    assert tail.title == "cifar10_lt (tiny copy, long tail of ratio 0.01)"
    assert torch.bincount(tail.labels).tolist() == [100, 59, 35, 21, 12, 7, 4, 2, 1, 1]
    assert grays(tail) == [k % 250 for k in long_tail_indices(labels).tolist()]
    assert mean_std(tail, Square(8, 1.0)) == KNOWN_MEAN_STD["cifar10"]
    assert len(load_test(tail, "cifar10_lt", str(tmp_path))) == 10
