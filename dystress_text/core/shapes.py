"""Shapes of temperature profiles: elementwise functions from similarities in [-1, 1] to [0, 1]."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def cosine_shape(similarity: Tensor) -> Tensor:
    """(1 - cos(pi s)) / 2: 1 at s = -1 and +1, 0 at s = 0 (Alg. 1)."""
    return 0.5 * (1 - torch.cos(math.pi * similarity))


def shifted_cosine_shape(similarity: Tensor, shift: float, scale: float) -> Tensor:
    """A cosine dip on one side of s = -shift and the plateau 1 on the other (Alg. 2), without branches."""
    offset = similarity + shift
    offset = offset.clamp(max=0) if shift <= 0 else offset.clamp(min=0)
    return 0.5 * (1 + torch.cos(math.pi / scale * offset))


def one_sided_cosine_shape(similarity: Tensor, shift: float) -> Tensor:
    """A half cosine from 0 at s = -1 to 1 at s = -shift, and 1 above it."""
    return 0.5 * (1 - torch.cos(math.pi * ((similarity + 1) / (1 - shift)).clamp(max=1)))


def linear_shape(similarity: Tensor) -> Tensor:
    """|s|."""
    return similarity.abs()


def exponential_shape(similarity: Tensor, sharpness: float) -> Tensor:
    """(1 - exp(-c |s|)) / (1 - exp(-c)): steep at 0, flat towards -1 and +1."""
    return torch.expm1(-sharpness * similarity.abs()) / math.expm1(-sharpness)


def monotonic_cosine_shape(similarity: Tensor) -> Tensor:
    """(1 + sin(pi s / 2)) / 2: 0 at s = -1, 1 at s = +1."""
    return 0.5 * (1 + torch.sin(0.5 * math.pi * similarity))


def square_root_shape(similarity: Tensor) -> Tensor:
    """sqrt((1 + s) / 2): 0 at s = -1, 1 at s = +1."""
    return (0.5 * (1 + similarity)).clamp(min=1e-12).sqrt()  # where rounding takes s below -1


def even_ode_shape(similarity: Tensor, tau_min: float) -> Tensor:
    """(g(|s|) - tau_min) / (g(1) - tau_min) with g(x) = x / log(1 + x / tau_min), a branch of the paper's ODE."""
    ratio = similarity.abs() / tau_min
    near_zero = ratio < 1e-3  # g / tau_min - 1 cancels there: use its Taylor series instead
    safe = torch.where(near_zero, torch.ones_like(ratio), ratio)
    series = ratio * (1 / 2 - ratio * (1 / 12 - ratio * (1 / 24 - ratio * (19 / 720))))
    excess = torch.where(near_zero, series, safe / torch.log1p(safe) - 1)  # g(|s|) / tau_min - 1
    return excess / (1 / (tau_min * math.log1p(1 / tau_min)) - 1)


def broken_line_shape(similarity: Tensor, places: tuple[float, ...], heights: tuple[float, ...]) -> Tensor:
    """Straight lines through ``heights`` at the rising ``places``; constant outside of them."""
    height = torch.full_like(similarity, heights[0])
    for start, end, low, high in zip(places, places[1:], heights, heights[1:], strict=False):
        if high != low:
            height = height + (similarity.clamp(start, end) - start) * ((high - low) / (end - start))
    return height
