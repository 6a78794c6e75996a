"""Image files as RGB, damaged ones, random crops of whole pictures, and parquet files."""

import numpy as np
import pytest
import torch
from PIL import Image
from vision_cases import encoded, write_parquet

from dystress_text.errors import DataError
from vision.data.crops import RandomCrop
from vision.data.decoding import decode, image_size
from vision.data.image_files import ImageFiles
from vision.data.images import EncodedImages
from vision.data.loading import load_images
from vision.resnet import Square


def photo(height=150, width=200, seed=0):
    """Noise, as the content of a JPEG file."""
    chance = np.random.default_rng(seed)
    coarse = chance.integers(0, 256, (height // 10, width // 10, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    return encoded(image, "JPEG", quality=90)


def test_crops_depend_on_seed_step_and_picture_alone(tmp_path):
    paths = [tmp_path / f"{i}.jpg" for i in range(4)]
    for i, path in enumerate(paths):
        path.write_bytes(photo(120 + 10 * i, 160, seed=i))
    images = EncodedImages(name="photos", files=ImageFiles(paths, np.arange(4)))
    kinds = [(RandomCrop(32), 2)]
    (crops,) = images.crops(np.arange(4), kinds, (1, 5))
    assert crops.shape == (4, 2, 3, 32, 32)
    (again,) = images.crops(np.array([3, 0]), kinds, (1, 5))
    assert torch.equal(again, crops[[3, 0]])
    (other,) = images.crops(np.arange(4), kinds, (1, 6))
    assert (other != crops).flatten(1).any(1).all()


def test_pictures_of_parquet_files(tmp_path):
    for k in range(3):
        grays = [50 * k + i for i in range(4)]
        file = tmp_path / f"train-0000{k}-of-00003.parquet"
        write_parquet(file, grays, [0, 1, 1, 0], ["tick", "tock"], side=100)
    pictures = load_images(str(tmp_path))
    assert isinstance(pictures, EncodedImages)
    assert pictures.classes == ("tick", "tock")
    part = pictures.subset([11, 5, 0]).subset([1, 2])
    assert part.labels.tolist() == [1, 0]
    assert part.squares(np.array([1, 0]), Square(16, 0.875))[:, 0, 0, 0].tolist() == [0, 51]


@pytest.mark.parametrize(("value", "expected"), [(300, 1), (65_535, 255)])
def test_16_bits_keep_their_upper_8(value, expected):
    image = Image.fromarray(np.full((4, 6), value, dtype=np.uint16))
    assert decode(encoded(image)).getpixel((2, 1)) == (expected,) * 3


@pytest.mark.parametrize(("alpha", "expected"), [(0, (255, 255, 255)), (128, (255, 127, 127))])
def test_transparent_pixels_lie_on_white(alpha, expected):
    image = Image.new("RGBA", (6, 4), (255, 0, 0, alpha))
    assert decode(encoded(image)).getpixel((2, 1)) == expected


def test_decompression_bombs(monkeypatch):
    content = encoded(Image.new("RGB", (15, 10)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 60)  # twice as many are refused
    for read in (decode, image_size):
        with pytest.raises(DataError, match="row 3"):
            read(content, "row 3")


def test_damaged_files_are_named(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.png"):
        decode(tmp_path / "nowhere.png")
    content = photo()
    with pytest.raises(DataError, match="row 3"):
        decode(content[: len(content) // 2], "row 3")
    with pytest.raises(DataError, match="32 bits"):
        decode(encoded(Image.new("F", (6, 4), 1), "TIFF"))
