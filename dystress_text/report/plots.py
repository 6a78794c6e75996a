"""The common style of all figures. Needs the ``plots`` extra."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from dystress_text.report.history import Curves

# a colour-blind-safe palette, and line styles so that print in grey still tells the curves apart
STYLES = [("#0072b2", "-"), ("#d55e00", "--"), ("#009e73", "-."), ("#595959", ":")]
MORE_STYLES = [*STYLES, ("#cc79a7", (0, (6, 1, 1, 1))), ("#e69f00", "-"), ("#56b4e9", "--")]
GREY = "#8c8c8c"
WIDTH = 12 / 2.54  # inches
SIMILARITIES = torch.linspace(-1, 1, 1201, dtype=torch.float64)
_MEASURES = {
    "loss": "training loss",
    "spearman": "Spearman $\\times$ 100 (higher is better)",
    "alignment": "alignment (lower is closer)",
    "uniformity": "uniformity (lower is more even)",
}
_SETS = {
    "sts_b_dev": "STS-B dev", "sts_b_test": "STS-B test", "sick_r_dev": "SICK-R dev", "sick_r_test": "SICK-R test",
    "mini_sts": "mini-STS",
}  # fmt: skip


def style() -> AbstractContextManager[None]:
    """Text sizes (from 7 points) and widths that all figures share, in a context."""
    return rc_context(
        {
            "font.size": 7.5, "axes.labelsize": 7.5, "xtick.labelsize": 7, "ytick.labelsize": 7, "legend.fontsize": 7.5,
            "lines.linewidth": 1.6, "axes.unicode_minus": False, "pdf.fonttype": 42, "svg.hashsalt": "dystress",
        }
    )  # fmt: skip


def dress(axes: Axes, label: str, title: str, size: float = 8) -> None:
    """Label axes whose abscissa is the similarity, in the figures' common style; ``size`` is the title's, in points."""
    axes.set_xlabel("cosine similarity s")
    axes.set_xticks([-1, -0.5, 0, 0.5, 1])
    axes.set_xlim(-1, 1)
    axes.xaxis.set_major_formatter("{x:g}")
    dress_plain(axes, label, title, size)


def dress_plain(axes: Axes, label: str, title: str, size: float = 8) -> None:
    """The same for axes with another abscissa."""
    axes.set_ylabel(label)
    axes.set_title(title, fontsize=size)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)


def legend_below(figure: Figure, axes: Axes, columns: int = 1) -> None:
    """One legend for panels that share their lines, below the figure."""
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=columns, frameon=False)


def plot_metric(axes: Axes, runs: Mapping[str, Curves], metric: str) -> None:
    """A metric of several runs, by their names, over their steps."""
    dress_plain(axes, "", metric_title(metric))
    for place, (name, curves) in enumerate(runs.items()):
        colour, line = MORE_STYLES[place % len(MORE_STYLES)]
        steps, values = curves.get(metric, ([], []))
        label = "./" * name.startswith("_") + name.replace("$", r"\$")  # no name is hidden or taken for a formula
        axes.plot(steps, values, color=colour, linestyle=line, marker="o" if len(steps) < 2 else "", label=label)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_xlim(left=0)
    axes.set_xlabel("optimiser steps")


def metric_title(metric: str) -> str:
    """A metric's name in words, and which way is better."""
    of, _, kind = metric.rpartition("_")
    return f"{_SETS.get(of, of.replace('_', ' '))}\n{_MEASURES.get(kind, kind)}".strip()


def save(figure: Figure, file: Path) -> None:
    """Write a figure; the file's ending says the format. The same figure gives the same file."""
    kind = file.suffix[1:].lower()
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    with style(), io.BytesIO() as drawn:
        figure.savefig(drawn, format=kind, dpi=200, metadata=metadata)
        plt.close(figure)
        if kind == "png":  # few colours: a third of the size
            Image.open(drawn).convert("RGB").quantize(96).save(file, optimize=True, dpi=(200, 200))
        else:
            file.write_bytes(drawn.getvalue())


def stacked(rows: int, width: float, height: float, ratios: Sequence[float] | None = None) -> tuple[Figure, list[Axes]]:
    """Panels one above another over one axis; sizes in inches."""
    figure, grid = plt.subplots(
        rows, 1, figsize=(width, height), sharex=True, squeeze=False, layout="constrained", height_ratios=ratios
    )
    return figure, list(grid.flat)


def plot_histogram(axes: Axes, counts: Sequence[float], colour: str, line: str, label: str) -> None:
    """A histogram over [-1, 1] as a density; nothing where it is empty."""
    total, bins = sum(counts), len(counts)
    if total > 0:
        density = np.asarray(counts) * bins / (2 * total)
        axes.stairs(density, np.linspace(-1, 1, bins + 1), color=colour, linestyle=line, linewidth=1.4, label=label)
