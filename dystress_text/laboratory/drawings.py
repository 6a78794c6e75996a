"""The paper's figures from this package's own temperatures: 12 cm wide, text from 7 points.

Needs the ``plots`` extra.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dystress_text.core.temperature import (
    ConstantTemperature,
    CosineTemperature,
    EvenODETemperature,
    ExponentialTemperature,
    LinearTemperature,
    MonotonicCosineTemperature,
    OneSidedCosineTemperature,
    ShiftedCosineTemperature,
    Temperature,
    ode_temperature,
)
from dystress_text.report.plots import (
    GREY,
    SIMILARITIES,
    STYLES,
    WIDTH,
    dress,
    legend_below,
    style,
    subplots,
)

Named = Mapping[str, Temperature]
ODE_TAU_MAX = 0.2  # at the ends that the constants of the ODE's figure are chosen to meet
ODE_PRODUCTS = (
    (0.01, 50.0),
    (0.1, 50.0),
    (0.1, 200.0),
)  # delta and K; the paper does not name its own
_TAU = "temperature $\\tau(s)$"


def draw_profiles() -> Figure:
    """Every temperature function at the paper's range for ImageNet, one in each panel, the others
    behind it.
    """
    named: Named = {
        "cosine": CosineTemperature(0.1, 0.2),
        "linear": LinearTemperature(0.1, 0.2),
        "exponential": ExponentialTemperature(0.1, 0.2),
        "monotonic cosine": MonotonicCosineTemperature(0.1, 0.2),
        "even ODE": EvenODETemperature(0.1, 0.2),
        "constant, 0.15": ConstantTemperature(0.15),
    }
    return _one_a_panel(named, named, "grey: the other five")


def draw_shifts() -> Figure:
    """The paper's versions of the shifted minimum, and two more shifts; the cosine behind, a dot at
    the minimum.
    """
    versions = {
        "1a": (0.2, 0.6),
        "1b": (0.4, 0.7),
        "2a": (-0.2, 0.6),
        "2b": (-0.4, 0.7),
        "": (-0.6, 0.8),
        " ": (0, 0.5),
    }
    named: dict[str, Temperature] = {
        f"{name} $\\Delta s$ = {shift:g}, k = {scale:g}": ShiftedCosineTemperature(
            0.1, 0.2, shift=shift, scale=scale
        )
        for name, (shift, scale) in versions.items()
    }
    for name, shift in {"3a": 0.2, "3b": 0.4}.items():
        named[f"{name} plateau from {-shift:g}"] = OneSidedCosineTemperature(0.1, 0.2, shift=shift)
    figure = _one_a_panel(
        named, {"cosine, no shift": CosineTemperature(0.1, 0.2)}, "grey: no shift; dot: the minimum"
    )
    for axes, temperature in zip(figure.axes, named.values(), strict=False):
        tau = temperature(SIMILARITIES)
        axes.plot(
            SIMILARITIES[tau.argmin()],
            tau.min(),
            "o",
            color=STYLES[1][0],
            markersize=4.5,
            clip_on=False,
        )
    return figure


def _one_a_panel(named: Named, behind: Named, note: str) -> Figure:
    """Temperatures, one in each panel, three panels in a row; others behind each in grey."""
    rows = -(-len(named) // 3)
    figure, grid = subplots(rows, 3, (WIDTH, 0.45 + 1.25 * rows), sharex=True, sharey=True)
    for axes, (name, temperature) in zip(grid.flat, named.items(), strict=False):
        for other in behind.values():
            axes.plot(SIMILARITIES, other(SIMILARITIES), color=GREY, linewidth=0.8, alpha=0.7)
        axes.plot(SIMILARITIES, temperature(SIMILARITIES), color=STYLES[0][0], linewidth=2)
        dress(axes, "", name)
        axes.set(xlabel="", yticks=[0.1, 0.15, 0.2], ylim=(0.09, 0.21))
    for axes in grid.flat[len(named) :]:
        axes.axis("off")
    figure.supylabel(_TAU, fontsize=7.5)
    figure.supxlabel(f"cosine similarity s   ({note})", fontsize=7.5)
    return figure


def _plot(axes: Axes, curves: Mapping[str, torch.Tensor], s: torch.Tensor = SIMILARITIES) -> None:
    """Curves over the similarity, by their labels, each in a style of its own."""
    for (label, values), (colour, line) in zip(curves.items(), STYLES, strict=False):
        axes.plot(s, values, linestyle=line, color=colour, label=label)


def draw_default() -> Figure:
    """The temperature of text runs and its logit beside others: the README's picture."""
    named: Named = {
        "shifted cosine, -0.4 (default)": ShiftedCosineTemperature(0.05, 0.07, shift=-0.4),
        "cosine": CosineTemperature(0.05, 0.07),
        "linear": LinearTemperature(0.05, 0.07),
        "constant (SimCSE)": ConstantTemperature(0.05),
    }
    taus = {name: temperature(SIMILARITIES) for name, temperature in named.items()}
    figure, (left, right) = subplots(1, 2, (WIDTH, 2.4))
    _plot(left, taus)
    _plot(right, {name: SIMILARITIES / tau for name, tau in taus.items()})
    dress(left, _TAU, "temperature of a pair")
    dress(right, "logit $s/\\tau(s)$", "its logit in the softmax")
    legend_below(figure, left, columns=2)
    return figure


def ode_solutions(delta: float, k: float, s: torch.Tensor) -> dict[str, torch.Tensor]:
    """Solutions of the paper's ODE over the similarity, by the name of their constant; NaN where
    there is none.

    Two constants meet ``ODE_TAU_MAX`` at s = -1 and at s = +1. One is the paper's upper end, where
    the sign of delta K is a slip. Two lie between.
    """
    product, low, high = delta * k, math.exp(-1 / ODE_TAU_MAX), math.exp(1 / ODE_TAU_MAX)
    constants = {
        "$c^-$: meets $\\tau_{max}$ at s = -1": -product - low,
        "$c = -\\delta K - 2$": -product - 2,
        "$c = -\\delta K - 20$": -product - 20,
        "$c^+$ as the paper prints it": -product - high,
        "$c^+$: meets $\\tau_{max}$ at s = 1": product - high,
    }
    return {name: ode_temperature(s, product, c) for name, c in constants.items()}


def draw_ode() -> Figure:
    """Solutions of the paper's ODE: a panel for each delta and K, a curve for each constant."""
    s = torch.linspace(-1, 1, 20001, dtype=torch.float64)
    s = s[s != 0]  # 0 / log is 0 there for all but one constant, which belongs to no branch
    figure, panels = subplots(1, len(ODE_PRODUCTS), (WIDTH, 3.2), sharey=True)
    for axes, (delta, k) in zip(panels, ODE_PRODUCTS, strict=True):
        axes.axhline(ODE_TAU_MAX, color=GREY, linewidth=0.8)
        _plot(
            axes,
            {
                name: tau.where(tau < 2, torch.nan)
                for name, tau in ode_solutions(delta, k, s).items()
            },
            s,
        )
        axes.plot(
            [-1, 1], [ODE_TAU_MAX] * 2, "o", color="black", markersize=3.5, clip_on=False, zorder=5
        )
        dress(axes, _TAU, f"$\\delta$ = {delta:g}, K = {k:g}\n$\\delta K$ = {delta * k:g}")
        axes.set(
            xticks=[-1, 0, 1], ylim=(0, 0.6), xlim=(-1.06, 1.06)
        )  # some solutions exist only close to s = -1
        axes.label_outer()
    panels[0].text(-0.95, 0.205, "$\\tau_{max}$", fontsize=7.5, va="bottom")
    legend_below(figure, panels[0], columns=2)
    return figure


def slope(temperature: Temperature, s: torch.Tensor, detached: bool) -> torch.Tensor:
    """Slope of the logit s / tau(s) by the similarity: (tau - s tau') / tau^2, or 1 / tau with tau
    detached.
    """
    s = s.detach().requires_grad_()
    tau = temperature(s).expand_as(s)
    (gradient,) = torch.autograd.grad((s / (tau.detach() if detached else tau)).sum(), s)
    return gradient


def draw_logit() -> Figure:
    """The logit and its slope over the similarity; the region where the logit falls is marked."""
    named: Named = {
        "text default\nshifted 0.05 to 0.07": ShiftedCosineTemperature(0.05, 0.07, shift=-0.4),
        "text, widest\nshifted 0.02 to 0.05": ShiftedCosineTemperature(0.02, 0.05, shift=-0.4),
        "images, widest\ncosine 0.07 to 0.5": CosineTemperature(0.07, 0.5),
    }
    s = SIMILARITIES
    figure, grid = subplots(2, len(named), (WIDTH, 3.9), sharex=True)
    for (above, below), (title, temperature) in zip(grid.T, named.items(), strict=True):
        full = slope(temperature, s, detached=False)
        above.plot(s, s / temperature(s), color=STYLES[0][0])
        below.axhline(0, color="black", linewidth=0.6)
        slopes = {
            "through $\\tau(s)$: $d(s/\\tau)/ds$": full,
            "$\\tau$ detached, as in the paper's code: $1/\\tau$": slope(
                temperature, s, detached=True
            ),
        }
        _plot(below, slopes)
        dress(above, "", title)
        dress(below, "", "")
        above.set_xlabel("")
        for axes in (above, below):
            axes.set_xticks([-1, 0, 1])
            axes.fill_between(
                s, 0, 1, where=(full < 0).numpy(), transform=axes.get_xaxis_transform(), color=STYLES[1][0],
                alpha=0.16, linewidth=0, label="the logit falls as s rises",
            )  # fmt: skip
    grid[0, 0].set_ylabel("logit $s/\\tau(s)$")
    grid[1, 0].set_ylabel("gradient factor")
    legend_below(figure, grid[1, 0], columns=2)
    return figure


def make(name: str) -> Figure:
    """The figure of that name."""
    drawings = (draw_default, draw_profiles, draw_shifts, draw_ode, draw_logit)
    with style(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the logit of some rows falls
        figure = next(draw for draw in drawings if draw.__name__ == f"draw_{name}")()
        figure.draw_without_rendering()  # lays it out under these settings
        return figure
