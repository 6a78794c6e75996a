"""The numbers behind the figures; no drawing here. Slopes and gradients are autograd's, of the losses' terms."""

from __future__ import annotations

import math
import warnings
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from dystress_text.core.registry import Temperature
from dystress_text.core.temperature import (
    ConstantTemperature,
    CosineTemperature,
    EvenODETemperature,
    ExponentialTemperature,
    LinearTemperature,
    MonotonicCosineTemperature,
    OneSidedCosineTemperature,
    ShiftedCosineTemperature,
    ode_temperature,
)

NEGATIVES = 63  # per anchor, in the paper's text batch of 64
ODE_TAU_MAX = 0.2  # at the ends that the constants of the ODE's figure are chosen to meet
ODE_PRODUCTS = ((0.01, 50.0), (0.1, 50.0), (0.1, 200.0))  # delta and K; the paper does not name its own
# the paper's versions of the shifted minimum: shift and scale of 1 and 2; of 3, minus the plateau's start
SHIFTED = {"1a": (0.2, 0.6), "1b": (0.4, 0.7), "2a": (-0.2, 0.6), "2b": (-0.4, 0.7)}
ONE_SIDED = {"3a": 0.2, "3b": 0.4}
_quiet = partial(warnings.catch_warnings, action="ignore")  # the logit of some rows falls


def similarities(points: int = 1201) -> Tensor:
    """An even grid over [-1, 1] in fp64, (points,)."""
    return torch.linspace(-1, 1, points, dtype=torch.float64)


def profiles() -> dict[str, Temperature]:
    """Every function of the similarity, at the paper's range for ImageNet."""
    return {
        "cosine": CosineTemperature(0.1, 0.2),
        "linear": LinearTemperature(0.1, 0.2),
        "exponential": ExponentialTemperature(0.1, 0.2),
        "monotonic cosine": MonotonicCosineTemperature(0.1, 0.2),
        "even ODE": EvenODETemperature(0.1, 0.2),
        "constant, 0.15": ConstantTemperature(0.15),
    }


def ranges() -> dict[str, dict[str, Temperature]]:
    """The temperature ranges of the ImageNet100 ablation and of the text table, by panel and by label."""
    images = [(0.07, 0.1), (0.07, 0.5), (0.07, 0.2), (0.1, 0.2)]
    text = [(0.03, 0.05), (0.02, 0.05), (0.05, 0.07), (0.04, 0.05)]
    with _quiet():
        return {
            "images: cosine": {f"{low} to {high}": CosineTemperature(low, high) for low, high in images},
            "text: shifted cosine, $\\Delta s$ = -0.4": {
                f"{low} to {high}": ShiftedCosineTemperature(low, high, shift=-0.4) for low, high in text
            },
        }


def shifts() -> dict[str, Temperature]:
    """The three versions of the shifted minimum, two shifts each, and two more; at the paper's range for ImageNet."""

    label = "$\\Delta s$ = {:g}, k = {:g}"
    shifted = {f"{name}: {label.format(*values)}": values for name, values in SHIFTED.items()}
    shifted |= {label.format(*values): values for values in ((-0.6, 0.8), (0.0, 0.5))}
    with _quiet():
        named: dict[str, Temperature] = {
            name: ShiftedCosineTemperature(0.1, 0.2, shift=shift, scale=scale)
            for name, (shift, scale) in shifted.items()
        }
        zero = named.popitem()  # the figure has it after version 3
        sided = {
            f"{name}: plateau from {-s:g}": OneSidedCosineTemperature(0.1, 0.2, shift=s)
            for name, s in ONE_SIDED.items()
        }
    return {**named, **sided, **dict([zero])}


def ode_solutions(delta: float, k: float, s: Tensor) -> dict[str, Tensor]:
    """Solutions of the paper's ODE over the similarity, by the name of their constant; NaN where there is none.

    Two constants meet ``ODE_TAU_MAX`` at s = -1 and at s = +1. One is the paper's upper end, where the sign of delta K
    is a slip. Two lie between.
    """
    product = delta * k
    low, high = math.exp(-1 / ODE_TAU_MAX), math.exp(1 / ODE_TAU_MAX)
    constants = {
        "$c^-$: meets $\\tau_{max}$ at s = -1": -product - low,
        "$c = -\\delta K - 2$": -product - 2,
        "$c = -\\delta K - 20$": -product - 20,
        "$c^+$ as the paper prints it": -product - high,
        "$c^+$: meets $\\tau_{max}$ at s = 1": product - high,
    }
    return {name: ode_temperature(s, product, c) for name, c in constants.items()}


def logits() -> dict[str, Temperature]:
    """Three of the paper's rows: one whose logit rises everywhere, two whose logit falls somewhere."""
    with _quiet():
        return {
            "text default\nshifted 0.05 to 0.07": ShiftedCosineTemperature(0.05, 0.07, shift=-0.4),
            "text, widest\nshifted 0.02 to 0.05": ShiftedCosineTemperature(0.02, 0.05, shift=-0.4),
            "images, widest\ncosine 0.07 to 0.5": CosineTemperature(0.07, 0.5),
        }


def logit(temperature: Temperature, s: Tensor) -> Tensor:
    """``s / tau(s)``, the same shape as ``s``."""
    tau: Tensor = temperature(s)
    return (s / tau).detach()


def gradient_factor(temperature: Temperature, s: Tensor, detached: bool) -> Tensor:
    """Slope of the logit by the similarity: (tau - s tau') / tau^2, or 1 / tau with the temperature detached."""
    s = s.detach().requires_grad_()
    (slope,) = torch.autograd.grad((s / temperature(s.detach() if detached else s)).sum(), s)
    return slope


def gradient_fields() -> dict[str, tuple[Temperature, bool]]:
    """Temperatures of the gradient field, and whether each is detached."""
    shifted = ShiftedCosineTemperature(0.03, 0.05, shift=-0.4)
    return {
        "constant 0.05": (ConstantTemperature(0.05), True),
        "shifted 0.03 to 0.05,\n$\\tau$ detached": (shifted, True),
        "shifted 0.03 to 0.05,\nthrough $\\tau(s)$": (shifted, False),
    }


def gradient_field(
    temperature: Temperature, detached: bool, positive: Tensor, negative: Tensor, negatives: int = NEGATIVES
) -> tuple[Tensor, Tensor]:
    """Gradient of an anchor's InfoNCE whose negatives all have one similarity.

    Args:
        temperature: of all pairs.
        detached: whether it stays out of the gradient.
        positive: similarity of the positive, any shape.
        negative: similarity of the negatives, same shape.
        negatives: how many there are.

    Returns:
        ``-dL/ds_positive``, the pull on the positive, and the sum of ``dL/ds_negative`` over the negatives, the push.
    """
    positive, negative = positive.detach().requires_grad_(), negative.detach().requires_grad_()
    of_positive, of_negative = (s / temperature(s.detach() if detached else s) for s in (positive, negative))
    loss = F.softplus(of_negative + math.log(negatives) - of_positive)
    pull, push = torch.autograd.grad(loss.sum(), [positive, negative])
    return -pull, push
