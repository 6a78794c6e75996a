"""The pictures of a run's page: 9 cm wide, so that one fills a phone's width and several stand side by side."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterable, Mapping, Sequence
from math import nan

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from dystress_text.core.registry import Temperature
from dystress_text.report.history import Curves, RunHistory, metrics_of
from dystress_text.report.plots import (
    SIMILARITIES,
    STYLES,
    dress,
    legend_below,
    plot_histogram,
    plot_metric,
    stacked,
    style,
)

WIDTH = 9 / 2.54  # inches
Histograms = Mapping[str, Sequence[float]]  # counts over [-1, 1] by kind of pair
Pictures = list[tuple[str, str, str]]  # what is to be seen, a caption or "", and the picture
_SCORED = {  # of pairs of a development set by their score; 4 is the usual bound on STS
    "random": ("random pairs", STYLES[3]),
    "others": ("pairs scored {:g} or less", STYLES[1]),
    "alike": ("pairs scored above {:g}", STYLES[0]),
}
_BATCHES = {
    "negatives": ("negatives", STYLES[1]),
    "gradient": ("gradient of the negatives", STYLES[3]),
    "positives": ("positives", STYLES[0]),
}
_FIGURES = {
    "tau_effective": "effective temperature (each negative as heavy as its gradient)",
    "high_gradient": "share of the negatives' gradient on the high-similarity region",
    "high_share": "share of the negatives in the high-similarity region",
    "positive": "mean similarity of positives",
    "negative": "mean similarity of negatives",
}


def galleries(runs: Sequence[tuple[RunHistory, Temperature | None]]) -> list[tuple[str, Pictures]]:
    """The pictures of a page by heading; a gallery may be empty."""
    curves = {run.name: run.curves for run, _ in runs}
    drawn = [m for m in metrics_of(list(curves.values())) if any(len(c.get(m, [[]])[0]) > 1 for c in curves.values())]
    logged = {run.name: _similarity_curves(run) for run, _ in runs if run.similarity_steps}
    pairs = [(seen, run.name * (len(runs) > 1), drawn) for run, tau in runs for seen, drawn in _similarities(run, tau)]
    return [
        ("Over training", _over_steps(curves, drawn)),
        ("Similarities and temperature", pairs),
        ("What the temperature did to the pairs of each step", _over_steps(logged, _FIGURES if logged else ())),
    ]


def _similarity_curves(run: RunHistory) -> Curves:
    """The figures of ``similarity.jsonl`` over the steps."""
    lines = run.similarity_steps
    steps = [float(line["step"]) for line in lines]
    return {name: (steps, [nan if line[name] is None else line[name] for line in lines]) for name in _FIGURES}


def _over_steps(runs: Mapping[str, Curves], metrics: Iterable[str]) -> Pictures:
    """A picture for each metric, with a line for each run."""
    pictures: Pictures = []
    for metric in metrics:
        with style():
            figure, axes = plt.subplots(figsize=(WIDTH, 2.1), layout="constrained")
            plot_metric(axes, runs, metric)
            if metric in _FIGURES:
                axes.set_title(_FIGURES[metric].replace(" (", "\n("), fontsize=8)
            if len(runs) > 1:
                legend_below(figure, axes)
            pictures.append((f"{metric} over the steps", "", picture(figure)))
    return pictures


def _similarities(run: RunHistory, temperature: Temperature | None) -> list[tuple[str, str]]:
    """Histograms of the development set's pairs, and of the batches' where they were logged."""
    if temperature is not None and (temperature.needs_progress or temperature.needs_mean_positive):
        temperature = None  # it has no curve
    pictures, scored = [], run.record.get("similarities", {})
    if scored:
        above = scored.get("positive_above", 4.0)
        kinds = {name: (label.format(above), look) for name, (label, look) in _SCORED.items()}
        panels = {f"{scored['set']}, {w} training": scored[w] for w in ("before", "after") if w in scored}
        pictures.append(("Similarities of scored pairs before and after training", _draw(panels, kinds, temperature)))
    histograms = [line["histograms"] for line in run.similarity_steps if "histograms" in line]
    if histograms:
        panels = {"first training batches": histograms[0], "last training batches": histograms[-1]}
        seen = "Similarities of the pairs of the first and the last training batches"
        pictures.append((seen, _draw(panels, _BATCHES, temperature)))
    return pictures


def _draw(
    panels: Mapping[str, Histograms], kinds: Mapping[str, tuple[str, tuple[str, str]]], temperature: Temperature | None
) -> str:
    """Histograms, a panel for each title, above the temperature at the same similarities."""
    with style():
        rows = len(panels) + (temperature is not None)
        figure, grid = stacked(rows, WIDTH, 0.5 + 1.25 * rows)
        for axes, (title, histograms) in zip(grid, panels.items(), strict=False):
            for name, (label, (colour, line)) in kinds.items():
                plot_histogram(axes, histograms[name], colour, line, label)
            dress(axes, "density", title)
        if temperature is not None:
            tau = temperature(SIMILARITIES).detach().expand_as(SIMILARITIES)
            grid[-1].plot(SIMILARITIES, tau, color=STYLES[2][0])
            grid[-1].margins(y=0.2)
            dress(grid[-1], "$\\tau(s)$", "temperature at that similarity")
        for axes in grid:
            axes.label_outer()
        legend_below(figure, grid[0])
        return picture(figure)


def picture(figure: Figure) -> str:
    """A figure as a URI that holds it; the figure is closed."""
    with io.BytesIO() as drawn:
        figure.savefig(drawn, format="svg", metadata={"Date": None})
        plt.close(figure)
        return "data:image/svg+xml;base64," + base64.b64encode(drawn.getvalue()).decode("ascii")
