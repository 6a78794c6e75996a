"""The pictures of a run's page: 9 cm wide, so that one fills a phone's width and several stand side by side."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dystress_text.core.temperature import Temperature
from dystress_text.report.plots import SIMILARITIES, STYLES, dress, legend_below, style
from dystress_text.report.runs import MEASURES, FinishedRun, Line, metric_title

WIDTH = 9 / 2.54  # inches
Curves = Mapping[str, tuple[list[int], list[float]]]  # steps and values by what was measured
Pictures = list[tuple[str, str, str]]  # what is to be seen, a caption or "", and the picture
_NOT_DRAWN = {"step", "learning_rate", "samples_per_second"}
_SCORED = {  # of pairs of a development set by their score
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
    "tau_effective": "effective temperature\n(each negative as heavy as its gradient)",
    "high_gradient": "share of the negatives' gradient\non the high-similarity region",
    "high_share": "share of the negatives\nin the high-similarity region",
    "positive": "mean similarity of positives",
    "negative": "mean similarity of negatives",
}


def galleries(runs: Sequence[FinishedRun]) -> list[tuple[str, Pictures]]:
    """The pictures of a page by heading; a gallery may be empty."""
    curves = {run.folder.name: _curves(run.metrics()) for run in runs}
    logs = {run.folder.name: run.similarities() for run in runs}
    logged = {name: _curves(lines) for name, lines in logs.items() if lines}
    metrics = {name for run in curves.values() for name, (steps, _) in run.items() if len(steps) > 1} - _NOT_DRAWN
    known = [name for kind in MEASURES for name in sorted(metrics) if name.rpartition("_")[2] == kind]
    titles = {name: metric_title(name) for name in [*known, *sorted(metrics - {*known})]}
    pairs = [
        (seen, run.folder.name * (len(runs) > 1), drawn)
        for run in runs
        for seen, drawn in _similarities(run, logs[run.folder.name])
    ]
    return [
        ("Over training", _over_steps(curves, titles)),
        ("Similarities and temperature", pairs),
        ("What the temperature did to the pairs of each step", _over_steps(logged, _FIGURES if logged else {})),
    ]


def _curves(lines: Sequence[Line]) -> Curves:
    """Where a value was not finite it is None, which is drawn as a gap."""
    logged = {name: [line for line in lines if name in line] for line in lines for name in line}
    return {name: ([line["step"] for line in some], [line[name] for line in some]) for name, some in logged.items()}


def _over_steps(runs: Mapping[str, Curves], titles: Mapping[str, str]) -> Pictures:
    """A picture for each metric, with a line for each run."""
    pictures: Pictures = []
    for metric, title in titles.items():
        with style():
            figure, axes = plt.subplots(figsize=(WIDTH, 2.1))
            for place, (name, curves) in enumerate(runs.items()):
                colour, line = STYLES[place % len(STYLES)]
                steps, values = curves.get(metric, ([], []))
                label = "./" * name.startswith("_") + name.replace("$", r"\$")  # no name is hidden or a formula
                axes.plot(steps, values, color=colour, ls=line, marker="o" if len(steps) < 2 else "", label=label)
            axes.set(title=title, xlabel="optimiser steps")
            axes.set_xlim(left=0)
            axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
            if len(runs) > 1:
                legend_below(figure, axes)
            pictures.append((f"{metric} over the steps", "", picture(figure)))
    return pictures


def _similarities(run: FinishedRun, log: Sequence[Line]) -> list[tuple[str, str]]:
    """Histograms of the development set's pairs, and of the batches' where they were logged."""
    pictures = []
    if scored := run.record.get("similarities"):
        above = scored.get("positive_above", 4.0)  # the usual bound on STS
        kinds = {name: (label.format(above), look) for name, (label, look) in _SCORED.items()}
        panels = {f"{scored['set']}, {w} training": scored[w] for w in ("before", "after") if w in scored}
        seen = "Similarities of scored pairs before and after training"
        pictures.append((seen, _draw(panels, kinds, run.temperature)))
    if histograms := [line["histograms"] for line in log if "histograms" in line]:
        panels = {"first training batches": histograms[0], "last training batches": histograms[-1]}
        seen = "Similarities of the pairs of the first and the last training batches"
        pictures.append((seen, _draw(panels, _BATCHES, run.temperature)))
    return pictures


def _draw(
    panels: Mapping[str, Mapping[str, Sequence[float]]],
    kinds: Mapping[str, tuple[str, tuple[str, object]]],
    temperature: Temperature | None,
) -> str:
    """Histograms over [-1, 1], a panel for each title, above the temperature at the same similarities."""
    if temperature is not None and (temperature.needs_progress or temperature.needs_mean_positive):
        temperature = None  # it has no curve
    with style():
        rows = len(panels) + (temperature is not None)
        figure, grid = plt.subplots(rows, sharex=True, squeeze=False, figsize=(WIDTH, 0.5 + 1.25 * rows))
        for axes, (title, histograms) in zip(grid.flat, panels.items(), strict=False):
            for name, (label, (colour, line)) in kinds.items():
                counts = np.array(histograms[name])
                density = counts * len(counts) / (2 * max(counts.sum(), 1e-12))
                edges = np.linspace(-1, 1, len(counts) + 1)
                axes.stairs(density, edges, color=colour, linestyle=line, linewidth=1.4, label=label)
            dress(axes, "density", title)
        if temperature is not None:
            tau = temperature(SIMILARITIES).detach().expand_as(SIMILARITIES)
            grid[-1, 0].plot(SIMILARITIES, tau, color=STYLES[2][0])
            grid[-1, 0].margins(y=0.2)
            dress(grid[-1, 0], "$\\tau(s)$", "temperature at that similarity")
        for axes in grid.flat:
            axes.label_outer()
        legend_below(figure, grid[0, 0])
        return picture(figure)


def picture(figure: Figure) -> str:
    """A figure as a URI that holds it; the figure is closed."""
    with io.BytesIO() as drawn:
        figure.savefig(drawn, format="svg", metadata={"Date": None})
        plt.close(figure)
        return "data:image/svg+xml;base64," + base64.b64encode(drawn.getvalue()).decode("ascii")
