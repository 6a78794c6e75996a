"""Temperatures: tau as a function of the cosine similarity of a pair.

A *profile* maps a similarity in [-1, 1] to a temperature through a dimensionless shape in [0, 1]:
``tau(s) = tau_min + (tau_max - tau_min) * shape(s)``. The shapes are plain functions; each profile is one small class
around one of them.

Source of all formulas: Manna et al., "Dynamically Scaled Temperature in Self-Supervised Contrastive Learning"
(DySTreSS), unless a docstring names another one.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from dystress_text.core.registry import Temperature, register_temperature
from dystress_text.core.shapes import (
    broken_line_shape,
    cosine_shape,
    even_ode_shape,
    exponential_shape,
    linear_shape,
    monotonic_cosine_shape,
    one_sided_cosine_shape,
    shifted_cosine_shape,
    square_root_shape,
)

Shape = Callable[[Tensor], Tensor]
T = TypeVar("T")


class TemperatureError(ValueError):
    """A temperature cannot go on with a batch of the run; the message gives the values.

    Attributes:
        options: the parameters that can mend it.
    """

    def __init__(self, message: str, *options: str) -> None:
        super().__init__(message)
        self.options = options


def check_tau(name: str, tau: float) -> None:
    """Refuse a temperature that is not positive and finite, with a ValueError that names the argument."""
    if isinstance(tau, bool) or not 0 < tau < math.inf:
        raise ValueError(
            f"{name} must be a positive, finite number, got {tau}: similarities are divided by the temperature"
        )


def check_range(tau_min: float, tau_max: float) -> None:
    """Refuse a range that is empty or not positive, with a ValueError."""
    check_tau("tau_min", tau_min)
    check_tau("tau_max", tau_max)
    if tau_min > tau_max:
        raise ValueError(f"tau_min must not exceed tau_max, got tau_min={tau_min} > tau_max={tau_max}")


def expand_to(value: Tensor, like: Tensor) -> Tensor:
    """A scalar expanded to the shape of ``like``, without a copy."""
    return value.to(like.dtype).to(like.device).expand_as(like)


@register_temperature("constant")
class ConstantTemperature(Temperature):
    """The same temperature for every pair, as in SimCLR and SimCSE (text: 0.05).

    Args:
        tau: the temperature, positive.
    """

    def __init__(self, tau: float = 0.05) -> None:
        super().__init__()
        check_tau("tau", tau)
        self.tau = tau

    def forward(self, similarity: Tensor) -> Tensor:
        return torch.full((), self.tau, dtype=similarity.dtype, device=similarity.device).expand_as(similarity)

    def values(self) -> dict[str, Any]:
        return {"tau": self.tau}


def constant_if_number(temperature: T | float) -> T | ConstantTemperature:
    """A number as a constant temperature; anything else as it is."""
    if isinstance(temperature, (int, float)) and not isinstance(temperature, bool):
        return ConstantTemperature(float(temperature))
    return temperature  # type: ignore[return-value]


class ProfileTemperature(Temperature):
    """A similarity-dependent temperature: ``tau_min + (tau_max - tau_min) * shape(similarity)``.

    The base of the named profiles, and of your own. At construction the profile is evaluated on a grid. It must be
    positive. If the logit ``s / tau(s)`` falls somewhere while the similarity rises, a warning says so: a pair that
    gets closer is then treated as if it moved apart.

    Args:
        tau_min: temperature where the shape is 0; positive.
        tau_max: temperature where the shape is 1; not below ``tau_min``.
        shape: an elementwise function from similarities in [-1, 1] to, as a rule, [0, 1].

    Raises:
        ValueError: the range is empty or not positive, or the profile is not positive everywhere.
    """

    def __init__(self, tau_min: float, tau_max: float, shape: Shape) -> None:
        super().__init__()
        check_range(tau_min, tau_max)
        self.tau_min = tau_min
        self.tau_max = tau_max
        self.shape = shape
        self._check_positive()
        self._warn_if_logit_falls()

    def forward(self, similarity: Tensor) -> Tensor:
        return self.tau_min + (self.tau_max - self.tau_min) * self.shape(similarity)

    def values(self) -> dict[str, Any]:
        of_shape = getattr(self.shape, "keywords", {})  # the parameters of a partial shape
        return {"tau_min": self.tau_min, "tau_max": self.tau_max, **of_shape}

    def _check_positive(self) -> None:
        grid = torch.linspace(-1, 1, 4001, dtype=torch.float64)
        tau = self(grid)
        worst = int(tau.argmin())
        if not bool((tau > 0).all()):
            raise ValueError(f"{self!r} is not positive: tau({grid[worst]:.3f}) = {tau[worst]:.4g}")

    def _warn_if_logit_falls(self) -> None:
        fall = falling_logit(self)
        if fall is not None:
            low, high, critical = fall
            warnings.warn(
                f"{self!r}: the logit s / tau(s) falls as s rises, between s = {low:.2f} and {high:.2f}; for this "
                f"profile it rises everywhere while tau_max / tau_min < {critical:.3f} (here "
                f"{self.tau_max / self.tau_min:.3f})",
                stacklevel=4,
            )


def falling_logit(temperature: ProfileTemperature) -> tuple[float, float, float] | None:
    """The interval where the logit ``s / tau(s)`` falls while the similarity rises, if there is one.

    The logit rises where ``tau - s tau' > 0``. With ``tau = tau_min + D g(s)`` that is
    ``D (s g' - g) < tau_min``, so the largest ratio ``tau_max / tau_min`` for which it rises everywhere is
    ``1 + 1 / max(s g' - g)``.

    Returns:
        ``(low, high, critical_ratio)``, the hull of the falling region and that largest ratio; None if the logit rises
        everywhere.
    """
    grid = torch.linspace(-1, 1, 4001, dtype=torch.float64)
    steepness = grid * _slope(temperature.shape, grid) - temperature.shape(grid)  # (4001,), s g' - g
    span = temperature.tau_max - temperature.tau_min
    falling = grid[span * steepness > temperature.tau_min * (1 + 1e-9)]
    if len(falling) == 0:
        return None
    return float(falling[0]), float(falling[-1]), 1 + 1 / float(steepness.max())


def _slope(shape: Shape, grid: Tensor) -> Tensor:
    """Derivative of an elementwise function on a grid, by central differences (kinks average their two sides)."""
    step = 1e-6
    return (shape(grid + step) - shape(grid - step)) / (2 * step)


@register_temperature("cosine")
class CosineTemperature(ProfileTemperature):
    """The vanilla DySTreSS temperature (Alg. 1): lowest at s = 0, ``tau_max`` at s = -1 and s = +1.

    ``tau(s) = tau_min + (tau_max - tau_min) / 2 * (1 + cos(pi (1 + s)))``. The paper uses 0.07/0.2 on CIFAR, 0.1/0.2 on
    ImageNet and 0.03/0.05 on text. ``tau_min == tau_max`` is the constant temperature.
    """

    def __init__(self, tau_min: float = 0.1, tau_max: float = 0.2) -> None:
        super().__init__(tau_min, tau_max, cosine_shape)


@register_temperature("shifted_cosine")
class ShiftedCosineTemperature(ProfileTemperature):
    """The shifted DySTreSS temperature (Alg. 2), the default for text: 0.05/0.07 with shift -0.4.

    For ``shift <= 0`` a cosine dip on ``s <= -shift`` and the constant ``tau_max`` above it; for ``shift > 0`` the
    mirror image. The minimum lies at ``-shift - scale`` (``shift <= 0``) or ``-shift + scale``. The paper's rows "+",
    "*" and "**" are ``(-0.2, 0.6)``, ``(-0.4, 0.7)`` and ``(-0.6, 0.8)``; ``shift=-1, scale=1`` is the vanilla cosine.

    Args:
        tau_min: temperature at the bottom of the dip.
        tau_max: temperature on the plateau.
        shift: where the plateau starts, with the opposite sign; in [-1, 1].
        scale: half the width of the dip (the paper's k). Default ``(1 + |shift|) / 2``, which puts ``tau_max`` at
            s = -1 and s = +1.
    """

    def __init__(
        self, tau_min: float = 0.05, tau_max: float = 0.07, shift: float = -0.4, scale: float | None = None
    ) -> None:
        if not abs(shift) <= 1:
            raise ValueError(f"shift must lie in [-1, 1], got {shift}: the plateau starts at s = -shift")
        if scale is None:
            scale = (1 + abs(shift)) / 2
        if not 0 < scale < math.inf:
            raise ValueError(f"scale must be positive, got {scale}: it is half the width of the dip")
        super().__init__(tau_min, tau_max, partial(shifted_cosine_shape, shift=shift, scale=scale))


@register_temperature("one_sided_cosine")
class OneSidedCosineTemperature(ProfileTemperature):
    """A half cosine from ``tau_min`` at s = -1 to ``tau_max`` at s = -shift, constant above: "version 3" of the shifts.

    It breaks tau(-1) = tau_max on purpose. The paper's CIFAR ablation uses plateaus from -0.2 and from -0.4 on.

    Args:
        tau_min: temperature at s = -1.
        tau_max: temperature on the plateau.
        shift: where the plateau starts, with the opposite sign; in [-1, 1).
    """

    def __init__(self, tau_min: float = 0.07, tau_max: float = 0.2, shift: float = 0.2) -> None:
        if not -1 <= shift < 1:
            raise ValueError(f"shift must lie in [-1, 1), got {shift}: the plateau starts at s = -shift")
        super().__init__(tau_min, tau_max, partial(one_sided_cosine_shape, shift=shift))


@register_temperature("linear")
class LinearTemperature(ProfileTemperature):
    """``tau_min + (tau_max - tau_min) |s|`` (the "linear" row of Table abltempfunc)."""

    def __init__(self, tau_min: float = 0.1, tau_max: float = 0.2) -> None:
        super().__init__(tau_min, tau_max, linear_shape)


@register_temperature("exponential")
class ExponentialTemperature(ProfileTemperature):
    """``tau_min + (tau_max - tau_min) (1 - exp(-c |s|)) / (1 - exp(-c))`` (the "exponential" row of Table abltempfunc).

    Args:
        tau_min: temperature at s = 0.
        tau_max: temperature at s = -1 and s = +1.
        sharpness: c, positive; the larger, the narrower the dip.
    """

    def __init__(self, tau_min: float = 0.1, tau_max: float = 0.2, sharpness: float = 3.5) -> None:
        if not 0 < sharpness < math.inf:
            raise ValueError(f"sharpness must be positive, got {sharpness}; for no sharpness use the linear profile")
        super().__init__(tau_min, tau_max, partial(exponential_shape, sharpness=sharpness))


@register_temperature("monotonic_cosine")
class MonotonicCosineTemperature(ProfileTemperature):
    """``tau_min`` at s = -1 rising to ``tau_max`` at s = +1 along a half cosine (Table monotony)."""

    def __init__(self, tau_min: float = 0.1, tau_max: float = 0.2) -> None:
        super().__init__(tau_min, tau_max, monotonic_cosine_shape)


@register_temperature("even_ode")
class EvenODETemperature(ProfileTemperature):
    """A profile shaped like the solutions of the paper's ODE (Eq. tauij) that meets ``tau_min`` and ``tau_max``.

    No solution of the ODE itself has ``tau_max`` at both ends and ``tau_min`` at 0; this one mirrors the branch through
    ``tau(0) = tau_min`` and stretches it to ``tau_max``. It is an addition of this package.
    """

    def __init__(self, tau_min: float = 0.1, tau_max: float = 0.2) -> None:
        check_range(tau_min, tau_max)
        super().__init__(tau_min, tau_max, partial(even_ode_shape, tau_min=tau_min))


@register_temperature("temo")
class TeMoTemperature(ProfileTemperature):
    """TeMo's ``tau_0 + alpha sqrt((1 + s) / 2)`` ("Temperature Modulation", submission 9080 to ICLR 2026).

    It rises from ``tau_0`` at s = -1 to ``tau_0 + alpha`` at s = 1, for positives too. Published for images with texts:
    0.01 and 0.04, with ``detach_temperature=False``.

    Args:
        tau_0: temperature at s = -1; positive.
        alpha: how far it rises; not negative.
    """

    def __init__(self, tau_0: float = 0.01, alpha: float = 0.04) -> None:
        check_tau("tau_0", tau_0)
        if isinstance(alpha, bool) or not 0 <= alpha < math.inf:
            raise ValueError(f"alpha must be at least 0, got {alpha}")
        self.tau_0, self.alpha = tau_0, alpha
        super().__init__(tau_0, tau_0 + alpha, square_root_shape)

    def values(self) -> dict[str, Any]:
        return {"tau_0": self.tau_0, "alpha": self.alpha}


@register_temperature("piecewise_linear")
class PiecewiseLinearTemperature(ProfileTemperature):
    """Straight lines between knots, constant below the first and above the last one.

    Args:
        knots: pairs of a similarity in [-1, 1] and a temperature, the similarities rising; or texts such as
            ``"0.4:0.05"``.

    Raises:
        ValueError: fewer than two knots, or one that is out of order or not positive.
    """

    def __init__(self, knots: Sequence[tuple[float, float] | str]) -> None:
        pairs = [_knot(knot) for knot in knots]
        places = [place for place, _ in pairs]
        if len(pairs) < 2 or places != sorted(set(places)) or not -1 <= places[0] <= places[-1] <= 1:
            raise ValueError(f"knots must be at least two, their similarities rising within [-1, 1], got {places}")
        for _, tau in pairs:
            check_tau("knots", tau)
        taus = [tau for _, tau in pairs]
        low, high = min(taus), max(taus)
        heights = [(tau - low) / (high - low) if high > low else 0.0 for tau in taus]
        self.knots = pairs
        super().__init__(low, high, partial(broken_line_shape, places=tuple(places), heights=tuple(heights)))

    def values(self) -> dict[str, Any]:
        return {"knots": " ".join(f"{place:g}:{tau:g}" for place, tau in self.knots)}


def _knot(knot: tuple[float, float] | str) -> tuple[float, float]:
    try:
        place, tau = knot.split(":") if isinstance(knot, str) else knot
        return float(place), float(tau)
    except ValueError as error:
        raise ValueError(f"knots must be pairs such as 0.4:0.05, got {knot!r}") from error


def ode_temperature(similarity: Tensor, delta_k: float, c: float) -> Tensor:
    """The ODE family of the paper (Eq. tauij), ``s / log(delta K s - c)``, for plots.

    It solves ``d tau / ds = tau / s * (1 - tau delta K exp(-s / tau))`` (Eq. eqnnewdeltdels).

    Args:
        similarity: any shape.
        delta_k: the product delta K of the gradient bound and the sum over the other pairs.
        c: the integration constant.

    Returns:
        Temperatures of the same shape; NaN where the logarithm or the temperature is not positive.
    """
    argument = delta_k * similarity - c
    tau = similarity / torch.log(argument.clamp(min=torch.finfo(similarity.dtype).tiny))
    return torch.where((argument > 0) & (tau > 0) & torch.isfinite(tau), tau, torch.nan)
