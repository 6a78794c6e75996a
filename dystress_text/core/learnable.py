"""A temperature that is trained with the network: a baseline to compare a chosen profile with."""

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
    that of the objective, also with ``detach_temperature``, which detaches the similarities but not the parameters.

    Nothing in a contrastive loss stops the fall of a temperature: a lower one lowers the loss of all pairs in order.

    Args:
        temperature: the start, a :class:`ConstantTemperature` or a profile.
        low: the lower bound.
        high: the upper bound.

    Raises:
        ValueError: another kind of temperature, invalid bounds, or a start that does not lie between them.

    Examples:
        >>> tau = LearnableTemperature(ConstantTemperature(0.05))
        >>> tau.end_points()
        {'tau': 0.05}
    """

    kept: Tensor

    def __init__(self, temperature: Temperature, low: float = 0.01, high: float = 1.0) -> None:
        super().__init__()
        if not 0 < low < high < math.inf:
            raise ValueError(f"the bounds must be positive numbers, the lower one first, got {low} and {high}")
        match temperature:
            case ProfileTemperature():
                starts = [temperature.tau_min, temperature.tau_max]
            case ConstantTemperature():
                starts = [temperature.tau]
            case _:
                raise ValueError(f"{type(temperature).__name__} has nothing to learn; a constant or a profile has")
        if not low < starts[0] or not starts[-1] < high or len(set(starts)) < len(starts):
            ends = " and ".join(map(str, starts))
            raise ValueError(f"{ends} must lie between the bounds {low} and {high}, the lower one first")
        self.low, self.high = low, high
        self.shape = temperature.shape if isinstance(temperature, ProfileTemperature) else None
        self.start = type(temperature).__name__
        floors = [low, *starts[:-1]]
        free = [math.log((start - floor) / (high - start)) for start, floor in zip(starts, floors, strict=True)]
        self.free = nn.Parameter(torch.tensor(free))  # (1,) or (2,)
        self.register_buffer("kept", torch.tensor(free))

    def forward(self, similarity: Tensor) -> Tensor:
        free = self.free.to(similarity.dtype)
        tau = self.low + (self.high - self.low) * torch.sigmoid(free[0])
        if self.shape is None:
            return tau.expand_as(similarity)
        return tau + (self.high - tau) * torch.sigmoid(free[1]) * self.shape(similarity)

    @torch.no_grad()
    def keep(self) -> None:
        """Remember the present parameters."""
        self.kept = self.free.detach().clone()

    @torch.no_grad()
    def go_back(self) -> None:
        """Return to the parameters of the last :meth:`keep`."""
        self.free.copy_(self.kept)

    @torch.no_grad()
    def end_points(self) -> dict[str, float]:
        """The constant, or the lowest and the highest temperature, by option name and rounded to six digits."""
        free = torch.sigmoid(self.free.double()).tolist()
        ends = [self.low + (self.high - self.low) * free[0]]
        ends += [ends[0] + (self.high - ends[0]) * share for share in free[1:]]
        names = ("tau",) if self.shape is None else ("tau_min", "tau_max")
        return {name: round(end, 6) for name, end in zip(names, ends, strict=True)}

    def values(self) -> dict[str, Any]:
        of_shape = getattr(self.shape, "keywords", {})
        return {"start": self.start, **self.end_points(), **of_shape, "low": self.low, "high": self.high}

    def extra_repr(self) -> str:
        return ", ".join(f"{k}={v:g}" if isinstance(v, float) else f"{k}={v}" for k, v in self.values().items())
