"""Image files as RGB, and what is said of broken ones; crops of whole pictures, parquet files of
any size.
"""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from vision_cases import encoded, write_parquet

from dystress_text.errors import DataError
from vision.data.crops import RandomCrop
from vision.data.decoding import decode, image_size, resized
from vision.data.image_files import ImageFiles
from vision.data.images import EncodedImages
from vision.data.loading import load_images

RED, WHITE = (255, 0, 0), (255, 255, 255)


def photo(height=375, width=500, seed=0, kind="JPEG", mode="RGB"):
    """Smooth colours with noise, as the content of a file."""
    chance = np.random.default_rng(seed)
    coarse = chance.integers(0, 256, (height // 25, width // 25, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    image = Image.fromarray(
        np.clip(np.asarray(image) + chance.normal(0, 8, (height, width, 3)), 0, 255).astype("u1")
    )
    return encoded(image.convert(mode), kind, quality=90)


def test_resized_boxes_equal_pillows():
    found = decode(photo())
    for box in ((0, 0, 500, 375), (499, 374, 500, 375), (100, 50, 324, 274)):
        theirs = np.asarray(found.crop(box).resize((224, 224), Image.Resampling.BILINEAR))
        assert np.array_equal(resized(found, 224, box).permute(1, 2, 0), theirs)


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_modes_become_rgb_as_in_pillow(mode):
    content = photo(mode=mode)
    theirs = Image.open(io.BytesIO(content)).convert("RGB")
    assert np.array_equal(decode(content), theirs)


def test_crops_depend_on_seed_step_and_picture_alone(tmp_path):
    paths = [tmp_path / f"{i}.jpg" for i in range(6)]
    crop = RandomCrop(32)
    for i, path in enumerate(paths):
        path.write_bytes(photo(120 + 10 * i, 160, seed=i))
    images = EncodedImages(name="photos", files=ImageFiles(paths, np.arange(6)), size=256)
    whole = images.crops(np.arange(6), [(crop, 2)], (1, 5))[0]
    assert whole.shape == (6, 2, 3, 32, 32)
    assert torch.equal(images.crops(np.array([4, 0]), [(crop, 2)], (1, 5))[0], whole[[4, 0]])
    for key in ((1, 6), (2, 5)):
        other = images.crops(np.arange(6), [(crop, 2)], key)[0]
        assert (other != whole).flatten(1).any(1).all()
    assert (whole[:, 0] != whole[:, 1]).flatten(1).any(1).all()


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
    assert part.batch(np.array([1, 0]))[:, 0, 0, 0].tolist() == [0, 51]


def gray16(value):
    return Image.fromarray(np.full((4, 6), value, dtype=np.uint16))


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (gray16(300), (1, 1, 1)),
        (gray16(65_535), WHITE),
        (Image.new("RGBA", (6, 4), (*RED, 0)), WHITE),
        (Image.new("RGBA", (6, 4), (*RED, 128)), (255, 127, 127)),
    ],
)
def test_16_bits_keep_their_upper_8_and_transparent_pixels_are_white(image, expected):
    found = decode(encoded(image))
    assert (found.mode, found.size, found.getpixel((2, 1))) == ("RGB", (6, 4), expected)


def test_decompression_bombs(monkeypatch):
    content = encoded(Image.new("RGB", (15, 10)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 60)  # twice as many are refused
    for read in (decode, image_size):
        with pytest.raises(DataError, match="row 3"):
            read(content, "row 3")


def test_damaged_files_are_named(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.png"):
        decode(tmp_path / "nowhere.png")
    whole = encoded(Image.effect_noise((64, 64), 50), "JPEG")
    with pytest.raises(DataError, match="row 3"):
        decode(whole[: len(whole) // 2], "row 3")
    for mode in "IF":
        with pytest.raises(DataError, match="32 bits"):
            decode(encoded(Image.new(mode, (6, 4), 1), "TIFF"))
