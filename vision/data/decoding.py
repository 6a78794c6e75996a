"""Decoding of image files to RGB tensors. The error for a damaged file names it."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dystress_text.errors import DataError

Box = tuple[int, int, int, int]  # left, top, width, height, in pixels

BACKGROUND = (255, 255, 255)  # what shows through transparent pixels
_DEEP = {"I", "I;16", "I;16B", "I;16L", "I;16N"}  # Pillow's grayscale of 16 bits


def decode(source: bytes | Path, origin: str = "an image") -> Tensor:
    """The picture as RGB, uint8 (3, h, w).

    Grayscale is repeated over the channels, palettes are looked up, CMYK is converted, and of 16 bits the upper 8
    remain (32-bit numbers are read as 16-bit ones, or refused if they are out of that range). Transparent pixels lie on
    white. A camera's orientation tag is ignored, as in torchvision's image folders.

    Args:
        source: content of a file, or its path.
        origin: name of the content in errors.

    Raises:
        DataError: the file is truncated, damaged or not an image, or has more pixels than Pillow's
            ``MAX_IMAGE_PIXELS``.
    """
    with _opened(source, origin) as image:
        return _to_tensor(_rgb(image))


def check(source: bytes | Path, origin: str = "an image") -> None:
    """Decode a picture to find damage; a JPEG at an eighth of its size, which takes half of the time.

    Raises:
        DataError: as :func:`decode`.
    """
    with _opened(source, origin, reduced=True):
        pass


def decode_square(source: bytes | Path, size: int, origin: str = "an image") -> Tensor:
    """The middle square of the picture, after its shorter side was resized to ``size`` (bilinear).

    Returns:
        uint8 (3, size, size).

    Raises:
        DataError: as :func:`decode`.
    """
    with _opened(source, origin) as image:
        rgb = _rgb(image)
    width, height = rgb.size
    if (width, height) == (size, size):
        return _to_tensor(rgb)
    shorter = min(width, height)
    left, top = (width - shorter) / 2, (height - shorter) / 2
    box = (left, top, left + shorter, top + shorter)
    return _to_tensor(rgb.resize((size, size), Image.Resampling.BILINEAR, box=box))


def decode_crops(
    source: bytes | Path, draw: Callable[[int, int], Sequence[tuple[Box, int]]], origin: str = "an image"
) -> list[Tensor]:
    """Crops of the whole picture, each resized to a square (bilinear, filtered); the picture is decoded once.

    Args:
        source: content of a file, or its path.
        draw: gives boxes, and the side of the square that each becomes, for a picture of this height and width.
        origin: name of the content in errors.

    Returns:
        uint8 (3, side, side), for each box.

    Raises:
        DataError: as :func:`decode`.
    """
    with _opened(source, origin) as image:
        rgb = _rgb(image)
    return [
        _to_tensor(rgb.resize((size, size), Image.Resampling.BILINEAR, box=(left, top, left + width, top + height)))
        for (left, top, width, height), size in draw(rgb.height, rgb.width)
    ]


def image_size(source: bytes | Path, origin: str = "an image") -> tuple[int, int]:
    """Height and width from the header.

    Raises:
        DataError: as :func:`decode`, but not for damage after the header.
    """
    with _opened(source, origin, load=False) as image:
        return image.height, image.width


def _opened(source: bytes | Path, origin: str, load: bool = True, reduced: bool = False) -> Image.Image:
    name = str(source) if isinstance(source, Path) else origin
    try:
        image = Image.open(source if isinstance(source, Path) else io.BytesIO(source))
        # Pillow's own warning can only be caught for all threads at once
        if Image.MAX_IMAGE_PIXELS is not None and image.width * image.height > Image.MAX_IMAGE_PIXELS:
            raise Image.DecompressionBombError
        if image.mode == "F":
            raise ValueError("its pixels are fractions, whose range is unknown")
        if reduced:
            image.draft("RGB", (1, 1))
        if load:
            image.load()
        if load and image.mode == "I":
            numbers = np.asarray(image)
            low, high = int(numbers.min()), int(numbers.max())
            if not (low >= 0 and 255 < high < 2**16):
                raise ValueError(f"its pixels are 32-bit numbers from {low} to {high}, whose range is unknown")
    except Image.DecompressionBombError as error:
        raise DataError(
            f"{name} has more pixels than Pillow's limit of {Image.MAX_IMAGE_PIXELS:,} (a decompression bomb?)"
        ) from error
    except Exception as error:  # each format's reader raises other errors for damage
        reason = " ".join(str(error).split()) or type(error).__name__
        reason = "not an image, or of an unknown format" if "cannot identify" in reason else reason
        raise DataError(f"{name} cannot be decoded: {reason}") from error
    return image


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode in _DEEP:
        gray = np.clip(np.asarray(image).astype(np.int64) >> 8, 0, 255).astype(np.uint8)
        return Image.fromarray(gray).convert("RGB")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        ground = Image.new("RGBA", rgba.size, (*BACKGROUND, 255))
        image = Image.alpha_composite(ground, rgba)
    return image if image.mode == "RGB" else image.convert("RGB")


def _to_tensor(rgb: Image.Image) -> Tensor:
    """uint8 (3, h, w)."""
    return torch.from_numpy(np.asarray(rgb).transpose(2, 0, 1).copy())
