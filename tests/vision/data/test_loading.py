"""Loading splits: labels of the test split, damaged images, and which are decoded into memory."""

import pytest
from vision_cases import grays, noise, write_folder, write_parquet

from dystress_text.errors import DataError, ParameterError
from vision.data import loading
from vision.data.decoding import decode
from vision.data.images import DecodedImages, NoAccuracyError
from vision.data.loading import load_images, load_test


def damage(file):
    file.write_bytes(file.read_bytes()[:40])


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
    for name in ("a/1.png", "b/1.png"):
        damage(tmp_path / name)
    with pytest.raises(DataError, match=r"1\.png.*skip_corrupt"):
        load_images(str(tmp_path))
    images = load_images(str(tmp_path), skip_corrupt=True)
    assert images.corrupt == 2
    assert "a/1.png" in " ".join(images.notes)
    assert images.labels.tolist() == [0, 0, 1]
    assert grays(images) == [1, 3, 4]
    # in a run, the next image of the class is in its place; after the last, the first
    images = load_images(str(tmp_path), skip_corrupt=True, keep_count=True)
    assert images.labels.tolist() == [0, 0, 0, 1, 1]
    assert grays(images) == [1, 3, 3, 4, 4]
    damage(tmp_path / "b" / "0.png")
    with pytest.raises(DataError, match="class"):
        load_images(str(tmp_path), skip_corrupt=True, keep_count=True)


@pytest.mark.parametrize(
    ("count", "damaged", "allowed"), [(20, 10, True), (20, 11, False), (2, 1, False)]
)
def test_few_images_may_be_corrupt(count, damaged, allowed, tmp_path):
    write_folder(tmp_path, {"a": range(count)})
    for number in range(damaged):
        damage(tmp_path / "a" / f"{number}.png")
    if allowed:
        assert len(load_images(str(tmp_path), skip_corrupt=True)) == count - damaged
    else:
        with pytest.raises(DataError, match=f"{damaged} of {count}"):
            load_images(str(tmp_path), skip_corrupt=True)


@pytest.mark.parametrize(
    ("sides", "input_size", "in_memory"),
    [
        ([(96, 200)], 224, True),
        ([(97, 97)], 224, False),
        ([(64, 64)], 32, True),
        ([(65, 64), (64, 65)], 32, False),
        ([(65, 65)], 32, False),
    ],
)
def test_small_images_of_one_size_are_decoded_into_memory(sides, input_size, in_memory, tmp_path):
    for number in range(4):
        noise(*sides[number % len(sides)]).save(tmp_path / f"{number}.png")
    images = load_images(str(tmp_path), input_size=input_size)
    assert isinstance(images, DecodedImages) == in_memory
    assert images.size == (sides[0] if len(sides) == 1 else None)


def test_sets_that_fill_the_memory_stay_encoded(tmp_path, monkeypatch):
    monkeypatch.setattr(loading, "MEMORY", 2 * 3 * 8 * 8)
    for count, in_memory in ((2, True), (3, False)):
        write_folder(tmp_path, {".": [1] * count})
        assert isinstance(load_images(str(tmp_path)), DecodedImages) == in_memory


def test_an_image_of_another_size_may_be_seen_late(tmp_path):
    """The sizes of 100 images are read first."""
    write_folder(tmp_path, {".": [1] * 101})
    noise(9, 8).save(tmp_path / "1.png")
    images = load_images(str(tmp_path))
    assert images.size is None


def test_a_large_jpeg_is_checked_at_a_part_of_its_size(tmp_path, monkeypatch):
    noise(1600, 1600).save(tmp_path / "0.jpg")
    noise(1600, 1600).save(tmp_path / "1.jpg")
    widths = []

    def seen(*file, **options):
        widths.append(decode(*file, **options).width)

    monkeypatch.setattr(loading, "decode", seen)
    load_images(str(tmp_path), skip_corrupt=True)
    assert widths == [200, 200]


def test_a_set_in_the_folder_of_prepared_data(tmp_path):
    write_folder(tmp_path, {"own_lt/a": [1], "own_lt/b": [2]})
    images = load_images("own_lt", data_dir=str(tmp_path))
    assert images.title == "own_lt"
    assert grays(images) == [1, 2]


def test_unknown_sets_are_refused():
    for name in ("cifar11", ""):
        with pytest.raises(ParameterError, match=r"^dataset: [^\n]*$"):
            load_images(name)
