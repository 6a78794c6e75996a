"""The pictures of a run's page: 9 cm wide, so that one fills a phone's width and several stand side by side."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from math import nan
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dystress_text.core.registry import Temperature
from dystress_text.report.curves import similarities
from dystress_text.report.drawings import metric_title, name_lines, plot_metric, style
from dystress_text.report.history import RunCurves, RunHistory, metrics_of
from dystress_text.report.plots import STYLES, dress

WIDTH = 9 / 2.54  # inches
Histogram = Sequence[float]
Pictures = list[tuple[str, str, str]]  # what is to be seen, a caption or "", and the picture
_KINDS = {"random": "random pairs", "others": "pairs scored {:g} or less", "alike": "pairs scored above {:g}"}
_FIGURES = {
    "tau_effective": "effective temperature\n(each negative as heavy as its gradient)",
    "high_gradient": "share of the negatives' gradient\non the high-similarity region",
    "high_share": "share of the negatives\nin the high-similarity region",
    "positive": "mean similarity of positives",
    "negative": "mean similarity of negatives",
}


def galleries(runs: Sequence[RunHistory]) -> list[tuple[str, Pictures]]:
    """The pictures of a page by heading; a gallery may be empty."""
    curves = [run.curves for run in runs]
    logged = [_similarity_curves(run) for run in runs if run.similarity_steps]
    drawn = [name for name in metrics_of(curves) if any(len(run.metrics.get(name, [[]])[0]) > 1 for run in curves)]
    return [
        ("Over training", _over_steps(curves, {metric: metric_title(metric) for metric in drawn})),
        ("Similarities and temperature", [picture for run in runs for picture in _similarities(run, len(runs) > 1)]),
        ("What the temperature did to the pairs of each step", _over_steps(logged, _FIGURES if logged else {})),
    ]


def _similarity_curves(run: RunHistory) -> RunCurves:
    """The figures of ``similarity.jsonl`` over the steps."""
    lines = run.similarity_steps
    steps = [float(line["step"]) for line in lines]
    return RunCurves(
        run.name, {name: (steps, [nan if line[name] is None else line[name] for line in lines]) for name in _FIGURES}
    )


def _over_steps(runs: Sequence[RunCurves], titles: Mapping[str, str]) -> Pictures:
    """A picture for each metric, with a line for each run."""
    pictures: Pictures = []
    for metric, title in titles.items():
        with style():
            figure, axes = plt.subplots(figsize=(WIDTH, 2.1), layout="constrained")
            plot_metric(axes, runs, metric, title)
            axes.set_xlabel("optimiser steps")
            if len(runs) > 1:
                name_lines(figure, axes, [run.name for run in runs])
            pictures.append((f"{metric} over the steps", "", picture(figure)))
    return pictures


def _similarities(run: RunHistory, named: bool) -> Pictures:
    """Histograms of the development set's pairs, and of the batches' where they were logged."""
    pictures, caption = [], run.name if named else ""
    if "similarities" in run.record:
        drawn = draw_pairs(run.record["similarities"], run.profile)
        pictures.append(("Similarities of scored pairs before and after training", caption, drawn))
    histograms = [line["histograms"] for line in run.similarity_steps if "histograms" in line]
    if histograms:
        drawn = draw_batches(histograms[0], histograms[-1], run.profile)
        pictures.append(("Similarities of the pairs of the first and the last training batches", caption, drawn))
    return pictures


def draw_pairs(histograms: Mapping[str, Any], temperature: Temperature | None) -> str:
    """Similarities of scored pairs before and after training, above the temperature at the same similarities.

    As :func:`draw_batches`, it returns a picture that a page can hold.
    """
    with style():
        rows = [name for name in ("before", "after") if name in histograms]
        figure, panels = _stacked(len(rows), temperature)
        above = histograms["positive_above"]
        for axes, name in zip(panels, rows, strict=False):
            for (kind, label), (colour, line) in zip(_KINDS.items(), (STYLES[3], STYLES[1], STYLES[0]), strict=True):
                _step(axes, histograms[name][kind], colour, line, label.format(above))
            dress(axes, "density", f"{histograms['set']}, {name} training", 8)
        return _finished(figure, panels, temperature)


def draw_batches(first: Mapping[str, Histogram], last: Mapping[str, Histogram], temperature: Temperature | None) -> str:
    """Similarities of the pairs in training batches, and where the negatives' gradient lies, early and late."""
    names = {"negatives": STYLES[1], "gradient": STYLES[3], "positives": STYLES[0]}
    labels = {"gradient": "gradient of the negatives"}
    with style():
        figure, panels = _stacked(2, temperature)
        for axes, histograms, when in zip(panels, (first, last), ("first", "last"), strict=False):
            for name, (colour, line) in names.items():
                _step(axes, histograms[name], colour, line, labels.get(name, name))
            dress(axes, "density", f"{when} training batches", 8)
        return _finished(figure, panels, temperature)


def _stacked(histograms: int, temperature: Temperature | None) -> tuple[Figure, list[Axes]]:
    """Panels for histograms, and a lower one for the temperature if there is a curve."""
    rows = histograms + (temperature is not None)
    figure, grid = plt.subplots(
        rows, 1, figsize=(WIDTH, 0.5 + 1.25 * rows), sharex=True, squeeze=False, layout="constrained"
    )
    return figure, list(grid.flat)


def _step(axes: Axes, counts: Histogram, colour: str, line: str, label: str) -> None:
    """A histogram over [-1, 1] as a density; nothing where it is empty."""
    total = sum(counts)
    if total > 0:
        width = 2 / len(counts)
        axes.stairs(
            np.asarray(counts) / (total * width), np.linspace(-1, 1, len(counts) + 1), color=colour, linestyle=line,
            linewidth=1.4, label=label,
        )  # fmt: skip


def _finished(figure: Figure, panels: Sequence[Axes], temperature: Temperature | None) -> str:
    if temperature is not None:
        s = similarities()
        panels[-1].plot(s, temperature(s).detach(), color=STYLES[2][0])
        panels[-1].margins(y=0.2)
        dress(panels[-1], "$\\tau(s)$", "temperature at that similarity", 8)
    for axes in panels:
        axes.set_xlim(-1, 1)
        axes.label_outer()
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=1, frameon=False)
    return picture(figure)


def picture(figure: Figure) -> str:
    """A figure as a URI that holds it; the figure is closed."""
    with io.BytesIO() as drawn:
        figure.savefig(drawn, format="svg", metadata={"Date": None})
        plt.close(figure)
        return "data:image/svg+xml;base64," + base64.b64encode(drawn.getvalue()).decode("ascii")
