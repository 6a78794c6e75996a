"""DINO's small crops: further views of each image, of a smaller side and a smaller part of it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vision.data.augment import ASPECT, FLIP_RATE, Crops, SimclrAugment, crop_resize_flip

SMALLEST = 0.05  # part of the image's area; DINO's


class SmallCrops(nn.Module):
    """Several small views of each image; flip, colours and blur as in the large ones.

    Args:
        count: views of each image.
        size: side of the views.
        largest: largest part of the image's area that a crop takes, above 0.05; the large crops begin there.
        mean: of the channels, as parts of 1.
        std: of the channels.
        jitter: see :class:`~vision.data.augment.SimclrAugment`.
        blur: see there.
    """

    def __init__(
        self,
        count: int,
        size: int,
        largest: float,
        mean: Sequence[float],
        std: Sequence[float],
        jitter: float = 1.0,
        blur: bool = False,
    ) -> None:
        super().__init__()
        self.count, self.largest = count, largest
        self.whole = SimclrAugment(size, mean, std, jitter, blur, min_scale=1.0)  # of images that are cropped already

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """Uint8 (n, 3, h, w) -> float32 (count n, 3, size, size): a view of each image, then another of each."""
        images = images.repeat(self.count, 1, 1, 1)
        crops = draw_small_crops(len(images), images.shape[2], images.shape[3], self.largest, images.device)
        cropped = crop_resize_flip(images, crops, self.whole.size)
        views: Tensor = self.whole((255 * cropped).round().to(torch.uint8))
        return views


def draw_small_crops(count: int, height: int, width: int, largest: float, device: torch.device) -> Crops:
    """Crops of torchvision's ``RandomResizedCrop`` with areas uniform in [0.05, largest] of the image's.

    They fit into a square, so that none is drawn again, while ``largest`` is at most 3/4.
    """
    area = height * width * (SMALLEST + (largest - SMALLEST) * torch.rand(count, device=device))
    low, high = math.log(ASPECT[0]), math.log(ASPECT[1])
    aspect = torch.exp(low + (high - low) * torch.rand(count, device=device))
    w, h = (area * aspect).sqrt().round().clamp(1, width), (area / aspect).sqrt().round().clamp(1, height)
    place = torch.rand(3, count, device=device)
    # a number just below 1, times a whole number, may round up to it
    left = torch.minimum(((width - w + 1) * place[0]).floor(), width - w)
    top = torch.minimum(((height - h + 1) * place[1]).floor(), height - h)
    return Crops(left, top, w, h, place[2] < FLIP_RATE)
