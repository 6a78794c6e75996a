"""The figures' drawing: each function makes a figure of :mod:`.curves`, 12 cm wide, text from 7 points.

Needs the ``plots`` extra. The names of curves stand at the curves, or in a legend where panels share them.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.contour import QuadContourSet
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from dystress_text.core.registry import Temperature
from dystress_text.report import curves
from dystress_text.report.history import RunCurves, metrics_of, read_curves
from dystress_text.report.plots import MORE_COLOURS, STYLES, dress, dress_plain

WIDTH = 12 / 2.54  # inches
SMALL = 7.0  # points: the least size of any text
GREY = "#8c8c8c"
_TAU = "temperature $\\tau(s)$"


def style() -> AbstractContextManager[None]:
    """Text sizes and widths that all figures share, in a context."""
    return rc_context(
        {
            "font.size": 7.5, "axes.labelsize": 7.5, "xtick.labelsize": SMALL, "ytick.labelsize": SMALL,
            "legend.fontsize": 7.5, "lines.linewidth": 1.6, "axes.unicode_minus": False, "pdf.fonttype": 42,
            "svg.hashsalt": "dystress",
        }
    )  # fmt: skip


def draw_profiles() -> Figure:
    """Every temperature function, one in each panel, the others behind it."""
    return _one_a_panel(curves.profiles(), 2, "   (grey: the other five)")


def draw_shifts() -> Figure:
    """Shifted and one-sided profiles, one in each panel, the cosine behind; a dot at the minimum."""
    named = curves.shifts()
    figure = _one_a_panel(named, 3, "   (1a to 3b: the paper's versions)", curves.profiles()["cosine"], empty=2)
    for axes, temperature in zip([axes for axes in figure.axes if axes.axison], named.values(), strict=True):
        s = curves.similarities()
        tau = temperature(s)
        lowest = int(tau.argmin())
        axes.plot(s[lowest], tau[lowest], "o", color=STYLES[1][0], markersize=4.5, clip_on=False, zorder=4)
    handles = [figure.axes[0].lines[i] for i in (1, 0, 2)]
    figure.axes[2].legend(handles, ["shifted", "cosine, no shift", "minimum"], loc="center", frameon=False)
    return figure


def _one_a_panel(
    named: Mapping[str, Temperature], rows: int, note: str, behind: Temperature | None = None, empty: int | None = None
) -> Figure:
    """Temperatures, one in each panel, three panels in a row; behind each in grey one or all others.

    ``empty`` is the place of a panel to leave empty.
    """
    s = curves.similarities()
    figure, grid = plt.subplots(
        rows, 3, figsize=(WIDTH, 0.45 + 1.25 * rows), sharex=True, sharey=True, layout="constrained"
    )
    places = list(grid.flat)
    if empty is not None:
        places.pop(empty).axis("off")
    for axes, (name, temperature) in zip(places, named.items(), strict=True):
        for other in named.values() if behind is None else [behind]:
            if other is not temperature:
                axes.plot(s, other(s), "-" if behind is None else "--", color=GREY, linewidth=0.8, alpha=0.7)
        axes.plot(s, temperature(s), color=STYLES[0][0], linewidth=2)
        dress(axes, "", name, 8)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_yticks([0.1, 0.15, 0.2])
        axes.set_ylim(0.09, 0.21)
        axes.set_xlabel("")
    figure.supylabel(_TAU, fontsize=7.5)
    figure.supxlabel(f"cosine similarity s{note}", fontsize=7.5)
    return figure


def draw_ranges() -> Figure:
    """The ranges of the ablations."""
    s = curves.similarities()
    figure, panels = plt.subplots(2, 1, figsize=(WIDTH, 4.3), sharex=True, layout="constrained")
    for axes, (title, named) in zip(panels, curves.ranges().items(), strict=True):
        for (label, temperature), (colour, line) in zip(named.items(), STYLES, strict=True):
            axes.plot(s, temperature(s), line, color=colour, label=label)
        dress(axes, _TAU, title, 8)
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.label_outer()
        axes.set_xlim(-1, 1)
        _label_ends(axes, 4.3 * 0.38)
    return figure


def draw_ode() -> Figure:
    """Solutions of the paper's ODE: a panel for each delta and K, a curve for each constant."""
    s = curves.similarities(20001)
    s = s[s != 0]  # 0 / log is 0 there for all but one constant, which belongs to no branch
    figure, panels = plt.subplots(
        1, len(curves.ODE_PRODUCTS), figsize=(WIDTH, 3.2), sharex=True, sharey=True, layout="constrained"
    )
    styles = [*STYLES, (MORE_COLOURS[0], (0, (6, 1, 1, 1)))]
    for axes, (delta, k) in zip(panels, curves.ODE_PRODUCTS, strict=True):
        axes.axhline(curves.ODE_TAU_MAX, color=GREY, linewidth=0.8)
        for (name, tau), (colour, line) in zip(curves.ode_solutions(delta, k, s).items(), styles, strict=True):
            axes.plot(s, tau.where(tau < 2, torch.nan), linestyle=line, color=colour, label=name)
        axes.plot([-1, 1], [curves.ODE_TAU_MAX] * 2, "o", color="black", markersize=3.5, clip_on=False, zorder=5)
        dress(axes, _TAU, f"$\\delta$ = {delta:g}, K = {k:g}\n$\\delta K$ = {delta * k:g}", 8)
        axes.set_xticks([-1, 0, 1])
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_ylim(0, 0.6)
        axes.set_xlim(-1.06, 1.06)  # some solutions exist only close to s = -1
        axes.label_outer()
    panels[0].text(-0.95, 0.205, "$\\tau_{max}$", fontsize=7.5, va="bottom")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure


def draw_logit() -> Figure:
    """The logit and its slope over the similarity; the region where the logit falls is marked."""
    s = curves.similarities()
    named = curves.logits()
    figure, grid = plt.subplots(2, len(named), figsize=(WIDTH, 3.9), sharex=True, layout="constrained")
    for column, (title, temperature) in enumerate(named.items()):
        above, below = grid[:, column]
        slope = curves.gradient_factor(temperature, s, detached=False)
        above.plot(s, curves.logit(temperature, s), color=STYLES[0][0])
        below.axhline(0, color="black", linewidth=0.6)
        below.plot(s, slope, STYLES[0][1], color=STYLES[0][0], label="through $\\tau(s)$: $d(s/\\tau)/ds$")
        detached = curves.gradient_factor(temperature, s, detached=True)
        below.plot(
            s, detached, STYLES[1][1], color=STYLES[1][0], label="$\\tau$ detached, as in the paper's code: $1/\\tau$"
        )
        dress(above, "logit $s/\\tau(s)$" if column == 0 else "", title, 8)
        dress(below, "gradient factor" if column == 0 else "", "", 8)
        for axes in (above, below):
            axes.set_xticks([-1, 0, 1])
            axes.set_xlim(-1, 1)
            axes.fill_between(
                s, 0, 1, where=(slope < 0).numpy(), transform=axes.get_xaxis_transform(), color=STYLES[1][0],
                alpha=0.16, linewidth=0, label="the logit falls as s rises",
            )  # fmt: skip
        above.set_xlabel("")
    handles, labels = grid[1, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure


def draw_gradient_field() -> Figure:
    """Pull on the positive and push on the negatives over both similarities, three temperatures side by side."""
    s = curves.similarities(161)
    positive, negative = torch.meshgrid(s, s, indexing="xy")  # both (161, 161): negative down, positive across
    fields = {name: curves.gradient_field(*of, positive, negative) for name, of in curves.gradient_fields().items()}
    top = 5 * -(-max(float(f.max()) for pair in fields.values() for f in pair) // 5)
    figure, grid = plt.subplots(2, 3, figsize=(WIDTH, 3.35), sharex=True, sharey=True, layout="constrained")
    drawn: QuadContourSet | None = None
    for column, (name, pair) in enumerate(fields.items()):
        for axes, values in zip(grid[:, column], pair, strict=True):
            drawn = axes.contourf(s, s, values, levels=torch.arange(0, top + 1, 5).tolist(), cmap="cividis")
            axes.plot([-1, 1], [-1, 1], color="white", linewidth=0.8, linestyle=":")
            axes.set_xticks([-1, 0, 1])
            axes.set_yticks([-1, 0, 1])
            axes.set_aspect("equal")
        grid[0, column].set_title(name, fontsize=8)
    grid[0, 0].text(0.1, -0.12, "$s^+ = s^-$", rotation=45, color="white", ha="left", va="center", fontsize=SMALL)
    grid[0, 0].set_ylabel("pull on the positive\n$s^-$")
    grid[1, 0].set_ylabel("push on the negatives\n$s^-$")
    figure.supxlabel("similarity of the positive $s^+$", fontsize=7.5)
    assert drawn is not None
    bar = figure.colorbar(drawn, ax=list(grid.flat), aspect=30, pad=0.02)
    bar.set_label(f"size of the gradient\n({curves.NEGATIVES} negatives, all at $s^-$)")
    return figure


def draw_training(runs: Sequence[Path]) -> Figure:
    """Loss and metrics of runs over their steps."""
    found = [read_curves(folder) for folder in runs]
    names = [run.name for run in found]
    labels = [str(runs[i]) if names.count(name) > 1 else name for i, name in enumerate(names)]
    metrics = metrics_of(found)
    rows = -(-len(metrics) // 2)
    figure, grid = plt.subplots(
        rows, min(2, len(metrics)), figsize=(WIDTH, 0.6 + 1.75 * rows + 0.15 * len(found)), sharex=True,
        squeeze=False, layout="constrained",
    )  # fmt: skip
    for axes, metric in zip(grid.flat, metrics, strict=False):
        plot_metric(axes, found, metric, metric_title(metric))
    for axes in list(grid.flat)[len(metrics) :]:
        axes.axis("off")
    for axes in list(grid.flat)[: len(metrics)][-grid.shape[1] :]:  # the lowest of each column
        axes.set_xlabel("optimiser steps")
        axes.tick_params(labelbottom=True)
    name_lines(figure, grid[0, 0], labels)
    return figure


def name_lines(figure: Figure, axes: Axes, names: Sequence[str]) -> None:
    """A legend below the figure for the lines of one of its panels; no name is taken for a formula."""
    labels = [("./" if name.startswith("_") else "") + name.replace("$", r"\$") for name in names]
    figure.legend(axes.lines, labels, loc="outside lower center", ncols=1, frameon=False)


def plot_metric(axes: Axes, runs: Sequence[RunCurves], metric: str, title: str) -> None:
    """A metric of several runs over their steps."""
    dress_plain(axes, "", title, 8)
    for run, (colour, line) in zip(runs, run_styles(len(runs)), strict=True):
        steps, values = run.metrics.get(metric, ([], []))
        axes.plot(steps, values, linestyle=line, color=colour, marker="o" if len(steps) < 2 else None, markersize=3)
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_xlim(left=0)


def run_styles(runs: int) -> list[tuple[str, str]]:
    """A colour and a line for each of several runs."""
    colours, lines = [*(colour for colour, _ in STYLES), *MORE_COLOURS], [line for _, line in STYLES]
    return [(colours[i % len(colours)], lines[i % len(lines)]) for i in range(runs)]


def metric_title(metric: str) -> str:
    """A metric's name in words, and which way is better."""
    of, _, kind = metric.rpartition("_")
    known = {
        "loss": "training loss",
        "spearman": "Spearman $\\times$ 100 (higher is better)",
        "alignment": "alignment (lower is closer)",
        "uniformity": "uniformity (lower is more even)",
    }
    sets = {
        "sts_b_dev": "STS-B dev", "sts_b_test": "STS-B test", "sick_r_dev": "SICK-R dev", "sick_r_test": "SICK-R test",
        "mini_sts": "mini-STS",
    }  # fmt: skip
    return f"{sets.get(of, of.replace('_', ' '))}\n{known.get(kind, kind)}".strip()


def _label_ends(axes: Axes, inches: float) -> None:
    """Each curve's label at its right end, in its colour, moved apart where ends meet; ``inches``: the axes' height."""
    low, high = axes.get_ylim()
    gap = (high - low) * 1.35 * SMALL / 72 / inches
    at = -np.inf
    for y, line in sorted(
        ((float(np.asarray(line.get_ydata())[-1]), line) for line in axes.lines), key=lambda end: end[0]
    ):
        at = max(y, at + gap)
        axes.annotate(
            str(line.get_label()), (1, y), xytext=(1.06, at), textcoords="data", color=line.get_color(), va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-", "color": line.get_color(), "linewidth": 0.7, "relpos": (0, 0.5), "shrinkA": 1,
                "shrinkB": 0,
            },
        )  # fmt: skip


DRAWINGS: dict[str, Callable[[], Figure]] = {
    "profiles": draw_profiles,
    "ranges": draw_ranges,
    "shifts": draw_shifts,
    "ode": draw_ode,
    "logit": draw_logit,
    "gradient-field": draw_gradient_field,
}


def make(name: str, runs: Sequence[Path] = ()) -> Figure:
    """The figure of that name, ``training`` from these runs."""
    with style():
        figure = draw_training(runs) if name == "training" else DRAWINGS[name]()
        figure.draw_without_rendering()  # lays it out under these settings
        return figure


def save(figure: Figure, file: Path) -> None:
    """Write a figure; the file's ending says the format. The same figure gives the same file."""
    kind = file.suffix[1:].lower()
    metadata: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
    with style(), io.BytesIO() as drawn:
        figure.savefig(drawn, format=kind, dpi=200, metadata=metadata)
        plt.close(figure)
        if kind == "png":  # few colours: a third of the size
            Image.open(drawn).convert("RGB").quantize(96).save(file, optimize=True, dpi=(200, 200))
        else:
            file.write_bytes(drawn.getvalue())
