"""Image sets by name and path: images, labels, variants, long tails; and what is said where there
are none.
"""

import hashlib
import io
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from vision_cases import write_folder, write_parquet

from dystress_text.errors import DataError, ParameterError
from dystress_text.io.prepared_data import Manifest, write_manifest
from vision.data.images import KNOWN_MEAN_STD, DecodedImages, NoAccuracyError, mean_std
from vision.data.loading import load_images, load_test
from vision.data.long_tail import long_tail_counts, long_tail_indices
from vision.data.shapes import make_shapes


def test_class_folders(tmp_path):
    write_folder(tmp_path, {"cat": [10, 20], "dog": [30]}, side=16)
    images = load_images(str(tmp_path))
    assert (images.name, images.classes, images.size, images.variant) == (
        tmp_path.name,
        ("cat", "dog"),
        16,
        None,
    )
    assert (images.pixels[:, 0, 0, 0].tolist(), images.labels.tolist()) == ([10, 20, 30], [0, 0, 1])
    part = images.subset([2, 0])
    assert (part.pixels[:, 0, 0, 0].tolist(), part.labels.tolist()) == ([30, 10], [1, 0])


JUNK = (
    ".ipynb_checkpoints",
    ".Trash-1000",
    "@eaDir",
    "__MACOSX",
    "#recycle",
    "lost+found",
    "$RECYCLE.BIN",
    "System Volume Information",
)


def test_what_systems_leave_is_no_class_and_no_image(tmp_path, recwarn):
    folder = tmp_path / ".cache" / "set"  # what lies above the folder says nothing
    files = ["._0.png", ".0.png", ".DS_Store", "Thumbs.db", "desktop.ini"]
    write_folder(
        folder,
        {
            f"train/{name}": [10]
            for name in ("cat", "dog", *JUNK, *(f"cat/{junk}" for junk in JUNK))
        },
    )
    for name in files:
        (folder / "train" / "dog" / name).write_bytes(b"\0\5\x16\7")
        (folder / "train" / name).write_bytes(b"\0\5\x16\7")
    images = load_images(str(folder))
    assert (images.classes, len(images)) == (("cat", "dog"), 2)
    write_parquet(tmp_path / "tables" / "train-0.parquet", [1, 2, 3], [0, 1, 1])
    for junk in JUNK:
        write_parquet(tmp_path / "tables" / junk / "train-1.parquet", [4], [0])
    (tmp_path / "tables" / "._train-0.parquet").write_bytes(b"\0\5\x16\7")
    assert len(load_images(str(tmp_path / "tables"))) == 3
    assert list(recwarn) == []


@pytest.mark.parametrize(
    ("train", "test"),
    [("train", "Test"), ("Train", "Valid"), ("TRAIN", "validation"), ("train", "val")],
)
def test_splits_are_found_by_their_name_in_any_case(train, test, tmp_path):
    write_folder(
        tmp_path / "classes", {f"{train}/b": [10, 20], f"{train}/a": [30], f"{test}/b": [40]}
    )
    write_folder(tmp_path / "flat", {train: [30, 10, 20], test: [40]})
    for layout, labels in (("classes", [[0, 1, 1], [1]]), ("flat", None)):
        splits = [load_images(str(tmp_path / layout), split) for split in ("train", "test")]
        assert [images.pixels[:, 0, 0, 0].tolist() for images in splits] == [[30, 10, 20], [40]]
        assert labels is None or [images.labels.tolist() for images in splits] == labels


@pytest.mark.parametrize("test", ["Test", "val"])
def test_a_test_split_among_classes_is_not_trained_on(test, tmp_path):
    write_folder(tmp_path, {"cat": [1, 2], "dog": [3], f"{test}/cat": [4]})
    with pytest.raises(
        ParameterError, match=rf"no train split .* it has {test} alone; move .* into train"
    ):
        load_images(str(tmp_path))
    write_folder(tmp_path / "two", {"Train/a": [1, 2], "train/a": [3], "test": [4]})
    with pytest.raises(DataError, match="has both Train and train"):
        load_images(str(tmp_path / "two"))


def test_prepared_sets_and_their_long_tail(tmp_path):
    """Ten classes of a hundred grays each, prepared as CIFAR-10."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 100))
    root, folder = tmp_path, tmp_path / "cifar10"
    write_parquet(
        folder / "train-00000-of-00001.parquet", [k % 250 for k in range(1000)], labels.tolist()
    )
    write_parquet(folder / "test-00000-of-00001.parquet", [1] * 10, list(range(10)))
    write_manifest(folder, Manifest("cifar10", "here", "tiny copy"))
    found = load_images("cifar10", data_dir=str(root))
    assert (found.name, found.variant, len(found)) == ("cifar10", "tiny copy", 1000)
    tail = load_images("cifar10-lt", data_dir=str(root))
    kept = long_tail_indices(labels)
    assert (tail.name, tail.variant) == ("cifar10_lt", "tiny copy, long tail of ratio 0.01")
    assert torch.bincount(tail.labels).tolist() == [100, 59, 35, 21, 12, 7, 4, 2, 1, 1]
    assert tail.pixels[:, 0, 0, 0].tolist() == [k % 250 for k in kept.tolist()]
    assert len(load_images("cifar10_lt", "test", str(root))) == 10
    assert mean_std(tail) == KNOWN_MEAN_STD["cifar10"]


def test_a_list_chooses_the_training_images(tmp_path):
    """Prepared as ImageNet100 in a folder elsewhere, with lines as published lists have them."""
    squares = {
        "train/n02": [10, 20, 30],
        "train/n01": [40, 50, 60],
        "val/n01": [70],
        "val/n02": [80],
    }
    write_folder(tmp_path / "own", squares)
    (tmp_path / "imagenet100").mkdir()
    (tmp_path / "imagenet100" / "classes.txt").write_text("n02\nn01\n")
    write_manifest(
        tmp_path / "imagenet100", Manifest("imagenet100", "", folder=str(tmp_path / "own"))
    )
    listed = tmp_path / "LT.txt"
    for lines, name in (
        ("train/n01/2.png 0\ntrain/n02/1.png 1\ntrain/n01/0.png 0\n", "imagenet100_lt"),
        ("n02/1.png\r\nn01/0.png\n\nn01/2.png", str(tmp_path / "own")),
    ):
        listed.write_text(lines)
        images = load_images(name, "train", str(tmp_path), train_list=str(listed))
        classes = [images.classes[label] for label in images.labels]
        grays = images.pixels[:, 0, 0, 0].tolist()
        assert sorted(zip(classes, grays, strict=True)) == [("n01", 40), ("n01", 60), ("n02", 20)]
        assert images.variant == "listed in LT.txt, 3 images, 1 to 2 a class"


def test_positions_choose_the_training_images_of_any_set(tmp_path):
    """As the splits of CIFAR are published: an array of positions, in any order."""
    folder, listed = tmp_path / "shards", tmp_path / "split1.npy"
    folder.mkdir()
    write_parquet(folder / "train-0.parquet", [10, 20, 30, 40, 50], [0, 1, 0, 1, 1])
    np.save(listed, np.array([4, 1, 2], dtype=np.int32))
    images = load_images(str(folder), "train", train_list=str(listed))
    assert images.pixels[:, 0, 0, 0].tolist() == [20, 30, 50]
    assert (images.labels.tolist(), images.variant) == (
        [1, 0, 1],
        "listed in split1.npy, 3 images, 1 to 2 a class",
    )
    for bad in (
        np.array([0, 5]),
        np.array([-1, 2]),
        np.array([0.0, 1.0]),
        np.array([[0, 1]]),
        np.array([{}]),
        np.array([], int),
        b"no",
        b"",
    ):
        if isinstance(bad, bytes):
            listed.write_bytes(bad)
        else:
            np.save(listed, bad, allow_pickle=True)
        with pytest.raises(
            ParameterError, match=r"^[^\n]*split1.npy[^\n]*(from 0 to 4|cannot be read)[^\n]*$"
        ):
            load_images(str(folder), "train", train_list=str(listed))


@pytest.mark.parametrize("kind", ["names", "numbers"])
def test_classes_of_a_test_split_are_those_of_training_by_name(kind, tmp_path):
    """In another order, and without one of them; a class that training does not have is refused."""
    names = {"names": ["cat", "dog", "eel"], "numbers": None}[kind]
    write_parquet(tmp_path / "train-0.parquet", [1, 2, 3], [0, 1, 2], names)
    train = load_images(str(tmp_path))
    given = [2, 1] if names else [0, 1]
    write_parquet(tmp_path / "test-0.parquet", [5, 6], given, names and names[::-1])
    test = load_test(train, str(tmp_path))
    assert (test.labels.tolist(), test.classes) == ([0, 1], train.classes)
    write_parquet(tmp_path / "test-0.parquet", [5, 6], [0, 3], names and [*names, "fox"])
    with pytest.raises(DataError, match=f"do not have, such as {'fox' if names else '3'}$"):
        load_test(train, str(tmp_path))


@pytest.mark.parametrize("layout", ["folders", "minus one", "no column"])
def test_the_validation_split_is_the_test_where_that_has_no_labels(layout, tmp_path):
    """Kaggle's and ImageNet's folders, and the hub's parquet files."""
    if layout == "folders":
        squares = {"train/a": [1, 2], "train/b": [3], "test": [4, 5], "val/b": [6], "val/a": [7]}
        write_folder(tmp_path, squares)
    else:
        write_parquet(tmp_path / "train-0.parquet", [1, 2, 3], [0, 0, 1])
        write_parquet(tmp_path / "validation-0.parquet", [7, 6], [0, 1])
        write_parquet(tmp_path / "test-0.parquet", [4, 5], [-1, -1])
        if layout == "no column":
            file = tmp_path / "test-0.parquet"
            pq.write_table(pq.read_table(file).drop_columns("label"), file)
    train = load_images(str(tmp_path))
    validation = "val" if layout == "folders" else "validation-0.parquet"
    with pytest.warns(UserWarning, match=f"test.* has no labels, so {validation} is taken as"):
        test = load_test(train, str(tmp_path))
    assert sorted(zip(test.labels.tolist(), test.pixels[:, 0, 0, 0].tolist(), strict=True)) == [
        (0, 7),
        (1, 6),
    ]
    (tmp_path / validation).rename(tmp_path / f".{validation}")
    with pytest.raises(NoAccuracyError, match=r"test images of .* have no labels"):
        load_test(train, str(tmp_path))


def test_labels_that_are_words_are_called_so(tmp_path):
    write_parquet(tmp_path / "train-0.parquet", [1, 2], ["cat", "dog"])
    with pytest.raises(DataError, match="labels are whole numbers, and column label has string"):
        load_images(str(tmp_path))
    write_parquet(tmp_path / "train-0.parquet", [1, 2], [0, -1])
    with pytest.raises(DataError, match="has rows without a class"):
        load_images(str(tmp_path))


def test_one_of_several_configurations_is_to_be_named(tmp_path):
    for name in ("default", "small"):
        write_parquet(tmp_path / name / "train-0.parquet", [1, 2], [0, 1])
    with pytest.raises(ParameterError, match=r"name one of the folders .*default, .*small$"):
        load_images(str(tmp_path))
    assert len(load_images(str(tmp_path / "small"))) == 2


def test_files_of_any_name_and_other_endings(tmp_path):
    """Names that are not UTF-8, and what Pillow reads besides JPEG and PNG."""
    write_folder(tmp_path, {"a": [10], "b": [20, 30]})
    odd = os.fsencode(tmp_path / "a") + b"/caf\xe9.png"
    os.rename(tmp_path / "a" / "0.png", odd)
    for number, ending in enumerate(("gif", "jfif", "ppm")):
        Image.new("RGB", (8, 8), (200, 200, 200)).save(
            tmp_path / "b" / f"{number + 7}.{ending}", {"jfif": "JPEG"}.get(ending)
        )
    images = load_images(str(tmp_path))
    assert images.pixels[:, 0, 0, 0].tolist() == [10, 20, 30, 200, 200, 200]
    before = images.files_id
    os.rename(odd, odd.replace(b"\xe9", b"\xe8"))
    assert load_images(str(tmp_path)).files_id != before
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "0.avif").write_bytes(b"")
    with pytest.raises(
        DataError, match=r"c is a class without images of a known .* it has 0\.avif"
    ):
        load_images(str(tmp_path))


def test_corrupt_images_stop_or_are_counted(tmp_path):
    write_folder(tmp_path, {"a": [1, 2, 3], "b": [4, 5]})
    path = tmp_path / "a" / "1.png"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DataError, match=r"1\.png cannot be decoded.*skip_corrupt"):
        load_images(str(tmp_path))
    with pytest.warns(UserWarning, match=r"1 of 5 images .* are corrupt and left out.*1\.png"):
        images = load_images(str(tmp_path), skip_corrupt=True)
    assert (images.corrupt, images.labels.tolist()) == (1, [0, 0, 1, 1])
    assert images.pixels[:, 0, 0, 0].tolist() == [1, 3, 4, 5]


def test_bad_folders_and_names_are_one_line(tmp_path):
    pq.write_table(
        pa.table({"img": [{"bytes": b"broken"}] * 2, "label": [0, 1]}), broken := io.BytesIO()
    )
    write_folder(tmp_path / "empty", {"a": [1, 2], "b": []})
    write_folder(tmp_path / "mixed", {"a": [1, 2], ".": [1]})
    for name, content in (("cut", b"PAR1 nothing"), ("pixels", broken.getvalue())):
        (tmp_path / name).mkdir()
        (tmp_path / name / "train-0.parquet").write_bytes(content)
    for name, message in (
        ("empty", "b is a class without images$"),
        ("mixed", "images next to class folders.*$"),
        ("cut", r"train-0\.parquet is damaged.*$"),
        ("pixels", r"train-0\.parquet, row 0 cannot be decoded.*$"),
    ):
        with pytest.raises(DataError, match=message):
            load_images(str(tmp_path / name))
    with pytest.raises(ParameterError, match=r"dataset: 'cifar11' .* known are cifar10, "):
        load_images("cifar11")
    with pytest.raises(ParameterError, match=r"python vision/prepare.py cifar10"):
        load_images("cifar10", data_dir=str(tmp_path))
    write_folder(tmp_path / "folder", {"a": [1, 2]})
    with pytest.raises(ParameterError, match="has no test split"):
        load_images(str(tmp_path / "folder"), "test")


def test_mean_and_std():
    pixels = torch.randint(0, 256, (2500, 3, 4, 4), dtype=torch.uint8)
    pixels[:, 2] = 51
    mean, std = mean_std(DecodedImages(name="mine", pixels=pixels, size=4))
    values = pixels.double() / 255
    assert mean == pytest.approx(values.mean((0, 2, 3)).tolist(), abs=1e-6)
    assert std == pytest.approx(
        [*values[:, :2].std((0, 2, 3), correction=0).tolist(), 1 / 255], abs=1e-5
    )
    assert (
        mean_std(DecodedImages(name="cifar100-lt", pixels=pixels, size=4))
        == KNOWN_MEAN_STD["cifar100"]
    )


def test_shapes_are_drawn_the_same_each_time():
    train, test = make_shapes("train"), make_shapes("test")
    assert torch.bincount(train.labels).tolist() == [256] * 10
    assert torch.equal(load_images("shapes", "test").pixels, test.pixels)
    assert not torch.equal(train.pixels, test.pixels)


@pytest.mark.parametrize(("n_max", "classes", "total"), [(5000, 10, 12_406), (500, 100, 10_847)])
def test_totals_are_those_of_the_paper(n_max, classes, total):
    counts = long_tail_counts(n_max, classes)
    assert (counts[0], counts[-1], sum(counts)) == (n_max, n_max // 100, total)


def test_the_choice_of_a_long_tail_never_changes_and_the_smallest_class_is_the_measure():
    """It is integers and SHA-256, the same on every machine."""
    indices = long_tail_indices((np.arange(50_000) % 10).astype(">u2"))
    known = "80ff317560e7170425dac3f73b121b8d385a22b1342de4f279268a2133725c71"
    assert hashlib.sha256(indices.astype("<i8").tobytes()).hexdigest() == known
    few = np.array([0] * 100 + [1] * 300)
    assert np.bincount(few[long_tail_indices(few)]).tolist() == [100, 1]
    with pytest.raises(DataError, match="no image of the last class"):
        long_tail_counts(99, 10)


@pytest.mark.parametrize("name", ["x::y", "$HOME", "a*b[1]"])
def test_parquet_files_of_any_name_are_read_again_when_they_change_within_their_time(
    tmp_path, name
):
    for values in ([1, 2, 3], [4, 5, 6]):
        write_parquet(file := tmp_path / name / f"train-{name}.parquet", values, [0, 1, 1])
        os.utime(file, (1e9, 1e9))
        assert [int(image[0, 0, 0]) for image in load_images(str(tmp_path / name)).pixels] == values
