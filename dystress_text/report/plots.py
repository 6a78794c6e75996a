"""The common style of all figures. Needs the ``plots`` extra."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# a colour-blind-safe palette, and line styles so that print in grey still tells the curves apart
STYLES = [
    ("#0072b2", "-"), ("#d55e00", "--"), ("#009e73", "-."), ("#595959", ":"), ("#cc79a7", (0, (6, 1, 1, 1))),
    ("#e69f00", "-"), ("#56b4e9", "--"),
]  # fmt: skip
GREY = "#8c8c8c"
WIDTH = 12 / 2.54  # inches
SIMILARITIES = torch.linspace(-1, 1, 1201, dtype=torch.float64)


def style() -> AbstractContextManager[None]:
    """Text sizes (from 7 points), grid and layout of all figures, in a context."""
    return rc_context(
        {
            "font.size": 7.5, "axes.labelsize": 7.5, "xtick.labelsize": 7, "ytick.labelsize": 7, "legend.fontsize": 7.5,
            "axes.titlesize": 8, "lines.linewidth": 1.6, "axes.unicode_minus": False, "axes.grid": True,
            "grid.alpha": 0.25, "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False,
            "figure.constrained_layout.use": True, "savefig.dpi": 200, "pdf.fonttype": 42, "svg.hashsalt": "dystress",
        }
    )  # fmt: skip


def dress(axes: Axes, label: str, title: str) -> None:
    """Label axes whose abscissa is the similarity."""
    axes.set(
        xlabel="cosine similarity s",
        ylabel=label,
        title=title,
        xlim=(-1, 1),
        xticks=[-1, -0.5, 0, 0.5, 1],
    )
    axes.xaxis.set_major_formatter("{x:g}")


def legend_below(figure: Figure, axes: Axes, columns: int = 1) -> None:
    """One legend for panels that share their lines, below the figure."""
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=columns)


def save(figure: Figure, file: Path) -> None:
    """Write a figure; the file's ending says the format. The same figure gives the same file."""
    undated = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with style():
        figure.savefig(file, metadata=undated.get(file.suffix.lower()))
