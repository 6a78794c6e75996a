"""Weights between those of two models of one architecture (Wortsman et al., "Robust fine-tuning", CVPR 2022)."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor


@torch.no_grad()
def interpolate(base: Mapping[str, Tensor], tuned: Mapping[str, Tensor], alpha: float) -> dict[str, Tensor]:
    """``(1 - alpha) base + alpha tuned``, tensor by tensor; 0 gives ``base`` and 1 ``tuned``, bit for bit.

    Floating-point tensors are computed in fp32 at least, and have the dtype of ``tuned``. Others, such as counters, are
    those of ``tuned`` unless alpha is 0.

    Args:
        base: a state by name.
        tuned: another one with the same names and shapes.
        alpha: in [0, 1].

    Raises:
        ValueError: alpha is out of range, or the states are not of one form.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha must lie in [0, 1], got {alpha}")
    if base.keys() != tuned.keys():
        raise ValueError(f"only one of the states has {', '.join(sorted(base.keys() ^ tuned.keys()))}")
    for name, tensor in base.items():
        if tensor.shape != tuned[name].shape or tensor.dtype != tuned[name].dtype:
            raise ValueError(f"{name} has two shapes or dtypes")
    if alpha in (0, 1):
        return {name: tensor.clone() for name, tensor in (tuned if alpha else base).items()}
    return {name: _between(base[name], tensor, alpha) for name, tensor in tuned.items()}


def _between(base: Tensor, tuned: Tensor, alpha: float) -> Tensor:
    if not tuned.is_floating_point():
        return tuned.clone()
    exact = torch.promote_types(tuned.dtype, torch.float32)
    return torch.lerp(base.to(exact), tuned.to(exact), alpha).to(tuned.dtype)
