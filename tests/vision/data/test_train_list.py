"""Lists that choose training images: the forms in which people write them."""

import numpy as np
import pytest
from vision_cases import write_folder, write_parquet

from dystress_text.errors import ParameterError
from dystress_text.io.prepared_data import Manifest, write_manifest
from vision.data.loading import load_images

ONE_LINE = r"^train_list: [^\n]*$"


def grays(images):
    return images.pixels[:, 0, 0, 0].tolist()


@pytest.fixture
def listed(tmp_path):
    """ImageNet100 prepared from a folder elsewhere; a list of its training images."""
    write_folder(tmp_path / "own", {"train/n02": [10, 20, 30], "train/n01": [40, 50, 60]})
    prepared = tmp_path / "imagenet100"
    prepared.mkdir()
    (prepared / "classes.txt").write_text("n02\nn01\n")
    write_manifest(prepared, Manifest("imagenet100", "", folder=str(tmp_path / "own")))
    return tmp_path / "LT.txt"


def test_published_lists_choose_images(listed):
    listed.write_text("train/n01/2.png 0\ntrain/n02/1.png 1\ntrain/n01/0.png 0\n")
    root = str(listed.parent)
    images = load_images("imagenet100_lt", "train", root, train_list=str(listed))
    assert images.classes == ("n02", "n01")
    assert images.labels.tolist() == [0, 1, 1]
    assert grays(images) == [20, 40, 60]
    assert images.variant == "listed in LT.txt, 3 images, 1 to 2 a class"


BAD = {
    "another class": "train/cow/1.jpg 3",
    "another encoding": "\udcff",
    "no ending": "n01/2\nn02/1.png",  # no header
    "two in a line": "n01/2.png n02/1.png",
}


@pytest.mark.parametrize("lines", BAD.values(), ids=BAD)
def test_bad_lists_are_one_line(lines, listed):
    listed.write_text(lines, errors="surrogateescape")
    with pytest.raises(ParameterError, match=ONE_LINE):
        load_images(str(listed.parent / "own"), train_list=str(listed))


def test_positions_choose_images(tmp_path):
    """As the splits of CIFAR are published: an array of positions, in any order."""
    write_parquet(tmp_path / "train-0.parquet", [10, 20, 30, 40, 50], [0, 1, 0, 1, 1])
    listed = tmp_path / "split1.npy"
    np.save(listed, np.array([4, 1, 2], dtype=np.int32))
    images = load_images(str(tmp_path), train_list=str(listed))
    assert grays(images) == [20, 30, 50]
    assert images.labels.tolist() == [1, 0, 1]
    np.save(listed, np.array([{}]), allow_pickle=True)
    with pytest.raises(ParameterError, match=ONE_LINE):
        load_images(str(tmp_path), train_list=str(listed))


FORMS = {
    "byte order mark": ("\ufefftrain/n01/2.png\ntrain/n02/1.png", "utf-8"),
    "of Windows": ("\ufefftrain\\n01\\2.png 0\r\ntrain\\n02\\1.png 1\r\n", "utf-16-le"),
    "absolute": ("ROOT/own/train/n01/2.png\nROOT/own/train/../train/n02/1.png 1", "utf-8"),
    "dots": ("./train/n01/2.png\n../train/n02/1.png", "utf-8"),
    "comma": ("n01/2.png,0\nn02/1.png, cat", "utf-8"),
    "table": ('path,label,split\n"n01/2.png",0,train\n"n02/1.png",1,train', "utf-8"),
    "last column": (",label,path\n0,5,n01/2.png\n1,7,n02/1.png", "utf-8"),
    "set's folder": ("own/train/n01/2.png\nown/train/n02/1.png", "utf-8"),
    "tab": ("file\tclass\nn01/2.png\ta cat\nn02/1.png\ta dog", "utf-8"),
}


@pytest.mark.parametrize(("text", "encoding"), FORMS.values(), ids=FORMS)
def test_forms_of_lists(text, encoding, listed):
    root = listed.parent
    listed.write_bytes(text.replace("ROOT", str(root)).encode(encoding))
    images = load_images(str(root / "own"), train_list=str(listed))
    assert sorted(grays(images)) == [20, 60]


def test_absolute_paths_of_a_relative_folder(listed, monkeypatch):
    monkeypatch.chdir(listed.parent)
    listed.write_text(f"{listed.parent}/own/train/n01/2.png")
    assert grays(load_images("own", train_list="LT.txt")) == [60]


def test_names_that_look_like_more_than_a_path(tmp_path):
    write_folder(tmp_path / "own", {"train/a, b": [1, 2]})
    (tmp_path / "own" / "train" / "a, b" / "0.png").rename(
        tmp_path / "own" / "train" / "a, b" / "x\\1 2.png"
    )
    listed = tmp_path / "list.txt"
    listed.write_text("a, b/x\\1 2.png\n")
    assert grays(load_images(str(tmp_path / "own"), train_list=str(listed))) == [1]


def test_repeated_lines_repeat_images(listed):
    """As people oversample a class."""
    listed.write_text("n01/0.png\nn02/0.png\nn01/0.png\n\n")
    images = load_images(str(listed.parent / "own"), train_list=str(listed))
    assert sorted(grays(images)) == [10, 40, 40]
    positions = listed.with_suffix(".npy")
    np.save(positions, np.array([5, 0, 5]))
    images = load_images(str(listed.parent / "own"), train_list=str(positions))
    assert len(images) == 3


def test_an_archive_is_no_array(listed):
    positions = listed.with_suffix(".npy")
    with positions.open("wb") as file:
        np.savez(file, np.array([1]))
    with pytest.raises(ParameterError, match=ONE_LINE):
        load_images(str(listed.parent / "own"), train_list=str(positions))
