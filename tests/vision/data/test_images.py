"""Image sets by name and path: their images, labels, variants; and what is said where there are none."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from conftest import SHARED
from PIL import Image
from vision_cases import encoded, write_folder, write_parquet

from dystress_text.errors import DataError, UserError
from dystress_text.files.long_tail import LongTail, long_tail_indices, write_long_tail
from dystress_text.files.prepared_data import Manifest, write_manifest
from vision.data import loading as module
from vision.data.images import KNOWN_MEAN_STD, ImageSet, mean_std
from vision.data.loading import keeps_side, load_images
from vision.data.pictures import PictureFiles


def test_class_folders(tmp_path):
    write_folder(tmp_path, {"cat": [10, 20], "dog": [30]}, side=16)
    found = load_images(str(tmp_path))
    assert (found.classes, found.size, found.pictures, found.variant) == (("cat", "dog"), 16, None, None)
    assert found.labels.tolist() == [0, 0, 1]
    assert found.images[:, 0, 0, 0].tolist() == [10, 20, 30]
    assert found.name == tmp_path.name
    part = found.subset([2, 0])
    assert (len(part), part.labels.tolist()) == (2, [1, 0])
    assert part.images[:, 0, 0, 0].tolist() == [30, 10]
    assert found.subset(torch.tensor([1])).image(0)[0, 0, 0] == 20


def test_divided_folders_number_classes_as_training_does(tmp_path):
    write_folder(tmp_path / "train", {"a": [1, 1], "b": [2], "c": [3]})
    write_folder(tmp_path / "val", {"c": [3]})
    found = load_images(str(tmp_path), "test")
    assert (found.classes, found.labels.tolist()) == (("a", "b", "c"), [2])
    write_folder(tmp_path / "val", {"d": [3]})
    with pytest.raises(DataError, match=r"d: a class that .*train does not have"):
        load_images(str(tmp_path), "test")


def test_files_that_are_passed_over_are_told(tmp_path):
    write_folder(tmp_path, {"a": [10, 20], "b": [30]})
    for place in ("a/x.gif", "b/notes.txt", "list.csv", "a/.hidden"):
        (tmp_path / place).write_bytes(b"x")
    with pytest.warns(UserWarning, match=r"3 files in .* are passed over.*the first: .*list\.csv"):
        assert len(load_images(str(tmp_path))) == 3


def test_at_most_a_thousand_files_are_measured(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(ImageSet, "image", lambda self, row: seen.append(row) or torch.zeros(3, 2, 2))
    mean_std(ImageSet(None, PictureFiles([tmp_path] * 1999), None, (), "mine", None, 2))
    assert len(seen) == 1000


def test_images_without_labels(tmp_path):
    write_folder(tmp_path, {".": [5, 6, 7]})
    found = load_images(str(tmp_path))
    assert (len(found), found.labels, found.classes) == (3, None, ())
    assert found.subset([0]).labels is None


def test_larger_pictures_stay_as_they_are(tmp_path):
    write_folder(tmp_path, {"a": [10, 20], "b": [30]}, side=120)
    found = load_images(str(tmp_path))
    assert (found.images, found.size, len(found)) == (None, 256, 3)
    assert found.image(1).shape == (3, 256, 256)
    assert found.image(1)[0, 0, 0] == 20
    part = found.subset([2, 0])
    assert [part.pictures.content(row).parent.name for row in range(2)] == ["b", "a"]
    assert load_images(str(tmp_path), size=32).size == 32
    assert load_images(str(tmp_path), view=32).size == 37


def test_many_small_images_stay_as_they_are(tmp_path, monkeypatch):
    write_folder(tmp_path, {"a": [10, 20], "b": [30]}, side=16)
    monkeypatch.setattr(module, "MEMORY", 1000)
    found = load_images(str(tmp_path))
    assert (found.images, found.size, found.image(2)[0, 0, 0]) == (None, 16, 30)


@pytest.mark.parametrize(
    ("own", "view", "small"),
    [(32, 32, True), (64, 64, True), (24, 48, True), (64, 32, True), (96, 32, False), (240, 32, False),
     (240, 224, False), (120, 96, False), (32, 224, True)],
)  # fmt: skip
def test_which_images_are_small(own, view, small):
    assert keeps_side(own, view) == small


def test_one_small_image_does_not_reduce_the_others(tmp_path):
    write_folder(tmp_path, {"a": [1], "b": []}, side=16)
    for number in range(3):
        (tmp_path / "b" / f"{number}.png").write_bytes(encoded(7, 300))
    assert load_images(str(tmp_path), view=224).size == 256
    assert load_images(str(tmp_path)).size == 256
    (tmp_path / "a" / "0.png").write_bytes(encoded(7, 300))
    (tmp_path / "b" / "0.png").write_bytes(encoded(7, 16))
    assert load_images(str(tmp_path), view=32).size == 37


def test_parquet_in_the_hubs_layout(tmp_path):
    names = ["tick", "tock"]
    write_parquet(tmp_path / "plain_text" / "train-00000-of-00001.parquet", [3, 4, 5], [0, 1, 1], names)
    write_parquet(tmp_path / "plain_text" / "test-00000-of-00001.parquet", [9], [1], names)
    found = load_images(str(tmp_path))
    assert (found.classes, found.labels.tolist(), found.variant) == (("tick", "tock"), [0, 1, 1], None)
    assert found.images[:, 1, 0, 0].tolist() == [3, 4, 5]
    assert len(load_images(str(tmp_path), "test")) == 1


def test_validation_is_no_part_of_the_test_split(tmp_path):
    for name, gray in (("train", 1), ("validation", 2), ("test", 3)):
        write_parquet(tmp_path / f"{name}-00000-of-00001.parquet", [gray, gray], [0, 1])
    assert load_images(str(tmp_path), "test").images[:, 0, 0, 0].tolist() == [3, 3]
    (tmp_path / "test-00000-of-00001.parquet").unlink()
    assert load_images(str(tmp_path), "test").images[:, 0, 0, 0].tolist() == [2, 2]


def test_parquet_of_small_jpeg_is_a_copy(tmp_path):
    write_parquet(tmp_path / "train-0.parquet", [3, 4], [0, 1], side=32, kind="JPEG")
    found = load_images(str(tmp_path))
    assert (found.variant, found.classes) == ("JPEG copy", ("0", "1"))


@pytest.fixture
def prepared(tmp_path):
    """Ten classes of a hundred grays each, prepared as CIFAR-10."""
    chance = np.random.default_rng(0)
    labels = chance.permutation(np.repeat(np.arange(10), 100)).tolist()
    folder = tmp_path / "cifar10"
    write_parquet(folder / "train-00000-of-00001.parquet", [k % 250 for k in range(1000)], labels)
    write_parquet(folder / "test-00000-of-00001.parquet", [1] * 10, list(range(10)))
    write_manifest(folder, Manifest("cifar10", "here", "tiny copy"))
    return tmp_path, np.array(labels)


def test_prepared_sets_and_their_long_tail(prepared):
    root, labels = prepared
    found = load_images("cifar10", data_dir=str(root))
    assert (found.name, found.variant, len(found)) == ("cifar10", "tiny copy", 1000)
    tail = load_images("cifar10-lt", data_dir=str(root))
    kept = long_tail_indices(labels)
    assert (tail.name, tail.variant) == ("cifar10_lt", "tiny copy")
    assert torch.bincount(tail.labels).tolist() == [100, 59, 35, 21, 12, 7, 4, 2, 1, 1]
    assert tail.images[:, 0, 0, 0].tolist() == [k % 250 for k in kept.tolist()]
    assert len(load_images("cifar10_lt", "test", str(root))) == 10
    assert mean_std(tail) == KNOWN_MEAN_STD["cifar10"]


def test_a_saved_long_tail_is_used(prepared):
    root, labels = prepared
    (root / "cifar10-lt").mkdir()
    indices = long_tail_indices(labels, 0.5, seed=7)
    write_long_tail(root / "cifar10-lt" / "train-indices.txt", LongTail("cifar10-lt", 0.5, 7, indices), labels)
    assert len(load_images("cifar10_lt", data_dir=str(root))) == len(indices)
    (root / "cifar10-lt" / "train-indices.txt").write_text("broken")
    with pytest.raises(DataError, match=r"train-indices\.txt"):
        load_images("cifar10_lt", data_dir=str(root))


def test_long_tails_of_full_sets(tmp_path):
    """12,406 and 10,847 images of 50,000; the images are one file content, so that this is about numbers."""
    for name, classes, count in (("cifar10", 10, 12_406), ("cifar100", 100, 10_847)):
        path = tmp_path / name / "train-00000-of-00001.parquet"
        write_parquet(path, [0], [0], rows=50_000, classes=classes, label="fine_label")
        assert len(load_images(f"{name}_lt", data_dir=str(tmp_path))) == count


def test_prepared_folders_and_class_lists(tmp_path):
    write_folder(tmp_path / "mine" / "train", {"a": [1, 1], "b": [2], "c": [3, 3]})
    write_folder(tmp_path / "mine" / "val", {"a": [1], "b": [2], "c": [3]})
    folder = tmp_path / "data" / "imagenet100"
    folder.mkdir(parents=True)
    (folder / "classes.txt").write_text("c\na\n")
    write_manifest(folder, Manifest("imagenet100", "list", "two classes", folder=str(tmp_path / "mine")))
    found = load_images("imagenet100", data_dir=str(tmp_path / "data"))
    assert (found.classes, found.labels.tolist(), found.variant) == (("c", "a"), [0, 0, 1, 1], "two classes")
    assert found.images[:, 0, 0, 0].tolist() == [3, 3, 1, 1]
    assert load_images("imagenet100", "test", str(tmp_path / "data")).labels.tolist() == [0, 1]


def break_one(root):
    write_folder(root, {"a": [1, 2, 3], "b": [4, 5]})
    path = root / "a" / "1.png"
    path.write_bytes(path.read_bytes()[:40])
    return path


def test_corrupt_images_stop_or_are_counted(tmp_path):
    break_one(tmp_path)
    with pytest.raises(DataError, match=r"1\.png cannot be decoded.*--skip_corrupt"):
        load_images(str(tmp_path))
    with pytest.warns(UserWarning, match=r"1 of 5 images .* are corrupt and left out.*1\.png"):
        found = load_images(str(tmp_path), skip_corrupt=True)
    assert found.corrupt == 1
    assert found.images[:, 0, 0, 0].tolist() == [1, 3, 4, 5]
    assert found.labels.tolist() == [0, 0, 1, 1]


def test_corrupt_files_of_larger_sets(tmp_path, monkeypatch):
    broken = break_one(tmp_path)
    monkeypatch.setattr(module, "MEMORY", 10)
    found = load_images(str(tmp_path))
    with pytest.raises(DataError, match=r"1\.png"):
        found.image(found.pictures.paths.index(broken))
    with pytest.warns(UserWarning, match="1 of 5"):
        found = load_images(str(tmp_path), skip_corrupt=True)
    assert broken not in found.pictures.paths
    assert found.corrupt == 1
    assert found.labels.tolist() == [0, 0, 1, 1]


def test_a_corrupt_first_image_and_too_few_left(tmp_path):
    write_folder(tmp_path, {"a": [1, 2], "b": [3]})
    (tmp_path / "a" / "0.png").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"0\.png .*--skip_corrupt"):
        load_images(str(tmp_path))
    with pytest.warns(UserWarning, match="1 of 3"):
        assert len(load_images(str(tmp_path), skip_corrupt=True)) == 2
    (tmp_path / "b" / "0.png").write_bytes(b"nothing")
    with pytest.raises(DataError, match="too few are left"):
        load_images(str(tmp_path), skip_corrupt=True)


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        ({}, "no images"),
        ({".": [1]}, "one image only"),
        ({"a": [1, 2], "b": []}, "b is a class without images"),
        ({"a": [1, 2], ".": [1]}, "images next to class folders"),
    ],
)
def test_bad_folders_are_one_line(tmp_path, classes, message):
    write_folder(tmp_path, classes)
    with pytest.raises(DataError, match=message) as caught:
        load_images(str(tmp_path))
    assert "\n" not in str(caught.value)


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(UserError, match=r"--dataset: 'cifar11' .* known are cifar10, "):
        load_images("cifar11")
    with pytest.raises(UserError, match=r"dystress prepare cifar10"):
        load_images("cifar10", data_dir=str(tmp_path))
    with pytest.raises(UserError, match="--split: unknown split 'dev'"):
        load_images("cifar10", "dev")
    write_folder(tmp_path / "folder", {"a": [1, 2]})
    with pytest.raises(UserError, match="has no test split"):
        load_images(str(tmp_path / "folder"), "test")
    with pytest.raises(UserError, match="--image_size"):
        load_images(str(tmp_path / "folder"), size=0)
    write_parquet(tmp_path / "rows" / "train-0.parquet", [1, 2], [0, 0])
    with pytest.raises(UserError, match="no parquet files of the test split"):
        load_images(str(tmp_path / "rows"), "test")


def test_bad_parquet_is_named(tmp_path):
    path = tmp_path / "train-0.parquet"
    path.write_bytes(b"PAR1 nothing")
    with pytest.raises(DataError, match=r"train-0\.parquet is damaged"):
        load_images(str(tmp_path))
    pq.write_table(pa.table({"text": ["a"]}), path)
    with pytest.raises(DataError, match="no column of images"):
        load_images(str(tmp_path))
    pq.write_table(pa.table({"img": [{"bytes": b"broken"}] * 2, "label": [0, 1]}), path)
    with pytest.raises(DataError, match=r"train-0\.parquet, row 0 cannot be decoded"):
        load_images(str(tmp_path))
    pq.write_table(pa.table({"img": [{"bytes": encoded(1)}] * 2, "label": [0, -1]}), path)
    with pytest.raises(DataError, match="without a class"):
        load_images(str(tmp_path))


def test_mean_and_std():
    pixels = torch.randint(0, 256, (2500, 3, 4, 4), dtype=torch.uint8)
    pixels[:, 2] = 51
    mean, std = mean_std(ImageSet(pixels, None, None, (), "mine", None, 4))
    values = pixels.double() / 255
    assert mean == pytest.approx(values.mean((0, 2, 3)).tolist(), abs=1e-6)
    assert std == pytest.approx([*values[:, :2].std((0, 2, 3), correction=0).tolist(), 1 / 255], abs=1e-5)
    assert mean_std(ImageSet(pixels, None, None, (), "cifar100-lt", None, 4)) == KNOWN_MEAN_STD["cifar100"]


def test_mean_and_std_of_files(tmp_path, monkeypatch):
    write_folder(tmp_path, {"a": [0, 255]})
    monkeypatch.setattr(module, "MEMORY", 10)
    mean, std = mean_std(load_images(str(tmp_path)))
    assert mean == pytest.approx((0.5, 0.5, 0.5))
    assert std == pytest.approx((0.5, 0.5, 0.5))


def test_the_cifar10_copy():
    folder = SHARED / "data" / "cifar10_jpeg"
    if not folder.is_dir():
        pytest.skip("no CIFAR-10 copy here")
    found = load_images(str(folder), "test")
    assert found.images.shape == (10_000, 3, 32, 32)
    assert torch.bincount(found.labels).tolist() == [1000] * 10
    assert found.variant == "JPEG copy"
    table = pq.read_table(next(folder.rglob("test-*.parquet")))
    picture = Image.open(io.BytesIO(table["img"][17].as_py()["bytes"]))
    assert np.array_equal(np.asarray(picture), found.images[17].permute(1, 2, 0).numpy())
    mean, std = mean_std(found)
    known = KNOWN_MEAN_STD["cifar10"]
    assert np.allclose(mean, known[0], atol=0.005)
    assert np.allclose(std, known[1], atol=0.005)
    names = json.loads(table.schema.metadata[b"huggingface"])["info"]["features"]["label"]["names"]
    assert found.classes == tuple(names)
