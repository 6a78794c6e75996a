"""Draw random resized crops of images of one size, and cut them on the device."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

ASPECT = (3 / 4, 4 / 3)
FLIP_RATE = 0.5
_ATTEMPTS = 10


@dataclass(frozen=True)
class RandomCrop:
    """The arguments of torchvision's ``RandomResizedCrop``."""

    size: int  # side of the crops, in pixels
    min_scale: float = 0.08  # smallest share of the image's area that a crop takes; SimCLR's
    max_scale: float = 1.0


class Crops(NamedTuple):
    """Parts of images, and which of them are mirrored."""

    boxes: Tensor  # (n, 4): left, top, right, bottom; whole pixels
    flip: Tensor  # (n,)


def draw_crops(
    count: int,
    height: int,
    width: int,
    crop: RandomCrop,
    device: torch.device | str = "cpu",
    generator: torch.Generator | None = None,
) -> Crops:
    """Draw crops and flips for images of one size, by the rule of ``RandomResizedCrop``.

    The area, as a share of the image's, is uniform in [min_scale, max_scale]; the aspect ratio is
    log-uniform in [3/4, 4/3]. Both are redrawn until the box fits; after ten attempts, the box is
    the largest central one with an allowed aspect ratio.

    Args:
        count: number of crops.
        height: height of the images, in pixels.
        width: width of the images, in pixels.
        crop: the sizes of the crops.
        device: the device on which random numbers are drawn.
        generator: draws the random numbers; None for torch's default generator.
    """

    def uniform(low: float, high: float) -> Tensor:
        drawn = torch.rand(count, _ATTEMPTS, device=device, generator=generator)
        return low + (high - low) * drawn

    widest = min(width, round(height * ASPECT[1]))
    highest = min(height, round(width / ASPECT[0]))
    sides, largest = constant(((width, height), (widest, highest)), device)[..., None]  # (2, 1)
    area = height * width * uniform(crop.min_scale, crop.max_scale)  # (n, _ATTEMPTS)
    aspect = torch.exp(uniform(math.log(ASPECT[0]), math.log(ASPECT[1])))
    lengths = torch.stack((area * aspect, area / aspect)).sqrt().round()  # (2, n, _ATTEMPTS)
    fits = ((lengths >= 1) & (lengths <= sides[..., None])).all(0)
    first = fits.to(torch.uint8).argmax(1)  # 0 where none fits
    some = fits.any(1)
    length = lengths.gather(2, first.expand(2, -1)[..., None]).squeeze(2)  # (2, n)
    length = torch.where(some, length, largest)
    *places, turn = torch.rand(3, count, device=device, generator=generator)
    start = ((sides - length + 1) * torch.stack(places)).floor()
    # a number just below 1, times a whole number, may round up to it
    start = torch.minimum(start, sides - length)
    start = torch.where(some, start, ((sides - largest) / 2).floor())
    return Crops(torch.cat((start, start + length)).T, turn < FLIP_RATE)


def crop_resize_flip(images: Tensor, crops: Crops, size: int) -> Tensor:
    """Crop, resize (bilinear) and mirror, uint8 (n, 3, h, w) -> (n, 3, size, size) in [0, 1].

    There is no antialiasing, since crops are mostly enlarged. A crop with more than twice the side
    of its view would alias.

    Args:
        images: uint8 (n, 3, h, w).
        crops: a crop of each image.
        size: side of the views, in pixels.
    """
    height, width = images.shape[-2:]
    # middles of the view's pixels, (size,)
    steps = (torch.arange(size, device=images.device) + 0.5) / size
    mirrored = torch.where(crops.flip[:, None], 1 - steps, steps)  # (n, size)
    left, top, right, bottom = crops.boxes.T[..., None]  # (n, 1) each
    x = _coordinates(left, right - left, mirrored, width)
    y = _coordinates(top, bottom - top, steps, height)
    columns = x[:, None, :].expand(-1, size, -1)
    rows = y[:, :, None].expand(-1, -1, size)
    grid = torch.stack((columns, rows), dim=3)  # (n, size, size, 2)
    return F.grid_sample(images.float() / 255, grid, "bilinear", "border", align_corners=False)


def _coordinates(start: Tensor, length: Tensor, steps: Tensor, side: int) -> Tensor:
    """Map pixels of views to the image, whose edges are -1 and 1, clamped to the crop."""
    middles = (steps * length).clamp(min=0.5)
    middles = start + torch.minimum(middles, length - 0.5)
    return middles * (2 / side) - 1


@lru_cache
def constant(rows: tuple[tuple[float, ...], ...], device: torch.device | str) -> Tensor:
    """Return a constant on the device, cached, since each copy to a GPU waits for the GPU."""
    return torch.tensor(rows, dtype=torch.float32, device=device)
