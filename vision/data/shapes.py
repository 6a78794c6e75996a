"""A labelled image set drawn at run time: ten shapes and textures in varying colours, positions
and sizes.

Images of a class differ in what SimCLR's augmentation varies: colour, brightness, position, size,
noise. Test images have other hues than training images, and their figures lie farther from the
middle. Features of an untrained network follow the colours, so that pre-training makes a
difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from vision.data import SHAPES
from vision.data.images import DecodedImages

SIDE = 24
PER_CLASS = 256
HUES = {"train": (0.00, 0.45), "test": (0.50, 0.95)}  # parts of the circle
DISTANCES = {"train": (0.0, 3.0), "test": (3.0, 5.0)}  # pixels from the middle
UNITS = (5.0, 8.0)  # pixels: radius of a figure, period of a texture
TILT = 0.25  # radians to either side
NOISE = 0.04


def make_shapes(split: str) -> DecodedImages:
    """Draw the ``train`` or the ``test`` split, the same each time."""
    generator = torch.Generator().manual_seed(int(split == "test"))
    images = torch.cat([_draw(figure, split, generator) for figure in _FIGURES])
    labels = torch.arange(len(_FIGURES)).repeat_interleave(PER_CLASS)
    return DecodedImages(
        name=SHAPES,
        pixels=images,
        labels=labels,
        classes=tuple(_FIGURES),
    )


def _draw(figure: str, split: str, generator: torch.Generator) -> Tensor:
    """Draw the images of a class, uint8 (PER_CLASS, 3, SIDE, SIDE)."""

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(PER_CLASS, 1, 1, generator=generator)

    distance = uniform(*DISTANCES[split])
    direction = uniform(0, 2 * math.pi)
    tilt = uniform(-TILT, TILT)
    unit = uniform(*UNITS)
    steps = torch.arange(SIDE) - (SIDE - 1) / 2
    x = steps[None, None, :] - distance * direction.cos()
    y = steps[None, :, None] - distance * direction.sin()
    u = (x * tilt.cos() + y * tilt.sin()) / unit
    v = (y * tilt.cos() - x * tilt.sin()) / unit
    mask = (0.5 - _FIGURES[figure](u, v) * unit).clamp(0, 1)  # edges a pixel wide
    mask = mask[:, None]  # (PER_CLASS, 1, SIDE, SIDE)

    hue = uniform(*HUES[split])
    dark = uniform(0.15, 0.4)
    light = uniform(0.6, 1.0)
    upside = uniform(0, 1) < 0.5
    inner = _colour(hue, uniform(0.2, 0.9), torch.where(upside, dark, light))
    outer = _colour(hue + uniform(-0.05, 0.05), uniform(0.2, 0.9), torch.where(upside, light, dark))
    images = outer + mask * (inner - outer)
    images = images + NOISE * torch.randn(images.shape, generator=generator)
    return (images.clamp(0, 1) * 255).round().to(torch.uint8)


def _colour(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """Convert HSV to RGB, (count, 1, 1) each -> (count, 3, 1, 1)."""
    channels = torch.tensor((5.0, 3.0, 1.0)).view(3, 1, 1)
    k = torch.remainder(channels + 6 * hue[:, None], 6)  # (count, 3, 1, 1)
    return value[:, None] * (1 - saturation[:, None] * torch.minimum(k, 4 - k).clamp(0, 1))


def _wrapped(values: Tensor) -> Tensor:
    """Return the signed distance to the nearest whole number."""
    return values - values.round()


def _checks(u: Tensor, v: Tensor) -> Tensor:
    a = 0.25 - _wrapped(u).abs()
    b = 0.25 - _wrapped(v).abs()
    return torch.where(a * b > 0, -1.0, 1.0) * torch.minimum(a.abs(), b.abs())


def _cross(u: Tensor, v: Tensor) -> Tensor:
    a = u.abs()
    b = v.abs()
    return torch.maximum(torch.minimum(a, b) - 0.28, torch.maximum(a, b) - 0.95)


# a figure maps coordinates, in units of its size, to the signed distance from its edge: inside it
# is negative
_FIGURES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "disc": lambda u, v: torch.hypot(u, v) - 0.9,
    "ring": lambda u, v: (torch.hypot(u, v) - 0.75).abs() - 0.22,
    "square": lambda u, v: torch.maximum(u.abs(), v.abs()) - 0.8,
    "frame": lambda u, v: (torch.maximum(u.abs(), v.abs()) - 0.68).abs() - 0.2,
    "triangle": lambda u, v: torch.maximum(v - 0.6, 0.866 * u.abs() - 0.5 * v - 0.5),
    "cross": _cross,
    "stripes": lambda u, v: 0.25 - _wrapped(v).abs() + 0 * u,
    "checks": _checks,
    "dots": lambda u, v: torch.hypot(_wrapped(u), _wrapped(v)) - 0.28,
    "waves": lambda u, v: 0.25 - _wrapped(v + 0.35 * torch.sin(2.5 * u)).abs(),
}
