"""Temperatures that depend on the run and not on the pair: its progress, or the mean similarity of its positives.

They hold that number as a buffer, so that checkpoints save it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dystress_text.core.registry import Temperature, register_temperature
from dystress_text.core.temperature import TemperatureError, check_range, check_tau


@register_temperature("scheduled")
class ScheduledTemperature(Temperature):
    """A temperature that swings between two values over the run, the same for all pairs (Kukleva et al., ICLR 2023).

    ``tau(t) = tau_min + (tau_max - tau_min) / 2 * (1 + cos(pi t / half_period))``: ``tau_max`` at the start,
    ``tau_min`` after ``half_period``. Kukleva et al. use 0.1 to 1.0 with 200 epochs.

    Args:
        tau_min: lowest temperature.
        tau_max: highest temperature, the one at the start.
        half_period: time from highest to lowest, in unit.
        unit: epoch, or run for fractions of the whole run (as a one-epoch text run needs).
    """

    time: Tensor

    def __init__(
        self, tau_min: float = 0.1, tau_max: float = 1.0, half_period: float = 200, unit: str = "epoch"
    ) -> None:
        super().__init__()
        check_range(tau_min, tau_max)
        if not 0 < half_period < math.inf:
            raise ValueError(f"half_period must be positive, got {half_period}")
        if unit not in ("epoch", "run"):
            raise ValueError(f"unit must be 'epoch' or 'run', got {unit!r}")
        self.tau_min = tau_min
        self.tau_max = tau_max
        self.half_period = half_period
        self.unit = unit
        self.register_buffer("time", torch.zeros((), dtype=torch.float64))

    def advance(self, epoch: float, run_fraction: float) -> None:
        self.time.fill_(epoch if self.unit == "epoch" else run_fraction)

    def forward(self, similarity: Tensor) -> Tensor:
        swing = 0.5 * (1 + torch.cos(math.pi / self.half_period * self.time))
        return (self.tau_min + (self.tau_max - self.tau_min) * swing).to(similarity).expand_as(similarity)


@register_temperature("alignment_adaptive")
class AlignmentAdaptiveTemperature(Temperature):
    """MACL's temperature: ``tau_0 (1 + alpha (A - a_0))``, A the mean positive similarity of the global batch.

    Huang et al., "Model-Aware Contrastive Learning" (ICML 2023); text: 0.05, 2, 0.8. A has no gradient. Before the
    first batch A is ``a_0``. A batch with A <= a_0 - 1/alpha would make the temperature zero or negative and raises a
    TemperatureError.

    Args:
        tau_0: temperature at A = a_0; positive.
        alpha: how strongly the temperature follows A; not negative.
        a_0: the reference alignment, in [-1, 1].
    """

    mean_positive: Tensor

    def __init__(self, tau_0: float = 0.05, alpha: float = 2.0, a_0: float = 0.8) -> None:
        super().__init__()
        check_tau("tau_0", tau_0)
        if not 0 <= alpha < math.inf:
            raise ValueError(f"alpha must be at least 0, got {alpha}")
        if not abs(a_0) <= 1:
            raise ValueError(f"a_0 is a cosine similarity and must lie in [-1, 1], got {a_0}")
        self.tau_0 = tau_0
        self.alpha = alpha
        self.a_0 = a_0
        self.register_buffer("mean_positive", torch.tensor(a_0, dtype=torch.float64))

    def observe(self, mean_positive: Tensor) -> None:
        aligned = float(mean_positive.detach())  # reads from the device: the check must precede the loss
        tau = self.tau_0 * (1 + self.alpha * (aligned - self.a_0))
        if not tau > 0:
            bound = self.a_0 - 1 / self.alpha if self.alpha > 0 else -math.inf
            raise TemperatureError(
                f"the alignment-adaptive temperature reached {tau:.4g} and must stay positive: the mean positive "
                f"similarity A = {aligned:.4f} is not above a_0 - 1/alpha = "
                f"{bound:.4f} (tau_0={self.tau_0}, alpha={self.alpha}, a_0={self.a_0}); "
                f"lower alpha or a_0",
                "alpha",
                "a_0",
            )
        self.mean_positive.fill_(aligned)

    def forward(self, similarity: Tensor) -> Tensor:
        tau = self.tau_0 * (1 + self.alpha * (self.mean_positive - self.a_0))
        return tau.to(similarity).expand_as(similarity)
