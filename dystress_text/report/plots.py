"""The common style of all figures, and the picture in the README. Needs the ``plots`` extra.

python -m dystress_text.report.plots docs/temperature.png
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib.axes import Axes
from numpy.typing import NDArray

from dystress_text.core.registry import Temperature
from dystress_text.core.temperature import (
    ConstantTemperature,
    CosineTemperature,
    LinearTemperature,
    ShiftedCosineTemperature,
)

# a colour-blind-safe palette, and line styles so that print in grey still tells the curves apart
STYLES = [("#0072b2", "-"), ("#d55e00", "--"), ("#009e73", "-."), ("#595959", ":")]
MORE_COLOURS = ["#cc79a7", "#e69f00", "#56b4e9"]  # of the same palette, where four are not enough


def plot_temperatures(temperatures: Mapping[str, Temperature], file: str | Path) -> None:
    """Draw temperatures and their logits ``s / tau(s)`` over the similarity, side by side.

    Args:
        temperatures: curves by label, four at most.
        file: the picture; its ending says the format.
    """
    similarity = torch.linspace(-1, 1, 801, dtype=torch.float64)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.6), layout="constrained")
    for (label, temperature), (colour, line) in zip(temperatures.items(), STYLES, strict=False):
        tau = temperature(similarity)
        left.plot(similarity, tau, line, color=colour, linewidth=2)
        right.plot(similarity, similarity / tau, line, color=colour, linewidth=2, label=label)
    dress(left, "temperature tau(s)", "Temperature of a pair")
    dress(right, "s / tau(s)", "Its logit in the softmax")
    left.margins(y=0.12)
    right.legend(frameon=False, fontsize=9, loc="upper left")
    figure.savefig(file, dpi=150)
    plt.close(figure)


def plot_similarities(
    similarities: Mapping[str, NDArray[np.floating]], title: str, *, temperature: Temperature, source: str, file: Path
) -> None:
    """Draw histograms of similarities, and below them the temperature over the same axis.

    Args:
        similarities: cosines by kind of pair, three kinds.
        title: of the picture.
        temperature: the curve.
        source: where the temperature comes from.
        file: the picture; its ending says the format.
    """
    figure, (above, below) = plt.subplots(
        2, 1, figsize=(7.2, 5.6), layout="constrained", sharex=True, height_ratios=(2, 1)
    )
    for (label, values), (colour, line) in zip(similarities.items(), (STYLES[3], STYLES[1], STYLES[0]), strict=True):
        above.hist(
            values, bins=80, range=(-1, 1), density=True, histtype="step", linewidth=1.8, color=colour, linestyle=line,
            label=f"{label} (n = {len(values):,})",
        )  # fmt: skip
    above.legend(frameon=False, fontsize=9, loc="upper left")
    s = torch.linspace(-1, 1, 801, dtype=torch.float64)
    below.plot(s, temperature(s).detach().expand_as(s), color=STYLES[2][0], linewidth=2)
    dress_plain(above, "density", title)
    dress_plain(below, "temperature tau(s)", f"{temperature} ({source})", 9)
    below.set_xlabel("cosine similarity s")
    below.margins(y=0.2)
    below.set_xlim(-1, 1)
    figure.savefig(file, dpi=150)
    plt.close(figure)


def dress(axes: Axes, label: str, title: str, size: float = 11) -> None:
    """Label axes whose abscissa is the similarity, in the figures' common style; ``size`` is the title's, in points."""
    axes.set_xlabel("cosine similarity s")
    axes.set_xticks([-1, -0.5, 0, 0.5, 1])
    dress_plain(axes, label, title, size)


def dress_plain(axes: Axes, label: str, title: str, size: float = 11) -> None:
    """The same for axes with another abscissa."""
    axes.set_ylabel(label)
    axes.set_title(title, fontsize=size)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    plot_temperatures(
        {
            "shifted cosine, -0.4 (default)": ShiftedCosineTemperature(0.05, 0.07, shift=-0.4),
            "cosine": CosineTemperature(0.05, 0.07),
            "linear": LinearTemperature(0.05, 0.07),
            "constant (SimCSE)": ConstantTemperature(0.05),
        },
        sys.argv[1],
    )
