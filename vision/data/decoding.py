"""Decoding of image files to RGB. The error for a damaged file names it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dystress_text.errors import DataError, reason_of

BACKGROUND = (255, 255, 255)  # what shows through transparent pixels
_DEEP = ("I", "I;16", "I;16B", "I;16L", "I;16N", "F")  # Pillow's grayscale of more than 8 bits
_BITS, _LARGEST = 258, 281  # tags of TIFF: BitsPerSample, MaxSampleValue
_DEPTHS = {2**bits - 1: bits for bits in range(8, 17)}


def decode(source: bytes | Path, origin: str = "an image") -> Image.Image:
    """The picture as RGB.

    Grayscale is repeated over the channels, palettes are looked up, CMYK is converted, and of 16
    bits, or of the fewer that a TIFF names, the upper 8 remain (numbers of 32 bits are read as
    those of 16, or refused if they are out of that range). Transparent pixels lie on white. A
    camera's orientation tag is ignored, as in torchvision's folders. ``origin`` is the content's
    name in errors.
    """
    with _opened(source, origin) as image:
        image.load()
        if image.mode in _DEEP:
            return _of_16_bits(image).convert("RGB")
        if image.has_transparency_data:
            ground = Image.new("RGBA", image.size, (*BACKGROUND, 255))
            return Image.alpha_composite(ground, image.convert("RGBA")).convert("RGB")
        return image if image.mode == "RGB" else image.convert("RGB")


def check(source: bytes | Path, origin: str = "an image") -> None:
    """Decode a picture to find damage; a JPEG at an eighth of its size, which takes half of the
    time.
    """
    with _opened(source, origin) as image:
        image.draft("RGB", (1, 1))
        image.load()
        if image.mode in _DEEP:
            _of_16_bits(image)


def brightest(source: bytes | Path, origin: str = "an image") -> int | None:
    """The largest value (of 255) in a picture whose file has more than 8 bits a channel; None for
    other files.
    """
    with _opened(source, origin) as image:
        deep = ";16" in str(getattr(image, "tile", "")) or image.mode in _DEEP
    return int(np.asarray(decode(source, origin)).max()) if deep else None


def image_size(source: bytes | Path, origin: str = "an image") -> tuple[int, int]:
    """Height and width from the header; damage after it is not seen."""
    with _opened(source, origin) as image:
        return image.height, image.width


def resized(image: Image.Image, size: int, box: tuple[int, int, int, int] | None = None) -> Tensor:
    """A box of the picture, or its middle square, as a square, uint8 (3, size, size), bilinear and
    filtered.

    Boxes are left, top, right, bottom. As in torchvision, a box is cut out before it is resized,
    while the middle is cut out of the resized picture: there the filter sees what lies next to it.
    """
    if box is not None:
        middle, image = None, image.crop(box)
    else:
        side = min(image.size)
        left, top = (image.width - side) / 2, (image.height - side) / 2
        middle = (left, top, left + side, top + side)
    pixels = np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, middle))
    return torch.from_numpy(pixels.transpose(2, 0, 1).copy())


@contextmanager
def _opened(source: bytes | Path, origin: str) -> Iterator[Image.Image]:
    """The picture, of which the header is read; what goes wrong inside the context is a fault of
    the file.
    """
    name = str(source) if isinstance(source, Path) else origin
    try:
        with Image.open(source if isinstance(source, Path) else io.BytesIO(source)) as image:
            # Pillow's own warning can only be caught for all threads at once
            if (
                Image.MAX_IMAGE_PIXELS is not None
                and image.width * image.height > Image.MAX_IMAGE_PIXELS
            ):
                raise Image.DecompressionBombError
            yield image
    except Image.DecompressionBombError as error:
        raise DataError(
            f"{name} has more pixels than Pillow's limit of {Image.MAX_IMAGE_PIXELS:,} (a decompression bomb?)"
        ) from error
    except Exception as error:  # each format's reader raises other errors for damage
        reason = (
            "not an image, or of an unknown format"
            if "cannot identify" in str(error)
            else reason_of(error)
        )
        raise DataError(f"{name} cannot be decoded: {reason}") from error


def _of_16_bits(image: Image.Image) -> Image.Image:
    """The upper 8 of 16 bits, or of those that a TIFF names; other numbers are refused, as nobody
    knows their range.
    """
    numbers = np.asarray(image)
    if image.mode in ("I", "F") and not (numbers.min() >= 0 and 255 < numbers.max() < 2**16):
        raise ValueError(
            f"the range of its pixels is unknown, which are numbers from {numbers.min()} to {numbers.max()}"
        )
    tags = getattr(image, "tag_v2", {})
    bits, largest = (np.ravel(tags.get(tag, 16))[0] for tag in (_BITS, _LARGEST))
    depth = _DEPTHS.get(
        largest, min(int(bits), 16)
    )  # a picture's own maximum, which some programs write, says nothing
    return Image.fromarray((numbers.astype(np.int64) >> (depth - 8)).clip(0, 255).astype(np.uint8))
