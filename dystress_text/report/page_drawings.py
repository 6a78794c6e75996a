"""The pictures of a run's page: 9 cm wide, so that one fills a phone's width and several stand side
by side.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dystress_text.core.temperature import Temperature
from dystress_text.report.outcome import MEASURES, metric_title
from dystress_text.report.page import Pictures
from dystress_text.report.plots import (
    GREY,
    SIMILARITIES,
    STYLES,
    dress,
    legend_below,
    style,
    subplots,
)
from dystress_text.report.runs import FinishedRun, Line, labels
from dystress_text.training.run_record import RunRecord

WIDTH = 9 / 2.54  # inches
Curves = Mapping[str, tuple[list[int], list[float]]]  # steps and values by what was measured
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
    """Return the pictures of a page by heading; a gallery may be empty."""
    names = labels(runs)
    pairs: Pictures = []
    curves: list[Curves] = []
    measured: set[str] = set()
    logged = False
    for run, name in zip(runs, names, strict=True):
        metrics, log = run.metrics(), run.similarities()
        logged = logged or bool(log)
        caption = name if len(runs) > 1 else ""
        pairs += [(seen, caption, drawn) for seen, drawn in _similarities(run, log)]
        # the figures before the first step are of the run's own pooler
        untrained = {"step": 0, **run.record.untrained.get(run.record.pooler, {})}
        curves.append(_curves([untrained, *metrics, *log]))
        measured |= {name for line in metrics for name in line if len(curves[-1][name][0]) > 1}
    kinds = {kind: place for place, kind in enumerate(["loss", *MEASURES])}
    shown = sorted(
        measured - _NOT_DRAWN,
        key=lambda name: (kinds.get(name.rpartition("_")[2], len(kinds)), name),
    )
    titles = {name: "\n".join(filter(None, metric_title(name))) for name in shown}
    return [
        ("Over training", _over_steps(runs, curves, titles)),
        ("Similarities and temperature", pairs),
        ("Pairs of each step", _over_steps(runs, curves, _FIGURES if logged else {})),
    ]


def _curves(lines: Sequence[Line]) -> Curves:
    """Where a value was not finite it is None, which is drawn as a gap."""
    curves: dict[str, tuple[list[int], list[float]]] = {}
    for line in lines:
        for name, value in line.items():
            steps, values = curves.setdefault(name, ([], []))
            steps.append(line["step"])
            values.append(value)
    return curves


def _over_steps(
    runs: Sequence[FinishedRun], curves: Sequence[Curves], titles: Mapping[str, str]
) -> Pictures:
    """Draw each metric with a line for each run; those of one configuration have one colour."""
    return [
        (f"{metric} over the steps", "", _drawn(metric, title, runs, curves))
        for metric, title in titles.items()
    ]


def _drawn(metric: str, title: str, runs: Sequence[FinishedRun], curves: Sequence[Curves]) -> str:
    looks = dict(zip(dict.fromkeys(run.configuration for run in runs), cycle(STYLES)))
    with style():
        figure = Figure(figsize=(WIDTH, 2.1))
        axes = figure.subplots()
        named = {""}
        for run, of_run in zip(runs, curves, strict=True):
            steps, values = of_run.get(metric, ([], []))
            # neither hidden, as a name with _ before it, nor a formula
            name = run.configuration.replace("$", r"\$")
            name = f"./{name}" if name.startswith("_") else name
            colour, line = looks[run.configuration]
            marker = "o" if len(steps) == 1 else ""
            label = "_" if name in named else name
            axes.plot(steps, values, color=colour, ls=line, marker=marker, label=label)
            named.add(name)
        if len(runs) == 1:
            _mark(axes, runs[0].record, metric, dict(zip(steps, values, strict=True)))
        axes.set(title=title, xlabel="optimiser steps")
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        if len(axes.lines) > 1:
            legend_below(figure, axes, columns=3 if len(runs) == 1 else 1)
        return picture(figure)


def _mark(axes: Axes, record: RunRecord, metric: str, values: Mapping[int, float]) -> None:
    """On the curve of a run alone: the step that was kept, and the lexical baseline."""
    axes.lines[0].set_label("this run")
    step, words = record.best_step or -1, record.words.get(metric)
    if record.settings.get("metric_for_best_model") == metric and values.get(step) is not None:
        axes.plot(
            step, values[step], "o", color=STYLES[0][0], label=f"kept: step {step:,}", clip_on=False
        )
    if words is not None:
        axes.axhline(words, color=GREY, ls=":", label="TF-IDF/BM25")


def _similarities(run: FinishedRun, log: Sequence[Line]) -> list[tuple[str, str]]:
    """Histograms of the development set's pairs, and of the batches' where they were logged."""
    pictures = []
    if scored := run.record.similarities:
        above = scored.get("positive_above", 4.0)  # the usual bound on STS
        kinds = {name: (label.format(above), look) for name, (label, look) in _SCORED.items()}
        panels = {
            f"{scored['set']}, {w} training": scored[w] for w in ("before", "after") if w in scored
        }
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
    """Histograms over [-1, 1], a panel for each title, above the temperature at the same
    similarities.
    """
    if temperature is not None and (temperature.needs_progress or temperature.needs_mean_positive):
        temperature = None  # it has no curve
    with style():
        rows = len(panels) + (temperature is not None)
        size = (WIDTH, 0.5 + 1.25 * rows)
        figure, grid = subplots(rows, 1, size, sharex=True, squeeze=False)
        for axes, (title, histograms) in zip(grid.flat, panels.items(), strict=False):
            for name, (label, (colour, line)) in kinds.items():
                counts = np.array(histograms[name])
                density = counts * len(counts) / (2 * max(counts.sum(), 1e-12))
                edges = np.linspace(-1, 1, len(counts) + 1)
                axes.stairs(
                    density, edges, color=colour, linestyle=line, linewidth=1.4, label=label
                )
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
    """Return a figure as a URI that holds it."""
    with io.BytesIO() as drawn:
        figure.savefig(drawn, format="svg", metadata={"Date": None})
        return "data:image/svg+xml;base64," + base64.b64encode(drawn.getvalue()).decode("ascii")
