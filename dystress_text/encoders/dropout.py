"""Dropout that costs little on a CPU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

_LEVELS = 1 << 16


def dropout(x: Tensor, rate: float) -> Tensor:
    """Zeros with probability ``rate``, the rest scaled so that the mean stays; any shape.

    On a CPU a 64-bit random number of torch's generator decides four entries (a rate is rounded to 1/65,536): drawing
    one number an entry, as torch does, took a quarter of a training step. Elsewhere this is torch's own dropout.
    """
    if x.device.type != "cpu":
        return F.dropout(x, rate)
    threshold = round(rate * _LEVELS)
    if threshold == 0:
        return x
    if threshold == _LEVELS:
        return torch.zeros_like(x)
    bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(1 << 63), None)
    lanes = bits.view(torch.int16)[: x.numel()].view(x.shape)
    kept = lanes.ge_(threshold - _LEVELS // 2)  # in place and as int16: a boolean mask costs more than the numbers
    return x * kept.to(x.dtype).mul_(_LEVELS / (_LEVELS - threshold))
