"""Decoding of image files to RGB. The error for a damaged file names it."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from dystress_text.errors import DataError, reason_of

BACKGROUND = (255, 255, 255)  # what shows through transparent pixels


def decode(source: bytes | Path, origin: str = "an image") -> Image.Image:
    """Return the picture as RGB.

    Grayscale is repeated over the channels, palettes are looked up, CMYK is converted, and of 16
    bits the upper 8 remain. Transparent pixels lie on white. A camera's orientation tag is ignored,
    as in torchvision's folders.

    Args:
        source: content or path of a file.
        origin: the content's name in errors.

    Raises:
        DataError: the file is damaged, or of an unknown format.
    """
    with _opened(source, origin) as image:
        image.load()
        if image.mode.startswith("I;16"):
            upper = (np.asarray(image) >> 8).astype(np.uint8)
            return Image.fromarray(upper).convert("RGB")
        if image.has_transparency_data:
            ground = Image.new("RGBA", image.size, (*BACKGROUND, 255))
            return Image.alpha_composite(ground, image.convert("RGBA")).convert("RGB")
        if image.mode != "RGB":
            return image.convert("RGB")
        return image


def image_size(source: bytes | Path, origin: str = "an image") -> tuple[int, int]:
    """Return height and width from the header; damage after it is not seen."""
    with _opened(source, origin) as image:
        return image.height, image.width


def resized(image: Image.Image, size: int, box: Sequence[int] | None = None) -> Tensor:
    """Return a box of the picture, or its middle square, as uint8 (3, size, size).

    The resizing is bilinear and filtered. As in torchvision, a box is cut out before it is resized,
    while the middle is cut out of the resized picture: there the filter sees what lies next to it.

    Args:
        image: as RGB.
        size: side of the result, in pixels.
        box: left, top, right, bottom; None for the middle square.
    """
    middle = None
    if box is not None:
        left, top, right, bottom = box
        image = image.crop((left, top, right, bottom))
    else:
        side = min(image.size)
        x = (image.width - side) / 2
        y = (image.height - side) / 2
        middle = (x, y, x + side, y + side)
    pixels = np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, middle))
    return torch.from_numpy(pixels.transpose(2, 0, 1).copy())


@contextmanager
def _opened(source: bytes | Path, origin: str) -> Iterator[Image.Image]:
    """Open a picture; any failure inside the context is a fault of the file."""
    name = origin
    file: Path | io.BytesIO
    if isinstance(source, Path):
        name = str(source)
        file = source
    else:
        file = io.BytesIO(source)
    try:
        with Image.open(file) as image:
            if image.mode in ("I", "F"):
                raise ValueError("its pixels have 32 bits, of unknown range; write it with 8 bits")
            yield image
    except Exception as error:  # each format's reader raises other errors for damage
        reason = reason_of(error)
        if "cannot identify" in reason:
            reason = "not an image, or of an unknown format"
        raise DataError(f"{name} cannot be decoded: {reason}") from error
