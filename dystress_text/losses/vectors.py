"""Unit vectors, in fp32 or better."""

from __future__ import annotations

import torch
from torch import Tensor


def at_least_fp32(x: Tensor) -> Tensor:
    """Convert to fp32, but leave fp64."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def unit_vectors(x: Tensor) -> Tensor:
    """Scale rows to length 1, in fp32 or better; a zero row stays zero, with a zero gradient.

    Rows are divided by their largest entry first, so that no square over- or underflows. A row
    whose entries are all below the smallest normal number (fp32: 1.2e-38) counts as zero.

    Args:
        x: (..., dim).
    """
    x = at_least_fp32(x)
    largest: Tensor = torch.linalg.vector_norm(x.detach(), ord=torch.inf, dim=-1, keepdim=True)
    x = x / largest.where(largest >= torch.finfo(x.dtype).tiny, torch.inf)
    # (..., 1): at least 1, or 0 for a zero row
    length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / length.clamp(min=0.5)


def positive_similarity(z1: Tensor, z2: Tensor) -> Tensor:
    """Return the similarity of each pair of unit vectors, (n, dim) x (n, dim) -> (n,)."""
    return (z1 * z2).sum(dim=-1)
