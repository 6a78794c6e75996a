"""SimCLR's augmentation of a batch on its device, and the plain transform of evaluation.

Crop, bilinear resize and flip are one ``grid_sample``, clamped to each sample's crop box: the same pixels as cropping
at whole pixels, resizing and flipping. Colours are changed by kornia's operations, which are torchvision's and Pillow's
(hue in fewer passes). Their parameters are drawn here, as kornia's modules spend more time on drawing and checks than
on CIFAR's pixels (tests/benchmarks/augmentation.py). Each sample has its parameters; the order of the four colour
operations is the same for a batch, as in kornia. Random numbers come from torch's generator of the images' device; the
order comes from the CPU's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from kornia.color import rgb_to_grayscale
from kornia.enhance import (
    adjust_brightness_accumulative,
    adjust_contrast_with_mean_subtraction,
    adjust_saturation_with_gray_subtraction,
)
from kornia.filters import gaussian_blur2d
from torch import Tensor, nn

from dystress_text.errors import UserError

JITTER = (0.4, 0.4, 0.4, 0.1)  # brightness, contrast, saturation; hue as a part of the circle
_NEUTRAL = (1.0, 1.0, 1.0, 0.0)
JITTER_RATE, GRAY_RATE, FLIP_RATE, BLUR_RATE = 0.8, 0.2, 0.5, 0.5
ASPECT = (3 / 4, 4 / 3)
SIGMA = (0.1, 2.0)
EVALUATION_CROP = 7 / 8  # 224 of 256
_ATTEMPTS = 10
_SECTORS = ((3.0, 2.0, 4.0), (1.0, -1.0, -1.0), (-1.0, 2.0, 2.0))
_NO_BLUR = 0.01  # a sigma whose kernel is 1 in the middle and 0 elsewhere


@dataclass(frozen=True)
class Crops:
    """Boxes of whole pixels within images, and which are mirrored; all (n,)."""

    left: Tensor
    top: Tensor
    width: Tensor
    height: Tensor
    flip: Tensor


class SimclrAugment(nn.Module):
    """Random resized crop, flip, colour jitter, grayscale, optionally blur; then normalisation.

    Args:
        size: side of the views.
        mean: of the channels, as parts of 1.
        std: of the channels.
        jitter: strength, times (0.4, 0.4, 0.4, 0.1): 1 is the paper's on CIFAR, 2 is what SimCLR calls strength 1.
        blur: Gaussian blur for half of the samples, sigma 0.1 to 2 pixels, a kernel of a tenth of the side.
        min_scale: smallest part of the image's area that a crop takes. CIFAR: 0.2; SimCLR on ImageNet: 0.08.

    Raises:
        UserError: a size, strength or scale out of range.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        size: int,
        mean: Sequence[float],
        std: Sequence[float],
        jitter: float = 1.0,
        blur: bool = False,
        min_scale: float = 0.2,
    ) -> None:
        super().__init__()
        check_augmentation(size, jitter, min_scale)
        self.size, self.jitter, self.blur, self.min_scale = size, jitter, blur, min_scale
        self.register_buffer("mean", _channels(mean), persistent=False)
        self.register_buffer("std", _channels(std), persistent=False)

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """One view of each image, uint8 (n, 3, h, w) -> float32 (n, 3, size, size), normalised, channels_last."""
        count, _, height, width = images.shape
        views = crop_resize_flip(images, draw_crops(count, height, width, self.min_scale, images.device), self.size)
        views = self._jittered(views)
        gray = _column(_draw(count, views) < GRAY_RATE)
        views = torch.where(gray, rgb_to_grayscale(views), views)
        if self.blur:
            sigma = draw_sigma(count, views.device)
            views = blur(views, sigma, kernel_of(self.size))
        return _normalised(views, self.mean, self.std)

    def _jittered(self, views: Tensor) -> Tensor:
        factors = draw_jitter(len(views), self.jitter, views.device)
        for operation in torch.randperm(4).tolist():
            views = adjust(views, operation, factors[operation])
        return views


def check_augmentation(size: int, jitter: float, min_scale: float) -> None:
    """Refuse what :class:`SimclrAugment` cannot do.

    Raises:
        UserError: a size, strength or scale out of range.
    """
    strongest = 1 / max(JITTER[:3])  # beyond it, factors would be negative
    if size < 1:
        raise UserError(f"--image_size: the side of an image must be at least 1 pixel, got {size}")
    if not 0 <= jitter <= strongest:
        raise UserError(f"--jitter: must lie in [0, {strongest:g}], got {jitter}")
    if not 0 < min_scale <= 1:
        raise UserError(f"--min_scale: must lie in (0, 1], got {min_scale}")


def draw_crops(count: int, height: int, width: int, min_scale: float, device: torch.device) -> Crops:
    """Crops of torchvision's ``RandomResizedCrop``, and flips.

    The area is uniform in [min_scale, 1] of the image's, the aspect log-uniform in [3/4, 4/3], both drawn again while
    the box does not fit; after ten times it is the largest box in the middle that has an allowed aspect.
    """
    area = height * width * (min_scale + (1 - min_scale) * torch.rand(count, _ATTEMPTS, device=device))
    low, high = math.log(ASPECT[0]), math.log(ASPECT[1])
    aspect = torch.exp(low + (high - low) * torch.rand(count, _ATTEMPTS, device=device))
    widths, heights = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
    fits = (widths >= 1) & (widths <= width) & (heights >= 1) & (heights <= height)
    first = fits.to(torch.uint8).argmax(1, keepdim=True)  # 0 where none fits
    some = fits.any(1)
    largest = (min(width, round(height * ASPECT[1])), min(height, round(width / ASPECT[0])))
    w = torch.where(some, widths.gather(1, first).squeeze(1), float(largest[0]))
    h = torch.where(some, heights.gather(1, first).squeeze(1), float(largest[1]))
    place = torch.rand(3, count, device=device)
    left = torch.where(some, ((width - w + 1) * place[0]).floor(), (width - largest[0]) // 2)
    top = torch.where(some, ((height - h + 1) * place[1]).floor(), (height - largest[1]) // 2)
    # a number just below 1, times a whole number, may round up to it
    left, top = torch.minimum(left, width - w), torch.minimum(top, height - h)
    return Crops(left, top, w, h, place[2] < FLIP_RATE)


def crop_resize_flip(images: Tensor, crops: Crops, size: int) -> Tensor:
    """Crop, resize (bilinear) and mirror, uint8 (n, 3, h, w) -> (n, 3, size, size) in [0, 1].

    There is no filter against aliasing, as views are mostly enlarged. A crop of more than twice their side would alias.
    """
    height, width = images.shape[-2:]
    steps = (torch.arange(size, device=images.device) + 0.5) / size  # (size,) middles of the view's pixels
    mirrored = torch.where(crops.flip[:, None], 1 - steps, steps)  # (n, size)
    x = _places(crops.left, crops.width, mirrored, width)
    y = _places(crops.top, crops.height, steps[None], height)
    grid = torch.stack((x[:, None, :].expand(-1, size, -1), y[:, :, None].expand(-1, -1, size)), dim=3)
    return F.grid_sample(images.float() / 255, grid, "bilinear", "border", align_corners=False)


def _places(start: Tensor, length: Tensor, steps: Tensor, side: int) -> Tensor:
    """Places of the view's pixels in the image, clamped to the crop's outer pixels; -1 and 1 are the image's edges."""
    start, length = start[:, None], length[:, None]
    middles = (steps * length).clamp(min=0.5)
    middles = start + torch.minimum(middles, length - 0.5)
    return middles * (2 / side) - 1


def draw_jitter(count: int, strength: float, device: torch.device) -> Tensor:
    """Factors of brightness, contrast and saturation around 1, and shifts of hue around 0, in turns; (4, n).

    A fifth of the samples has neutral values.
    """
    spread, neutral = _constant((JITTER, _NEUTRAL), device)
    applied = torch.rand(count, device=device) < JITTER_RATE
    offsets = (2 * torch.rand(4, count, device=device) - 1) * applied
    return torch.addcmul(neutral[:, None], offsets, strength * spread[:, None])


def adjust(images: Tensor, operation: int, factor: Tensor) -> Tensor:
    """One operation of the jitter for images in [0, 1]: brightness, contrast, saturation, hue are 0 to 3."""
    if operation == 3:
        return shift_hue(images, factor)
    return _OPERATIONS[operation](images, factor)


_OPERATIONS = (
    adjust_brightness_accumulative,
    adjust_contrast_with_mean_subtraction,
    adjust_saturation_with_gray_subtraction,
)


def shift_hue(images: Tensor, turns: Tensor) -> Tensor:
    """Add to the hue, in parts of the circle; (n, 3, h, w) in [0, 1] and (n,).

    With the hue h in sixths, red is ``min + chroma * clamp(|h - 3| - 1, 0, 1)``, green and blue are the same with
    ``2 - |h - 2|`` and ``2 - |h - 4|``: saturation is never needed.
    """
    red, green, blue = torch.split(images, 1, dim=1)
    top, low = torch.maximum(torch.maximum(red, green), blue), torch.minimum(torch.minimum(red, green), blue)
    chroma = top - low
    divisor = chroma.clamp_min(torch.finfo(images.dtype).tiny)  # gray has no hue: 0 / divisor
    sixths = torch.where(
        red == top,
        (green - blue) / divisor,
        torch.where(green == top, (blue - red) / divisor + 2, (red - green) / divisor + 4),
    )
    sixths = sixths + _column(6 * turns)
    sixths = sixths - 6 * (sixths / 6).floor()  # these passes are vectorised; torch.remainder is not
    middles, signs, offsets = (row.view(3, 1, 1) for row in _constant(_SECTORS, images.device))
    part = (offsets + signs * (sixths - middles).abs()).clamp(0, 1)  # (n, 3, h, w)
    return torch.addcmul(low, chroma, part)


def draw_sigma(count: int, device: torch.device) -> Tensor:
    """Widths of the blur, (n,); for half of the samples one that does not change them."""
    sigma = SIGMA[0] + (SIGMA[1] - SIGMA[0]) * torch.rand(count, device=device)
    return torch.where(torch.rand(count, device=device) < BLUR_RATE, sigma, _NO_BLUR)


def kernel_of(size: int) -> int:
    """SimCLR's blur kernel: a tenth of the image's side, odd, at least 3."""
    return max(3, size // 10 | 1)


def blur(images: Tensor, sigma: Tensor, kernel: int) -> Tensor:
    """Gaussian blur, (n, 3, h, w) and (n,)."""
    blurred: Tensor = gaussian_blur2d(images, (kernel, kernel), sigma[:, None].expand(-1, 2), "reflect")
    return blurred


def crop_of(side: int, view: int) -> float:
    """Share of an image's shorter side that evaluation keeps: all if the image has the size of the view."""
    return 1.0 if side == view else EVALUATION_CROP


def evaluation_transform(images: Tensor, size: int, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    """Images as evaluation sees them, uint8 (n, 3, h, w) -> float32 (n, 3, size, size), normalised, channels_last.

    Images of that size are not resized. The shorter side of others is resized to 8/7 of the size (bilinear, filtered),
    and the middle is cut out: 224 of 256.
    """
    values = images.float() / 255
    if images.shape[-2:] != (size, size):
        height, width = images.shape[-2:]
        scale = round(size / EVALUATION_CROP) / min(height, width)
        if scale != 1:
            target = (max(size, round(height * scale)), max(size, round(width * scale)))
            values = F.interpolate(values, target, mode="bilinear", antialias=True)
        top, left = (values.shape[-2] - size) // 2, (values.shape[-1] - size) // 2
        values = values[..., top : top + size, left : left + size]
    return _normalised(values, _channels(mean).to(images.device), _channels(std).to(images.device))


def _normalised(values: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    return ((values - mean) / std).contiguous(memory_format=torch.channels_last)


@lru_cache
def _constant(rows: tuple[tuple[float, ...], ...], device: torch.device) -> Tensor:
    """A constant on the device, made once, as each copy to a GPU waits for it."""
    return torch.tensor(rows, device=device)


def _channels(numbers: Sequence[float]) -> Tensor:
    """(1, 3, 1, 1)."""
    return torch.tensor(numbers, dtype=torch.float32).view(1, 3, 1, 1)


def _column(values: Tensor) -> Tensor:
    """(n,) -> (n, 1, 1, 1)."""
    return values.view(-1, 1, 1, 1)


def _draw(count: int, like: Tensor) -> Tensor:
    return torch.rand(count, device=like.device)
