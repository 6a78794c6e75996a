"""Random resized crops of images of one size: drawing them, and cutting them on the device."""

from __future__ import annotations

import math
from dataclasses import dataclass

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


@dataclass(frozen=True)
class Crops:
    """Boxes of whole pixels within images, and which are mirrored; all (n,)."""

    left: Tensor
    top: Tensor
    width: Tensor
    height: Tensor
    flip: Tensor

    def boxes(self) -> list[tuple[int, int, int, int]]:
        """Return left, top, right and bottom of each crop."""
        sides = (self.left, self.top, self.left + self.width, self.top + self.height)
        return list(zip(*(side.int().tolist() for side in sides), strict=True))


def draw_crops(
    count: int,
    height: int,
    width: int,
    crop: RandomCrop,
    device: torch.device | str = "cpu",
    generator: torch.Generator | None = None,
) -> Crops:
    """Draw crops of images of one size, and flips, by torchvision's ``RandomResizedCrop``.

    The area is uniform in [min_scale, max_scale] of the image's, the aspect log-uniform in
    [3/4, 4/3]. Both are redrawn until the box fits; after ten attempts it is the largest
    box in the middle that has an allowed aspect.

    Args:
        count: number of crops.
        height: of the images, in pixels.
        width: of the images, in pixels.
        crop: the sizes of the crops.
        device: where the random numbers are drawn.
        generator: of the random numbers; torch's own by default.
    """

    def uniform(low: float, high: float) -> Tensor:
        drawn = torch.rand(count, _ATTEMPTS, device=device, generator=generator)
        return low + (high - low) * drawn

    area = height * width * uniform(crop.min_scale, crop.max_scale)  # (n, _ATTEMPTS)
    aspect = torch.exp(uniform(math.log(ASPECT[0]), math.log(ASPECT[1])))
    widths = (area * aspect).sqrt().round()
    heights = (area / aspect).sqrt().round()
    fits = (widths >= 1) & (widths <= width) & (heights >= 1) & (heights <= height)
    first = fits.to(torch.uint8).argmax(1, keepdim=True)  # 0 where none fits
    some = fits.any(1)
    widest = min(width, round(height * ASPECT[1]))
    highest = min(height, round(width / ASPECT[0]))
    w = torch.where(some, widths.gather(1, first).squeeze(1), float(widest))
    h = torch.where(some, heights.gather(1, first).squeeze(1), float(highest))
    x, y, turn = torch.rand(3, count, device=device, generator=generator)
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

    Args:
        images: uint8 (n, 3, h, w).
        crops: a crop of each image.
        size: side of the views, in pixels.
    """
    height, width = images.shape[-2:]
    # middles of the view's pixels, (size,)
    steps = (torch.arange(size, device=images.device) + 0.5) / size
    mirrored = torch.where(crops.flip[:, None], 1 - steps, steps)  # (n, size)
    x = _coordinates(crops.left, crops.width, mirrored, width)
    y = _coordinates(crops.top, crops.height, steps[None], height)
    columns = x[:, None, :].expand(-1, size, -1)
    rows = y[:, :, None].expand(-1, -1, size)
    grid = torch.stack((columns, rows), dim=3)  # (n, size, size, 2)
    return F.grid_sample(images.float() / 255, grid, "bilinear", "border", align_corners=False)


def _coordinates(start: Tensor, length: Tensor, steps: Tensor, side: int) -> Tensor:
    """Return coordinates of the view's pixels in the image, of which -1 and 1 are the edges.

    They are clamped to the crop's outer pixels.
    """
    length = length[:, None]
    middles = (steps * length).clamp(min=0.5)
    middles = start[:, None] + torch.minimum(middles, length - 0.5)
    return middles * (2 / side) - 1
