"""The pictures of a run's page: 9 cm wide, so that one fills a phone's width and several stand side
by side.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

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
from dystress_text.training.run_folder import untrained_of

WIDTH = 9 / 2.54  # inches
Look = tuple[str, object]  # colour and style of a line
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
    """The pictures of a page by heading; a gallery may be empty."""
    curves = [_curves([*_untrained(run), *run.metrics()]) for run in runs]
    logs = [run.similarities() for run in runs]
    metrics = {
        name for run in curves for name, (steps, _) in run.items() if len(steps) > 1
    } - _NOT_DRAWN
    order = ["loss", *MEASURES]
    of_kind = [
        name for kind in order for name in sorted(metrics) if name.rpartition("_")[2] == kind
    ]
    titles = {name: metric_title(name) for name in [*of_kind, *sorted(metrics - {*of_kind})]}
    pairs = [
        (seen, label * (len(runs) > 1), drawn)
        for run, label, log in zip(runs, labels(runs), logs, strict=True)
        for seen, drawn in _similarities(run, log)
    ]
    logged = [(run, _curves(log)) for run, log in zip(runs, logs, strict=True) if log]
    return [
        ("Over training", _over_steps(list(zip(runs, curves, strict=True)), titles)),
        ("Similarities and temperature", pairs),
        (
            "What the temperature did to the pairs of each step",
            _over_steps(logged, _FIGURES if logged else {}),
        ),
    ]


def _untrained(run: FinishedRun) -> list[Line]:
    """The figures before the first step, of the run's own pooler, as a line of its log; none
    without them.
    """
    figures = untrained_of(run.record)
    own = figures.get(run.record["settings"].get("pooler_type", ""))
    return [{"step": 0, **own}] if own else []


def _curves(lines: Sequence[Line]) -> Curves:
    """Where a value was not finite it is None, which is drawn as a gap."""
    logged = {name: [line for line in lines if name in line] for line in lines for name in line}
    return {
        name: ([line["step"] for line in some], [line[name] for line in some])
        for name, some in logged.items()
    }


def _over_steps(runs: Sequence[tuple[FinishedRun, Curves]], titles: Mapping[str, str]) -> Pictures:
    """A picture for each metric, with a line for each run; runs of one configuration have one
    colour and one name.
    """
    looks = dict(zip(dict.fromkeys(run.configuration for run, _ in runs), cycle(STYLES)))
    return [
        (f"{metric} over the steps", "", _drawn(metric, of, runs, looks))
        for metric, of in titles.items()
    ]


def _drawn(
    metric: str, title: str, runs: Sequence[tuple[FinishedRun, Curves]], looks: Mapping[str, Look]
) -> str:
    with style():
        figure, axes = subplots(1, 1, (WIDTH, 2.1))
        named = set()
        for run, curves in runs:
            name, (steps, values) = run.configuration, curves.get(metric, ([], []))
            label = (
                "_" if name in named else "./" * name.startswith("_") + name.replace("$", r"\$")
            )  # never a formula
            named.add(name)
            colour, line = looks[name]
            axes.plot(
                steps,
                values,
                color=colour,
                ls=line,
                marker="o" if len(steps) < 2 else "",
                label=label,
            )
        if len(runs) == 1:
            _mark(axes, runs[0][0].record, metric, dict(zip(steps, values, strict=True)))
        axes.set(title=title, xlabel="optimiser steps")
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        if len(runs) > 1 or len(axes.lines) > 1:
            legend_below(figure, axes, columns=3 if len(runs) == 1 else 1)
        return picture(figure)


def _mark(axes: Axes, record: Mapping[str, Any], metric: str, values: Mapping[int, float]) -> None:
    """On the curve of a run alone: the step that was kept, and what words reach."""
    axes.lines[0].set_label("this run")
    step, words = int(record.get("best_step") or -1), (record.get("words") or {}).get(metric)
    if record["settings"].get("metric_for_best_model") == metric and values.get(step) is not None:
        axes.plot(
            step, values[step], "o", color=STYLES[0][0], label=f"kept: step {step:,}", clip_on=False
        )
    if words is not None:
        axes.axhline(words, color=GREY, ls=":", label="words alone")


def _similarities(run: FinishedRun, log: Sequence[Line]) -> list[tuple[str, str]]:
    """Histograms of the development set's pairs, and of the batches' where they were logged."""
    pictures = []
    if scored := run.record.get("similarities"):
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
    """A figure as a URI that holds it."""
    with io.BytesIO() as drawn:
        figure.savefig(drawn, format="svg", metadata={"Date": None})
        return "data:image/svg+xml;base64," + base64.b64encode(drawn.getvalue()).decode("ascii")
