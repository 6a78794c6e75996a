"""Image sets by name and path: images, labels, variants and long tails, and errors of one line."""

import hashlib

import numpy as np
import pytest
import torch
from vision_cases import noise, write_folder, write_parquet

from dystress_text.errors import DataError, ParameterError
from dystress_text.io.prepared_data import Manifest, write_manifest
from vision.data import loading
from vision.data.decoding import decode
from vision.data.images import KNOWN_MEAN_STD, DecodedImages, NoAccuracyError, mean_std
from vision.data.loading import load_images, load_test
from vision.data.subsets import long_tail_counts, long_tail_indices
from vision.resnet import Square


def grays(images):
    return images.pixels[:, 0, 0, 0].tolist()


@pytest.mark.parametrize(("train", "test"), [("train", "Test"), ("TRAIN", "validation")])
def test_splits_of_class_folders(train, test, tmp_path):
    squares = {f"{train}/b": [10, 20], f"{train}/a": [30], f"{test}/b": [40]}
    write_folder(tmp_path, squares)
    (tmp_path / train / "b" / "._0.png").write_bytes(b"a file browser's")
    images = load_images(str(tmp_path))
    assert images.classes == ("a", "b")
    assert grays(images) == [30, 10, 20]
    assert images.labels.tolist() == [0, 1, 1]
    assert grays(images.subset([2, 0])) == [20, 30]
    assert load_test(images, str(tmp_path)).labels.tolist() == [1]


def test_prepared_sets_and_their_long_tail(tmp_path):
    """Ten classes of a hundred grays each, prepared as CIFAR-10."""
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 100))
    folder = tmp_path / "cifar10"
    values = [k % 250 for k in range(1000)]
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


def test_classes_of_the_test_split_are_matched_by_name(tmp_path):
    write_parquet(tmp_path / "train-0.parquet", [1, 2, 3], [0, 1, 2], ["cat", "dog", "eel"])
    train = load_images(str(tmp_path))
    write_parquet(tmp_path / "test-0.parquet", [5, 6], [2, 1], ["eel", "dog", "cat"])
    test = load_test(train, str(tmp_path))
    assert test.labels.tolist() == [0, 1]
    assert test.classes == train.classes
    write_parquet(tmp_path / "test-0.parquet", [5, 6], [0, 3], ["eel", "dog", "cat", "fox"])
    with pytest.raises(DataError, match="fox"):
        load_test(train, str(tmp_path))


def test_val_is_the_test_split_if_test_has_no_labels(tmp_path):
    write_parquet(tmp_path / "train-0.parquet", [1, 2, 3], [0, 0, 1])
    write_parquet(tmp_path / "validation-0.parquet", [7, 6], [0, 1])
    write_parquet(tmp_path / "test-0.parquet", [4, 5], [-1, -1])  # as the hub has it
    train = load_images(str(tmp_path))
    test = load_test(train, str(tmp_path))
    assert grays(test) == [7, 6]
    assert "validation" in " ".join(test.notes)
    (tmp_path / "validation-0.parquet").unlink()
    with pytest.raises(NoAccuracyError, match="test images"):
        load_test(train, str(tmp_path))


def test_corrupt_images_stop_or_are_left_out(tmp_path):
    write_folder(tmp_path, {"a": [1, 2, 3], "b": [4, 5]})
    path = tmp_path / "a" / "1.png"
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DataError, match=r"1\.png.*skip_corrupt"):
        load_images(str(tmp_path))
    images = load_images(str(tmp_path), skip_corrupt=True)
    assert images.corrupt == 1
    assert "1.png" in " ".join(images.notes)
    assert images.labels.tolist() == [0, 0, 1, 1]
    assert grays(images) == [1, 3, 4, 5]


def test_a_large_jpeg_is_checked_at_a_part_of_its_size(tmp_path, monkeypatch):
    noise(1800, 2400).save(tmp_path / "0.jpg")
    noise(1800, 2400).save(tmp_path / "1.jpg")
    widths = []

    def seen(*file, **options):
        widths.append(decode(*file, **options).width)

    monkeypatch.setattr(loading, "decode", seen)
    load_images(str(tmp_path), skip_corrupt=True)
    assert widths == [300, 300]


def test_bad_folders_are_named(tmp_path):
    write_folder(tmp_path / "empty", {"a": [1, 2], "b": []})
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "train-0.parquet").write_bytes(b"PAR1 nothing")
    for name in ("empty", "cut"):
        with pytest.raises(DataError, match=rf"^[^\n]*{name}[^\n]*$"):
            load_images(str(tmp_path / name))
    with pytest.raises(ParameterError, match=r"^dataset: [^\n]*$"):
        load_images("cifar11")


def test_mean_and_std():
    pixels = torch.randint(0, 256, (250, 3, 4, 4), dtype=torch.uint8)
    pixels[:, 2] = 51
    mean, std = mean_std(DecodedImages(name="mine", pixels=pixels), Square(4, 1.0))
    values = pixels.double() / 255
    deviations = values[:, :2].std((0, 2, 3), correction=0).tolist()
    assert mean == pytest.approx(values.mean((0, 2, 3)).tolist(), abs=1e-6)
    assert std == pytest.approx([*deviations, 1 / 255], abs=1e-5)


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
