"""Image files as RGB: orientation, depth, transparency, size, and errors that name the file."""

import io

import numpy as np
import pytest
from PIL import ExifTags, Image, ImageOps
from vision_cases import encoded, noise

from dystress_text.errors import DataError
from vision.data.decoding import decode, image_size, pixel_limit


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", [1, 2, 6, 7])
def test_pictures_are_upright(kind, orientation):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    content = encoded(noise(16, 32), kind, exif=exif)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
    assert np.array_equal(decode(content), expected.convert("RGB"))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_damaged_exif_is_ignored(kind):
    content = encoded(noise(20, 30), kind, exif=b"Exif\0\0nonsense")
    assert decode(content).size == (30, 20)
    assert image_size(content) == (20, 30)  # height and width


@pytest.mark.parametrize(("value", "expected"), [(300, 1), (65_535, 255)])
def test_16_bits_keep_their_upper_8(value, expected):
    pixels = np.full((4, 6), value, dtype=np.uint16)
    pgm = b"P5 6 4 65535\n" + pixels.astype(">u2").tobytes()
    for content in (encoded(Image.fromarray(pixels)), pgm):
        assert decode(content).getpixel((2, 1)) == (expected,) * 3


@pytest.mark.parametrize(("alpha", "expected"), [(0, (255, 255, 255)), (128, (255, 127, 127))])
def test_transparency_is_composited_on_white(alpha, expected):
    image = Image.new("RGBA", (6, 4), (255, 0, 0, alpha))
    assert decode(encoded(image)).getpixel((2, 1)) == expected


def test_decompression_bombs(monkeypatch):
    content = encoded(Image.new("RGB", (15, 10)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 60)  # twice as many are refused
    for read in (decode, image_size):
        with pytest.raises(DataError, match="row 3"):
            read(content, "row 3")
    with pixel_limit(150):
        assert decode(content).size == (15, 10)
    with pixel_limit(148), pytest.raises(DataError, match="148"):
        decode(content)
    assert Image.MAX_IMAGE_PIXELS == 60


def test_damaged_files_are_named(tmp_path):
    content = encoded(noise(60, 60))
    for bad in (content[: len(content) // 2], b"text", encoded(Image.new("F", (6, 4)), "TIFF")):
        with pytest.raises(DataError, match="row 3"):
            decode(bad, "row 3")
    with pytest.raises(DataError, match=r"nowhere\.png"):
        decode(tmp_path / "nowhere.png")


def test_a_large_jpeg_is_decoded_smaller():
    large = encoded(Image.new("RGB", (1600, 1280)), "JPEG")
    assert decode(large).size == (1600, 1280)
    assert decode(large, enough=700).size == (800, 640)
    assert decode(large, enough=720).size == (1600, 1280)  # the root of 800 x 640 is 715
    assert decode(large, enough=1).size == (200, 160)
    assert decode(encoded(noise(600, 800), "JPEG"), enough=10).size == (800, 600)
