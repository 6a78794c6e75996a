"""Temperatures that change during a run.

Their state is in buffers and parameters, so that checkpoints save it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from dystress_text.losses.registry import check_number, register
from dystress_text.losses.temperature import (
    ConstantTemperature,
    ProfileTemperature,
    Temperature,
    TemperatureError,
    as_temperature,
)


@register("scheduled")
class ScheduledTemperature(Temperature):
    """A cosine schedule, the same for all pairs (Kukleva et al., ICLR 2023).

    ``tau(t) = tau_min + (tau_max - tau_min) / 2 * (1 + cos(pi t / half_period))``. Kukleva et al.
    use 0.1 to 1.0 with 200 epochs.

    Args:
        tau_min: temperature after ``half_period``.
        tau_max: temperature at the start.
        half_period: half the period of the cosine, in units of ``unit``.
        unit: ``"epoch"``, or ``"run"`` for the whole run.

    Examples:
        >>> tau = ScheduledTemperature(0.1, 1.0, half_period=200)
        >>> tau.advance(epoch=100, run_fraction=0.25)  # the training loop does this
        >>> tau(torch.zeros(2))
        tensor([0.5500, 0.5500])
    """

    source = "Temperature schedule (Kukleva et al., ICLR 2023)"

    time: Tensor

    def __init__(
        self, tau_min: float, tau_max: float, half_period: float = 200, unit: str = "epoch"
    ) -> None:
        super().__init__()
        if unit not in ("epoch", "run"):
            raise ValueError(f"unit must be 'epoch' or 'run', got {unit!r}")
        self.tau_max = check_number("tau_max", tau_max, "(0, inf)")
        self.tau_min = check_number("tau_min", tau_min, f"(0, {self.tau_max}]")
        self.half_period = check_number("half_period", half_period, "(0, inf)")
        self.unit = unit
        self.register_buffer("time", torch.zeros((), dtype=torch.float64))

    def advance(self, epoch: float, run_fraction: float) -> None:
        time = epoch if self.unit == "epoch" else run_fraction
        self.time.fill_(time)

    def forward(self, similarity: Tensor) -> Tensor:
        swing = 0.5 * (1 + torch.cos(math.pi / self.half_period * self.time))
        tau = self.tau_min + (self.tau_max - self.tau_min) * swing
        return tau.to(similarity).expand_as(similarity)


@register("alignment_adaptive")
class AlignmentAdaptiveTemperature(Temperature):
    """MACL's temperature (Huang et al., ICML 2023): ``tau_0 (1 + alpha (A - a_0))``.

    A is the mean positive similarity of the global batch, detached; ``a_0`` before the first batch.
    A batch with A <= a_0 - 1/alpha raises a TemperatureError. The paper uses 0.05, 2 and 0.8 for
    text.

    Args:
        tau_0: temperature at A = ``a_0``.
        alpha: relative slope; not negative.
        a_0: similarity in [-1, 1].

    Examples:
        >>> tau = AlignmentAdaptiveTemperature(0.05, alpha=2, a_0=0.8)
        >>> tau.observe(torch.tensor(0.9))  # the loss does this
        >>> tau(torch.zeros(2))  # 0.05 (1 + 2 (0.9 - 0.8))
        tensor([0.0600, 0.0600])
    """

    source = "MACL's temperature (Huang et al., ICML 2023)"

    mean_positive: Tensor

    def __init__(self, tau_0: float, alpha: float, a_0: float) -> None:
        super().__init__()
        self.tau_0 = check_number("tau_0", tau_0, "(0, inf)")
        self.alpha = check_number("alpha", alpha, "[0, inf)")
        self.a_0 = check_number("a_0", a_0, "[-1, 1]")
        self.register_buffer("mean_positive", torch.tensor(self.a_0, dtype=torch.float64))

    def observe(self, mean_positive: Tensor) -> None:
        alignment = mean_positive.detach().double()
        tau = self._tau_at(alignment)
        if not tau > 0:  # synchronises with the device: the check must precede the loss
            raise TemperatureError(
                f"the alignment-adaptive temperature is {tau:.4g}, not positive, at the mean "
                f"positive similarity {alignment:.4f}; lower alpha or a_0"
            )
        self.mean_positive.copy_(alignment)

    def forward(self, similarity: Tensor) -> Tensor:
        return self._tau_at(self.mean_positive).to(similarity).expand_as(similarity)

    def _tau_at(self, alignment: Tensor) -> Tensor:
        return self.tau_0 * (1 + self.alpha * (alignment - self.a_0))


@register("learned")
class LearnableTemperature(Temperature):
    """A learned constant, or a profile with learned ends, within bounds.

    With the logistic function l and parameters a and b, ``tau_min = low + (high - low) l(a)`` and
    ``tau_max = tau_min + (high - tau_min) l(b)``; a constant has only the first. The parameters get
    the objective's gradient, also with ``detach_temperature``, which detaches only similarities.
    The shape is not learned: that of the even ODE keeps the initial ``tau_min``.

    A contrastive loss does not bound its temperature from below: if all pairs are ranked correctly,
    a lower temperature has a lower loss.

    Args:
        temperature: initial temperature, a number or a profile with ``tau_min < tau_max``, strictly
            between the bounds.
        low: lower bound.
        high: upper bound.
        learning_rate: peak learning rate of the parameters.

    Examples:
        >>> tau = LearnableTemperature(CosineTemperature(0.05, 0.07))
        >>> tau.learned()  # before training: the start
        {'tau_min': 0.05, 'tau_max': 0.07}
        >>> [parameter.shape for parameter in tau.parameters()]
        [torch.Size([2])]
    """

    def __init__(
        self,
        temperature: Temperature | float,
        low: float = 0.01,
        high: float = 1.0,
        *,
        learning_rate: float = 1e-3,
    ) -> None:
        super().__init__()
        start = as_temperature(temperature)
        if not isinstance(start, (ConstantTemperature, ProfileTemperature)):
            raise ValueError(f"temperature must be a constant or a profile, got {start}")
        self.low = check_number("low", low, "(0, inf)")
        self.high = high
        is_constant = isinstance(start, ConstantTemperature)
        self.ends = ["tau"] if is_constant else ["tau_min", "tau_max"]
        free = []
        floor = self.low
        for name in self.ends:
            end = getattr(start, name)
            check_number(f"temperature: {name}", end, f"({floor}, {self.high})")
            free.append(math.log((end - floor) / (self.high - end)))
            floor = end
        self.temperature = start
        self.learning_rate = check_number("learning_rate", learning_rate, "(0, inf)")
        self.free = nn.Parameter(torch.tensor(free))  # (1,) or (2,)

    def forward(self, similarity: Tensor) -> Tensor:
        ends = self._end_points(self.free.to(similarity.dtype))
        if not isinstance(self.temperature, ProfileTemperature):
            return ends[0].expand_as(similarity)
        return ends[0] + (ends[1] - ends[0]) * self.temperature.shape(similarity)

    def _end_points(self, free: Tensor) -> list[Tensor]:
        ends: list[Tensor] = []
        floor: Tensor | float = self.low
        for share in torch.sigmoid(free):
            end = floor + (self.high - floor) * share
            ends.append(end)
            floor = end
        return ends

    def learned(self) -> dict[str, float]:
        ends = [round(float(end), 6) for end in self._end_points(self.free.detach().double())]
        return dict(zip(self.ends, ends, strict=True))
