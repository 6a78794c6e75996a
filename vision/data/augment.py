"""SimCLR's augmentation of a batch on its device, and normalisation.

Cropping, bilinear resizing and flipping are one ``grid_sample``, clamped to the crop box of each
sample; the pixels equal those of the three steps. kornia's operations change the colours as
torchvision and Pillow do; :func:`shift_hue` needs fewer passes than kornia's. The parameters are
drawn here, since kornia's modules spend more time on drawing and checks than on the pixels of
CIFAR. Each sample has its own parameters, but a batch of views shares the order of the four colour
operations. torch's CPU generator draws that order; all else is drawn on the device of the images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from kornia.color import rgb_to_grayscale
from kornia.enhance import (
    adjust_brightness_accumulative,
    adjust_contrast_with_mean_subtraction,
    adjust_saturation_with_gray_subtraction,
)
from kornia.filters import filter2d_separable, get_gaussian_kernel1d
from torch import Tensor

from vision.data import JITTER
from vision.data.crops import RandomCrop, constant, crop_resize_flip, draw_crops

JITTER_RATE = 0.8
GRAY_RATE = 0.2
BLUR_RATE = 0.5
SIGMA = (0.1, 2.0)
_NEUTRAL = (1.0, 1.0, 1.0, 0.0)  # the parameters of OPERATIONS that change nothing
_SECTORS = ((3.0, 2.0, 4.0), (1.0, -1.0, -1.0), (-1.0, 2.0, 2.0))
_NO_BLUR = 0.01  # a sigma whose kernel is 1 in the middle and 0 elsewhere


@dataclass(frozen=True)
class CropAndFlip:
    """Crop and flip images at random, then normalise their channels."""

    crop: RandomCrop
    mean: tuple[float, ...]  # of the channels, of values from 0 to 1
    std: tuple[float, ...]

    @torch.no_grad()
    def __call__(self, images: Tensor, count: int = 1) -> Tensor:
        """Make views of images, uint8 (n, 3, h, w) -> float32 (count n, 3, size, size).

        The first views of all images come first.
        """
        images = images.repeat(count, 1, 1, 1)
        height, width = images.shape[2:]
        crops = draw_crops(len(images), height, width, self.crop, images.device)
        return self._finish(crop_resize_flip(images, crops, self.crop.size), count)

    @torch.no_grad()
    def of_crops(self, crops: Tensor) -> Tensor:
        """Make views of crops, uint8 (n, count, 3, size, size), ordered as ``__call__`` does."""
        count = crops.shape[1]
        views = crops.transpose(0, 1).flatten(0, 1) / 255
        return self._finish(views, count)

    def _finish(self, views: Tensor, count: int) -> Tensor:
        """Recolour and normalise views (count n, 3, size, size) in [0, 1]."""
        return normalised(self._recolour(views, count), self.mean, self.std)

    def _recolour(self, views: Tensor, count: int) -> Tensor:
        """Return views (count n, 3, size, size) in [0, 1] unchanged; a subclass changes colours."""
        return views


@dataclass(frozen=True)
class SimclrAugment(CropAndFlip):
    """Crop and flip, jitter colours, turn some views gray, blur some if asked to, and normalise."""

    # a factor of JITTER: 1 is the paper's jitter on CIFAR, 2 is SimCLR's strength 1
    jitter: float = 1.0
    # blurs half of the samples by 0.1 to 2 pixels, with a kernel of a tenth of the side
    blur: bool = False

    def _recolour(self, views: Tensor, count: int) -> Tensor:
        views = self._jitter(views, count)
        gray = _column(_chosen(views, GRAY_RATE))
        views = torch.where(gray, rgb_to_grayscale(views), views)
        if self.blur and self.crop.size > 1:  # the padding of the blur needs two pixels
            views = self._blur(views)
        return views

    def _jitter(self, views: Tensor, count: int) -> Tensor:
        """Jitter the colours of most views; each of ``count`` equal parts draws its own order."""
        device = views.device
        constants = constant((JITTER, _NEUTRAL), device)
        spread, neutral = constants[:, :, None]  # (4, 1) each
        jittered = _chosen(views, JITTER_RATE)
        offsets = (2 * torch.rand(4, len(views), device=device) - 1) * jittered
        factors = torch.addcmul(neutral, offsets, self.jitter * spread)  # (4, count n)
        parts = []
        factors_of_parts = factors.chunk(count, dim=1)
        for part, of_part in zip(views.chunk(count), factors_of_parts, strict=True):
            for number in torch.randperm(4).tolist():
                operation = OPERATIONS[number]
                part = operation(part, of_part[number])
            parts.append(part)
        return torch.cat(parts)

    def _blur(self, views: Tensor) -> Tensor:
        low, high = SIGMA
        sigma = low + (high - low) * torch.rand(len(views), device=views.device)
        sigma = torch.where(_chosen(views, BLUR_RATE), sigma, _NO_BLUR)
        # the authors' kernel: a tenth of the image's side, odd, at least 3
        kernel = max(3, self.crop.size // 10 | 1)
        return blur(views, sigma, kernel)


def _chosen(views: Tensor, rate: float) -> Tensor:
    """Draw a mask of the views (n, 3, h, w) to change, (n,)."""
    return torch.rand(len(views), device=views.device) < rate


def shift_hue(images: Tensor, turns: Tensor) -> Tensor:
    """Rotate the hue of images (n, 3, h, w) in [0, 1] by ``turns`` of the colour circle, (n,).

    With the hue h in sixths, red is ``min + chroma * clamp(|h - 3| - 1, 0, 1)``, green and blue are
    the same with ``2 - |h - 2|`` and ``2 - |h - 4|``: saturation is never needed.
    """
    red, green, blue = torch.split(images, 1, dim=1)
    top = torch.maximum(torch.maximum(red, green), blue)
    low = torch.minimum(torch.minimum(red, green), blue)
    chroma = top - low
    divisor = chroma.clamp_min(torch.finfo(images.dtype).tiny)  # gray has no hue: 0 / divisor
    sixths = (red - green) / divisor + 4  # where blue is the largest
    sixths = torch.where(green == top, (blue - red) / divisor + 2, sixths)
    sixths = torch.where(red == top, (green - blue) / divisor, sixths)
    sixths = sixths + _column(6 * turns)
    # these passes are vectorised; torch.remainder is not
    sixths = sixths - 6 * (sixths / 6).floor()
    sectors = constant(_SECTORS, images.device)
    middles, signs, offsets = sectors.view(3, 3, 1, 1)
    part = (offsets + signs * (sixths - middles).abs()).clamp(0, 1)  # (n, 3, h, w)
    return torch.addcmul(low, chroma, part)


OPERATIONS = (  # of the jitter: they take images in [0, 1] and a factor for each
    adjust_brightness_accumulative,
    adjust_contrast_with_mean_subtraction,
    adjust_saturation_with_gray_subtraction,
    shift_hue,
)


def blur(images: Tensor, sigma: Tensor, kernel: int) -> Tensor:
    """Blur images (n, 3, h, w) by Gaussians of standard deviation ``sigma`` (n,), in pixels.

    This equals kornia's ``gaussian_blur2d``, without its check that waits for the device.
    """
    weights = get_gaussian_kernel1d(kernel, sigma[:, None])
    blurred: Tensor = filter2d_separable(images, weights, weights, "reflect")
    return blurred


def normalised(values: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Normalise each channel of images (n, 3, h, w) in [0, 1]; the result is channels_last."""
    constants = constant((tuple(mean), tuple(std)), values.device)
    shift, scale = constants.view(2, 3, 1, 1)
    result: Tensor = (values - shift) / scale
    return result.contiguous(memory_format=torch.channels_last)


def _column(values: Tensor) -> Tensor:
    """(n,) -> (n, 1, 1, 1)."""
    return values.view(-1, 1, 1, 1)
