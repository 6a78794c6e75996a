"""Decode image files to RGB; errors name the damaged file."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from dystress_text.errors import DataError, reason_of
from vision.resnet import Square

MANY_PIXELS = 2_000_000
BILINEAR = Image.Resampling.BILINEAR
BACKGROUND = (255, 255, 255)  # what shows through transparent pixels


def decode(source: bytes | Path, origin: str = "an image", enough: float = math.inf) -> Image.Image:
    """Return the picture as RGB, upright by its EXIF orientation.

    A large JPEG is decoded at a half, a quarter or an eighth of its size, which is several times as
    fast, if the square root of its number of pixels then is at least ``enough``.

    Grayscale, palette and CMYK images are converted; 16-bit images keep their upper 8 bits.
    Transparency is composited on white. EXIF that cannot be read is ignored.

    Args:
        source: content or path of a file.
        origin: the content's name in errors.
        enough: the square root of the number of pixels that suffices.

    Raises:
        DataError: the file is damaged, or of an unknown format.
    """
    with _opened(source, origin) as image:
        pixels = image.width * image.height
        if pixels > MANY_PIXELS:
            shrink = max(1.0, math.sqrt(pixels) / enough)
            image.draft(None, (math.ceil(image.width / shrink), math.ceil(image.height / shrink)))
        image.load()
        with suppress(Exception):  # damaged EXIF raises several kinds; the pixels may be intact
            ImageOps.exif_transpose(image, in_place=True)
        if image.mode.startswith("I"):
            upper = (np.asarray(image) >> 8).astype(np.uint8)
            return Image.fromarray(upper).convert("RGB")
        if image.has_transparency_data:
            ground = Image.new("RGBA", image.size, (*BACKGROUND, 255))
            return Image.alpha_composite(ground, image.convert("RGBA")).convert("RGB")
        return image.convert("RGB")


def image_size(source: bytes | Path, origin: str = "an image") -> tuple[int, int]:
    """Return height and width from the header, as they are before any rotation by EXIF."""
    with _opened(source, origin) as image:
        return image.height, image.width


def pixels_of(picture: Image.Image) -> Tensor:
    """Return an RGB picture as uint8 (3, height, width)."""
    return torch.from_numpy(np.asarray(picture).transpose(2, 0, 1).copy())


def cut_square(picture: Image.Image, square: Square) -> Image.Image:
    """Resize the picture (bilinear, antialiased) and cut out its middle square.

    Sides are rounded down as in torchvision's ``Resize`` and transformers' image processors.

    Args:
        picture: the picture, in RGB.
        square: the side of the square, and the shorter side of the resized picture.
    """
    side = square.image_size
    shorter = min(picture.size)
    width = int(square.resized_side * picture.width / shorter)
    height = int(square.resized_side * picture.height / shorter)
    left = (width - side) // 2
    top = (height - side) // 2
    # resizing the square's box alone rounds differently, by up to 2 of 255
    resized = picture.resize((width, height), BILINEAR)
    return resized.crop((left, top, left + side, top + side))


@contextmanager
def pixel_limit(most: int | None) -> Iterator[None]:
    """Let pictures have up to ``most`` pixels in this context; None keeps Pillow's limit."""
    before = Image.MAX_IMAGE_PIXELS
    with warnings.catch_warnings():
        if most is not None:
            # Pillow warns of more, and refuses twice as many
            Image.MAX_IMAGE_PIXELS = math.ceil(most / 2)
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS = before


@contextmanager
def _opened(source: bytes | Path, origin: str) -> Iterator[Image.Image]:
    """Open a picture, and raise DataError for any failure in this context."""
    file: Path | io.BytesIO
    if isinstance(source, Path):
        origin = str(source)
        file = source
    else:
        file = io.BytesIO(source)
    try:
        with Image.open(file) as image:
            depth_known = image.mode == "I" and image.format == "PPM"  # PGM of 16 bits
            if image.mode in ("I", "F") and not depth_known:
                raise ValueError("its pixels have 32 bits, of unknown range; write it with 8 bits")
            yield image
    except Image.DecompressionBombError as error:
        limit = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        reason = f"has more than {limit:,} pixels; max_pixels allows more"
        raise DataError(f"{origin} {reason}") from error
    except Exception as error:  # each format's reader raises other errors for damage
        reason = reason_of(error)
        if "cannot identify" in reason:
            reason = "not an image, or of an unknown format"
        raise DataError(f"{origin} cannot be decoded: {reason}") from error
