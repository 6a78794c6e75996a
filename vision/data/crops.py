"""Random resized crops, drawn on the device for a batch of images of one size, and one by one for
whole pictures.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

ASPECT = (3 / 4, 4 / 3)
FLIP_RATE = 0.5
JITTER = (0.4, 0.4, 0.4, 0.1)  # brightness, contrast, saturation; hue as a part of the circle
STRONGEST_JITTER = 1 / max(JITTER[:3])  # beyond it, factors would be negative
# of SimclrAugment besides the crops; SimCLR's
AT_IMAGENET_SCALE: dict[str, Any] = {"jitter": 2.0, "blur": True}
_ATTEMPTS = 10


@dataclass(frozen=True)
class RandomCrop:
    """What torchvision's ``RandomResizedCrop`` is told."""

    size: int  # side of the crops, in pixels
    min_scale: float = 0.08  # smallest share of the image's area that a crop takes; SimCLR's
    max_scale: float = 1.0


def draw_box(
    height: int, width: int, crop: RandomCrop, random: np.random.Generator
) -> tuple[int, int, int, int]:
    """A crop of one picture by the rule of :func:`draw_crops`: left, top, right, bottom."""
    areas = height * width * random.uniform(crop.min_scale, crop.max_scale, _ATTEMPTS)
    aspects = np.exp(random.uniform(math.log(ASPECT[0]), math.log(ASPECT[1]), _ATTEMPTS))
    widths = np.sqrt(areas * aspects).round()
    heights = np.sqrt(areas / aspects).round()
    fits = (widths >= 1) & (widths <= width) & (heights >= 1) & (heights <= height)
    if fits.any():
        first = int(fits.argmax())
        w = int(widths[first])
        h = int(heights[first])
        left = int(random.integers(width - w + 1))
        top = int(random.integers(height - h + 1))
    else:
        w, h = _largest(height, width)
        left = (width - w) // 2
        top = (height - h) // 2
    return left, top, left + w, top + h


def _largest(height: int, width: int) -> tuple[int, int]:
    """Width and height of the largest box with an allowed aspect."""
    return min(width, round(height * ASPECT[1])), min(height, round(width / ASPECT[0]))


@dataclass(frozen=True)
class Crops:
    """Boxes of whole pixels within images, and which are mirrored; all (n,)."""

    left: Tensor
    top: Tensor
    width: Tensor
    height: Tensor
    flip: Tensor


def draw_crops(images: Tensor, crop: RandomCrop) -> Crops:
    """Draw crops of images (n, 3, h, w) by torchvision's ``RandomResizedCrop``, and flips.

    The area is uniform in [min_scale, max_scale] of the image's, the aspect log-uniform in [3/4,
    4/3]. Both are drawn again while the box does not fit; after ten times it is the largest box in
    the middle that has an allowed aspect.
    """
    count, _, height, width = images.shape

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, _ATTEMPTS, device=images.device)

    area = height * width * uniform(crop.min_scale, crop.max_scale)  # (n, _ATTEMPTS)
    aspect = torch.exp(uniform(math.log(ASPECT[0]), math.log(ASPECT[1])))
    widths = (area * aspect).sqrt().round()
    heights = (area / aspect).sqrt().round()
    fits = (widths >= 1) & (widths <= width) & (heights >= 1) & (heights <= height)
    first = fits.to(torch.uint8).argmax(1, keepdim=True)  # 0 where none fits
    some = fits.any(1)
    widest, highest = _largest(height, width)
    w = torch.where(some, widths.gather(1, first).squeeze(1), float(widest))
    h = torch.where(some, heights.gather(1, first).squeeze(1), float(highest))
    x, y, turn = torch.rand(3, count, device=images.device)
    left = torch.where(some, ((width - w + 1) * x).floor(), (width - widest) // 2)
    top = torch.where(some, ((height - h + 1) * y).floor(), (height - highest) // 2)
    # a number just below 1, times a whole number, may round up to it
    left = torch.minimum(left, width - w)
    top = torch.minimum(top, height - h)
    return Crops(left, top, w, h, turn < FLIP_RATE)


def crop_resize_flip(images: Tensor, crops: Crops, size: int) -> Tensor:
    """Crop, resize (bilinear) and mirror, uint8 (n, 3, h, w) -> (n, 3, size, size) in [0, 1].

    There is no filter against aliasing, as views are mostly enlarged. A crop of more than twice
    their side would alias.
    """
    height, width = images.shape[-2:]
    # middles of the view's pixels, (size,)
    steps = (torch.arange(size, device=images.device) + 0.5) / size
    mirrored = torch.where(crops.flip[:, None], 1 - steps, steps)  # (n, size)
    x = _places(crops.left, crops.width, mirrored, width)
    y = _places(crops.top, crops.height, steps[None], height)
    columns = x[:, None, :].expand(-1, size, -1)
    rows = y[:, :, None].expand(-1, -1, size)
    grid = torch.stack((columns, rows), dim=3)  # (n, size, size, 2)
    return F.grid_sample(images.float() / 255, grid, "bilinear", "border", align_corners=False)


def _places(start: Tensor, length: Tensor, steps: Tensor, side: int) -> Tensor:
    """Return where the view's pixels lie in the image, clamped to the crop's outer pixels; -1 and 1
    are the image's edges.
    """
    length = length[:, None]
    middles = (steps * length).clamp(min=0.5)
    middles = start[:, None] + torch.minimum(middles, length - 0.5)
    return middles * (2 / side) - 1
