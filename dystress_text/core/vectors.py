"""Unit vectors, in fp32 or better."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def at_least_fp32(x: Tensor) -> Tensor:
    """``x`` in fp32, or in fp64 if it is fp64."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def unit_vectors(x: Tensor) -> Tensor:
    """Rows of ``x`` (..., dim) scaled to length 1, in fp32 or better; a zero row stays zero, with a zero gradient.

    A row is first divided by its largest entry, so that no square over- or underflows. A row whose entries are all
    below the smallest normal number (fp32: 1.2e-38) counts as zero.
    """
    units: Tensor
    units, _ = _UnitVectors.apply(at_least_fp32(x))  # type: ignore[no-untyped-call]
    return units


class _UnitVectors(torch.autograd.Function):
    """Saves only the unit vectors for its backward, where a chain of operations would save several copies.

    The inverse lengths are an output too, because second derivatives need them.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        largest: Tensor = torch.linalg.vector_norm(x, ord=torch.inf, dim=-1, keepdim=True)  # (..., 1)
        largest = torch.where(largest < torch.finfo(x.dtype).tiny, torch.inf, largest)
        units = x / largest  # entries in [-1, 1]
        length: Tensor = torch.linalg.vector_norm(units, dim=-1, keepdim=True)  # (..., 1), at least 1 or a zero row's 0
        factor = length.clamp(min=0.5).reciprocal()
        units *= factor
        inverse = factor / largest
        ctx.save_for_backward(units, inverse)
        ctx.set_materialize_grads(False)
        return units, inverse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Tensor | None:
        units, inverse = ctx.saved_tensors
        of_units, of_inverse = grads
        gradient = None
        if of_units is not None:
            with torch.autocast(device_type=units.device.type, enabled=False):
                along = torch.einsum("...d,...d->...", of_units, units).unsqueeze(-1)  # without a full-size product
            gradient = (of_units * inverse).addcmul_(units, along * inverse, value=-1)
        if of_inverse is not None:  # only in second derivatives
            inward = -of_inverse * inverse * inverse * units
            gradient = inward if gradient is None else gradient + inward
        return gradient


def positive_similarity(z1: Tensor, z2: Tensor) -> Tensor:
    """Similarity of each pair of unit vectors, (n, dim) x (n, dim) -> (n,)."""
    return (z1 * z2).sum(dim=-1)
