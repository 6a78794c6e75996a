"""What image files hold, as RGB; and what is said of those that are broken."""

import numpy as np
import pytest
from PIL import Image
from vision_cases import encoded

from dystress_text.errors import DataError
from vision.data.decoding import decode, image_size

RED, WHITE = (255, 0, 0), (255, 255, 255)


def colour(content):
    image = decode(content)
    assert (image.mode, image.size) == ("RGB", (6, 4))
    return image.getpixel((2, 1))


def test_rgb_keeps_places_and_channels():
    pixels = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    assert np.array_equal(np.asarray(decode(encoded(Image.fromarray(pixels)))), pixels)
    assert image_size(encoded(Image.fromarray(pixels))) == (4, 6)


@pytest.mark.parametrize("deep", [0, 300, 65_535])
@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_16_bits_keep_their_upper_8(deep, kind):
    image = Image.fromarray(np.full((4, 6), deep, dtype=np.uint16))
    assert colour(encoded(image, kind)) == (deep >> 8,) * 3


@pytest.mark.parametrize(("alpha", "expected"), [(255, RED), (0, WHITE), (128, (255, 127, 127))])
def test_transparent_pixels_lie_on_white(alpha, expected):
    assert colour(encoded(Image.new("RGBA", (6, 4), (*RED, alpha)))) == expected


@pytest.mark.parametrize("limit", [60, 100])  # above twice the limit Pillow raises, below it warns
def test_decompression_bombs(monkeypatch, limit):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
    content = encoded(Image.new("RGB", (15, 10)))
    for read in (decode, image_size):
        with pytest.raises(DataError, match="row 3 has more pixels than Pillow's limit"):
            read(content, "row 3")


def test_missing_and_cut_files_text_and_fractions(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.png"):
        decode(tmp_path / "nowhere.png")
    whole = encoded(Image.effect_noise((64, 64), 50), "JPEG")
    with pytest.raises(DataError, match=r"row 3 cannot be decoded: .*truncated"):
        decode(whole[: len(whole) // 2], "row 3")
    with pytest.raises(DataError, match="not an image"):
        decode(b"not an image at all")
    with pytest.raises(DataError, match="range of its pixels is unknown"):
        decode(encoded(Image.new("F", (6, 4), 0.5), "TIFF"))
