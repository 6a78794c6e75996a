"""Temperatures: tau as a function of the cosine similarity of a pair.

A *profile* is ``tau(s) = tau_min + (tau_max - tau_min) * shape(s)`` with a shape in [0, 1]. The
formulas are those of Manna et al., "Dynamically Scaled Temperature in Self-Supervised Contrastive
Learning" (DySTreSS), unless a docstring names another source.
"""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from dystress_text.errors import plain
from dystress_text.losses.registry import LossPart, check_number, register

DYSTRESS = "DySTreSS, the temperature (Manna et al., 2023)"
_GRID = torch.linspace(-1, 1, 4001, dtype=torch.float64)


class Temperature(LossPart, ABC):
    """Base of all temperatures, functions of the similarity.

    Examples:
        >>> class Step(Temperature):
        ...     def forward(self, similarity):
        ...         return torch.where(similarity > 0.5, 0.07, 0.05).to(similarity)
        >>> Step()(torch.tensor([0.0, 1.0]))
        tensor([0.0500, 0.0700])
    """

    @abstractmethod
    def forward(self, similarity: Tensor) -> Tensor:
        """Return the temperature of each pair, of the shape, dtype and device of ``similarity``.

        It must be elementwise and deterministic, since large batches are computed block by block,
        and twice.
        """

    def observe(self, mean_positive: Tensor) -> None:
        """Receive the mean positive similarity of the global batch, a scalar, from the loss."""

    def advance(self, epoch: float, run_fraction: float) -> None:
        """Receive the progress from the training loop before each step.

        Args:
            epoch: epochs done.
            run_fraction: fraction of the run in [0, 1].
        """

    @property
    def needs_mean_positive(self) -> bool:
        return type(self).observe is not Temperature.observe

    @property
    def needs_progress(self) -> bool:
        return type(self).advance is not Temperature.advance


class TemperatureError(ValueError):
    """Raised where a batch gives a temperature that is not positive.

    Examples:
        >>> adaptive = InfoNCELoss(AlignmentAdaptiveTemperature(0.05, alpha=2, a_0=0.8))
        >>> adaptive(torch.eye(2), -torch.eye(2))  # positives far apart
        Traceback (most recent call last):
            ...
        dystress_text.losses.temperature.TemperatureError: the alignment-adaptive temperature ...
    """


@register("constant")
class ConstantTemperature(Temperature):
    """The same temperature for every pair, as in SimCLR and SimCSE (text: 0.05).

    Examples:
        >>> ConstantTemperature(0.05)(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([0.0500, 0.0500, 0.0500])
    """

    def __init__(self, tau: float) -> None:
        super().__init__()
        self.tau = check_number("tau", tau, "(0, inf)")

    def as_argument(self) -> Temperature | float:
        return self.tau if type(self) is ConstantTemperature else self

    def forward(self, similarity: Tensor) -> Tensor:
        return similarity.new_full((), self.tau).expand_as(similarity)


def as_temperature(temperature: Temperature | float) -> Temperature:
    """Convert a number to a constant temperature; return a temperature unchanged."""
    temperature = plain(temperature)
    if isinstance(temperature, (int, float)):
        return ConstantTemperature(float(temperature))
    if not isinstance(temperature, Temperature):
        raise TypeError(f"temperature must be a temperature or a number, got {temperature!r}")
    return temperature


class ProfileTemperature(Temperature):
    """Base of the profiles: ``tau_min + (tau_max - tau_min) * shape(similarity)``.

    A subclass sets the attributes that its shape needs before it calls this constructor.

    Args:
        tau_min: temperature where the shape is 0; positive.
        tau_max: temperature where the shape is 1; at least ``tau_min``.

    Raises:
        ValueError: the range is empty, or a temperature is not positive.

    Examples:
        >>> class Quadratic(ProfileTemperature):
        ...     def shape(self, similarity):
        ...         return similarity.square()
        >>> Quadratic(0.05, 0.07)(torch.tensor([-1.0, 0.0, 0.5]))
        tensor([0.0700, 0.0500, 0.0550])
    """

    source = DYSTRESS

    def __init__(self, tau_min: float, tau_max: float) -> None:
        super().__init__()
        self.tau_max = check_number("tau_max", tau_max, "(0, inf)")
        self.tau_min = check_number("tau_min", tau_min, f"(0, {self.tau_max}]")
        if not bool((self(_GRID) > 0).all()):
            raise ValueError(f"shape of {self!r} has temperatures that are not positive")
        self._warn_where_the_logit_falls()

    @abstractmethod
    def shape(self, similarity: Tensor) -> Tensor:
        """Return 0 where the temperature is tau_min, 1 where it is tau_max; elementwise."""

    def forward(self, similarity: Tensor) -> Tensor:
        return self.tau_min + (self.tau_max - self.tau_min) * self.shape(similarity)

    def _warn_where_the_logit_falls(self) -> None:
        """Warn where a pair that comes closer is treated as if it moved apart.

        With ``tau = tau_min + D g(s)`` the logit rises where ``D (s g' - g) < tau_min``,
        so everywhere for ``tau_max / tau_min < 1 + 1 / max(s g' - g)``.
        """
        slope = torch.gradient(self.shape(_GRID), spacing=(_GRID,))[0]  # g', (4001,)
        excess = _GRID * slope - self.shape(_GRID)  # (4001,)
        falling = _GRID[(self.tau_max - self.tau_min) * excess > self.tau_min * (1 + 1e-6)]
        if len(falling):
            warnings.warn(
                f"{self!r}: the logit s / tau(s) falls as s rises, between {falling[0]:.2f} "
                f"and {falling[-1]:.2f}; it rises everywhere if tau_max / tau_min is below "
                f"{1 + 1 / excess.max():.3f} (here {self.tau_max / self.tau_min:.3f})",
                stacklevel=2,
            )


@register("cosine")
class CosineTemperature(ProfileTemperature):
    """DySTreSS (Alg. 1): ``tau_min`` at s = 0, ``tau_max`` at s = -1 and s = 1.

    ``tau(s) = tau_min + (tau_max - tau_min) / 2 * (1 + cos(pi (1 + s)))``. The paper uses 0.07/0.2
    on CIFAR, 0.1/0.2 on ImageNet and 0.03/0.05 on text. ``tau_min == tau_max`` is the constant
    temperature.

    Examples:
        >>> CosineTemperature(0.1, 0.2)(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([0.2000, 0.1000, 0.2000])
    """

    def shape(self, similarity: Tensor) -> Tensor:
        return 0.5 * (1 - torch.cos(math.pi * similarity))


@register("shifted_cosine")
class ShiftedCosineTemperature(ProfileTemperature):
    """Shifted DySTreSS (Alg. 2), the default for text: 0.05/0.07 with shift -0.4.

    For ``shift <= 0`` a cosine dip on ``s <= -shift`` and the constant ``tau_max`` above it; for
    ``shift > 0`` the mirror image. The minimum is at ``-shift - scale`` or ``-shift + scale``. The
    paper's rows "+", "*" and "**" have shift and scale ``(-0.2, 0.6)``, ``(-0.4, 0.7)`` and
    ``(-0.6, 0.8)``; ``(-1, 1)`` is :class:`CosineTemperature`.

    Args:
        tau_min: the minimum; positive.
        tau_max: the plateau; at least ``tau_min``.
        shift: minus the plateau's edge; in [-1, 1].
        scale: half the width of the dip (the paper's k). Default ``(1 + |shift|) / 2``, so that
            the temperature is ``tau_max`` at s = -1 and s = 1.

    Examples:
        >>> tau = ShiftedCosineTemperature(0.05, 0.07, shift=-0.4)
        >>> tau(torch.tensor([-1.0, -0.3, 0.4, 1.0]))
        tensor([0.0700, 0.0500, 0.0700, 0.0700])
    """

    def __init__(
        self, tau_min: float, tau_max: float, shift: float, scale: float | None = None
    ) -> None:
        self.shift = check_number("shift", shift, "[-1, 1]")
        self.scale = scale
        half_width = (1 + abs(self.shift)) / 2 if scale is None else scale
        self.half_width = check_number("scale", half_width, "(0, inf)")
        super().__init__(tau_min, tau_max)

    def shape(self, similarity: Tensor) -> Tensor:
        offset = similarity + self.shift
        # 0 on the plateau
        offset = offset.clamp(max=0) if self.shift <= 0 else offset.clamp(min=0)
        return 0.5 * (1 + torch.cos(math.pi / self.half_width * offset))


@register("one_sided_cosine")
class OneSidedCosineTemperature(ProfileTemperature):
    """A half cosine from ``tau_min`` at s = -1 to a plateau from s = -shift on ("version 3").

    The paper's CIFAR ablation has plateaus from -0.2 and from -0.4 on.

    Args:
        tau_min: the minimum, at s = -1; positive.
        tau_max: the plateau; at least ``tau_min``.
        shift: minus the plateau's edge; in [-1, 1).

    Examples:
        >>> OneSidedCosineTemperature(0.05, 0.07, shift=-0.4)(torch.tensor([-1.0, 0.4, 1.0]))
        tensor([0.0500, 0.0700, 0.0700])
    """

    def __init__(self, tau_min: float, tau_max: float, shift: float) -> None:
        self.shift = check_number("shift", shift, "[-1, 1)")
        super().__init__(tau_min, tau_max)

    def shape(self, similarity: Tensor) -> Tensor:
        return 0.5 * (1 - torch.cos(math.pi * ((similarity + 1) / (1 - self.shift)).clamp(max=1)))


@register("linear")
class LinearTemperature(ProfileTemperature):
    """``tau_min + (tau_max - tau_min) |s|`` (the "linear" row of Table abltempfunc).

    Examples:
        >>> LinearTemperature(0.1, 0.2)(torch.tensor([-1.0, 0.0, 0.5]))
        tensor([0.2000, 0.1000, 0.1500])
    """

    def shape(self, similarity: Tensor) -> Tensor:
        return similarity.abs()


@register("exponential")
class ExponentialTemperature(ProfileTemperature):
    """``tau_min + (tau_max - tau_min) (1 - exp(-c |s|)) / (1 - exp(-c))`` (Table abltempfunc).

    Args:
        tau_min: the minimum, at s = 0; positive.
        tau_max: the maximum, at s = -1 and s = 1.
        sharpness: c; a larger one makes the dip narrower.

    Examples:
        >>> ExponentialTemperature(0.1, 0.2)(torch.tensor([-1.0, 0.0, 0.5]))
        tensor([0.2000, 0.1000, 0.1852])
    """

    def __init__(self, tau_min: float, tau_max: float, sharpness: float = 3.5) -> None:
        self.sharpness = check_number("sharpness", sharpness, "(0, inf)")
        super().__init__(tau_min, tau_max)

    def shape(self, similarity: Tensor) -> Tensor:
        return torch.expm1(-self.sharpness * similarity.abs()) / math.expm1(-self.sharpness)


@register("monotonic_cosine")
class MonotonicCosineTemperature(ProfileTemperature):
    """``tau_min`` at s = -1 rising to ``tau_max`` at s = +1 along a half cosine (Table monotony).

    Examples:
        >>> MonotonicCosineTemperature(0.1, 0.2)(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([0.1000, 0.1500, 0.2000])
    """

    def shape(self, similarity: Tensor) -> Tensor:
        return 0.5 * (1 + torch.sin(0.5 * math.pi * similarity))


@register("even_ode")
class EvenODETemperature(ProfileTemperature):
    """A profile like the solutions of the paper's ODE (Eq. tauij), from ``tau_min`` to ``tau_max``.

    No solution has ``tau_max`` at both ends and ``tau_min`` at 0. This profile mirrors the branch
    through ``tau(0) = tau_min``, ``g(s) = |s| / log(1 + |s| / tau_min)``, and stretches it to
    ``tau_max``. The paper does not have it.

    Examples:
        >>> EvenODETemperature(0.1, 0.2)(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([0.2000, 0.1000, 0.2000])
    """

    def shape(self, similarity: Tensor) -> Tensor:
        ratio = similarity.abs() / self.tau_min
        near_zero = ratio < 1e-3  # where g / tau_min - 1 cancels: use its Taylor series
        safe = torch.where(near_zero, torch.ones_like(ratio), ratio)
        series = ratio * (1 / 2 - ratio * (1 / 12 - ratio * (1 / 24 - ratio * (19 / 720))))
        # g(|s|) / tau_min - 1
        excess = torch.where(near_zero, series, safe / torch.log1p(safe) - 1)
        return excess / (1 / (self.tau_min * math.log1p(1 / self.tau_min)) - 1)


@register("temo")
class TeMoTemperature(ProfileTemperature):
    """TeMo: ``tau_0 + alpha sqrt((1 + s) / 2)`` (submission 9080 to ICLR 2026).

    Published for images with captions, with tau_0 = 0.01, alpha = 0.04 and
    ``detach_temperature=False``.

    Args:
        tau_0: temperature at s = -1; positive.
        alpha: rise from s = -1 to s = 1; not negative.

    Examples:
        >>> TeMoTemperature(0.01, alpha=0.04)(torch.tensor([-1.0, -0.5, 1.0]))
        tensor([0.0100, 0.0300, 0.0500])
    """

    source = 'TeMo ("Temperature Modulation", submission 9080 to ICLR 2026)'

    def __init__(self, tau_0: float, alpha: float) -> None:
        self.tau_0 = check_number("tau_0", tau_0, "(0, inf)")
        self.alpha = check_number("alpha", alpha, "[0, inf)")
        super().__init__(self.tau_0, self.tau_0 + self.alpha)

    def shape(self, similarity: Tensor) -> Tensor:
        return (0.5 * (1 + similarity)).clamp(min=1e-12).sqrt()  # rounding may give s < -1
