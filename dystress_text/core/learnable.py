"""A temperature that is trained with the network, as CLIP's: a baseline to compare a chosen profile with."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from dystress_text.core.registry import Temperature
from dystress_text.core.temperature import ConstantTemperature, ProfileTemperature


class LearnableTemperature(Temperature):
    """A constant, or a profile's two end points, as parameters that stay within bounds.

    With a logistic function l and free numbers a and b, ``tau_min = low + (high - low) l(a)`` and ``tau_max = tau_min +
    (high - tau_min) l(b)``, so that ``low < tau_min < tau_max < high``; a constant has only the first. The gradient is
    that of the objective, also with ``detach_temperature``, which detaches the similarities but not the parameters. The
    shape is the start's: that of the even ODE keeps the ``tau_min`` it began with.

    Nothing in a contrastive loss stops the fall of a temperature: a lower one lowers the loss of all pairs in order.

    Args:
        temperature: the start, a constant or a profile with ``tau_min < tau_max``; strictly between the bounds.
        low: the lower bound.
        high: the upper bound.
    """

    def __init__(self, temperature: Temperature, low: float = 0.01, high: float = 1.0) -> None:
        super().__init__()
        if not isinstance(temperature, (ConstantTemperature, ProfileTemperature)):
            raise ValueError(f"temperature {temperature!r} has nothing to learn; a constant or profile has")
        self.ends = [name for name in ("tau", "tau_min", "tau_max") if hasattr(temperature, name)]
        starts: list[float] = [getattr(temperature, name) for name in self.ends]
        floors = [low, *starts[:-1]]
        if not low > 0 or not all(a < b < high < math.inf for a, b in zip(floors, starts, strict=True)):
            ends = " < ".join(map(str, starts))
            raise ValueError(f"low < {ends} < high must hold for the bounds, 0 < low < high, got {low} and {high}")
        self.temperature, self.low, self.high = temperature, low, high
        free = [math.log((start - floor) / (high - start)) for start, floor in zip(starts, floors, strict=True)]
        self.free = nn.Parameter(torch.tensor(free))  # (1,) or (2,)

    def forward(self, similarity: Tensor) -> Tensor:
        low, *highest = self._end_points(self.free.to(similarity.dtype))
        if not isinstance(self.temperature, ProfileTemperature):
            return low.expand_as(similarity)
        return low + (highest[0] - low) * self.temperature.shape(similarity)

    def _end_points(self, free: Tensor) -> list[Tensor]:
        ends = [self.low + (self.high - self.low) * torch.sigmoid(free[0])]
        return ends + [ends[0] + (self.high - ends[0]) * torch.sigmoid(share) for share in free[1:]]

    def values(self) -> dict[str, Any]:
        ends = [round(float(end), 6) for end in self._end_points(self.free.detach().double())]
        learned = dict(zip(self.ends, ends, strict=True))
        start = {"start": type(self.temperature).__name__, **self.temperature.values()}
        return {**start, **learned, "low": self.low, "high": self.high}
