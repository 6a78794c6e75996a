"""Draw the pictures of a page, 9 cm wide: one fills the width of a phone."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from itertools import cycle

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dystress_text.analysis.outcome import metric_title
from dystress_text.analysis.page import Pictures, data_uri
from dystress_text.analysis.plots import GREY, SIMILARITIES, STYLES, draw_losses, style
from dystress_text.analysis.runs import FinishedRun, Line, labels
from dystress_text.training.run_record import LEXICAL_LABEL, RunRecord

WIDTH = 9 / 2.54  # inches
Curves = Mapping[str, Mapping[int, float]]  # values by step, by metric
Histograms = Mapping[str, Sequence[float]]  # counts over [-1, 1] by kind of pairs
_NOT_DRAWN = {"step", "learning_rate", "samples_per_second"}
_KINDS = {  # of pairs, by the name of a histogram; a development set is split at a score
    "random": ("random pairs", STYLES[3]),
    "others": ("pairs scored {:g} or less", STYLES[1]),
    "alike": ("pairs scored above {:g}", STYLES[0]),
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
    logs = [run.similarities() for run in runs]
    metrics = [run.metrics() for run in runs]
    curves = [
        _curves(run, [*lines, *log]) for run, lines, log in zip(runs, metrics, logs, strict=True)
    ]
    logged = {name for lines in metrics for line in lines for name in line} - _NOT_DRAWN
    measured = {name for name in logged if any(len(each.get(name, {})) > 1 for each in curves)}
    titles = {name: "\n".join(filter(None, metric_title(name))) for name in sorted(measured)}
    if any(logs):
        titles |= _FIGURES
    pairs = _losses(runs)
    for run, log, label in zip(runs, logs, labels(runs), strict=True):
        caption = label if len(runs) > 1 else ""
        pairs += [(seen, caption, drawn) for seen, drawn in _similarities(run, log)]
    drawn = [
        (f"{metric} over the steps", "", _drawn(metric, title, runs, curves))
        for metric, title in titles.items()
    ]
    return [("Over training", drawn), ("Similarities and temperature", pairs)]


def _curves(run: FinishedRun, lines: Sequence[Line]) -> Curves:
    """Return the curves of logs, which begin with the figures before training.

    None stands for a value that was not finite and is drawn as a gap.
    """
    curves: dict[str, dict[int, float]] = {}
    untrained = {"step": 0, **run.record.untrained.get(run.record.pooler, {})}
    for line in (untrained, *lines):
        for name, value in line.items():
            curves.setdefault(name, {})[line["step"]] = value
    return curves


def _drawn(metric: str, title: str, runs: Sequence[FinishedRun], curves: Sequence[Curves]) -> str:
    """Draw a metric with a line for each run; runs of one configuration share the colour."""
    looks = dict(zip(dict.fromkeys(run.configuration for run in runs), cycle(STYLES)))
    with style():
        figure = Figure(figsize=(WIDTH, 2.1))
        axes = figure.subplots()
        named = set()
        for run, of_run in zip(runs, curves, strict=True):
            curve = of_run.get(metric, {})
            name = run.configuration
            colour, line = looks[name]
            axes.plot(
                list(curve),
                list(curve.values()),
                color=colour,
                linestyle=line,
                marker="o" if len(curve) == 1 else "",
                label="_" if name in named else _visible(name),
            )
            named.add(name)
        if len(runs) == 1:
            _mark(axes, runs[0].record, metric, curve)
        axes.set(title=title, xlabel="optimiser steps")
        axes.set_xlim(left=0)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        if len(axes.lines) > 1:
            _legend(figure, axes, columns=3 if len(runs) == 1 else 1)
        return picture(figure)


def _visible(name: str) -> str:
    """Escape what Matplotlib would draw as a formula or leave out of a legend."""
    name = name.replace("$", r"\$")
    return f"./{name}" if name.startswith("_") else name


def _mark(axes: Axes, record: RunRecord, metric: str, curve: Mapping[int, float]) -> None:
    """Mark the checkpoint that was kept and the lexical baseline on the curve of a single run."""
    axes.lines[0].set_label("this run")
    step = record.best_step or -1
    is_choice = record.settings.get("metric_for_best_model") == metric
    if is_choice and curve.get(step) is not None:
        label = f"kept: step {step:,}"
        axes.plot(step, curve[step], "o", color=STYLES[0][0], label=label, clip_on=False)
    if metric in record.lexical:
        axes.axhline(record.lexical[metric], color=GREY, linestyle=":", label=LEXICAL_LABEL)


def _losses(runs: Sequence[FinishedRun]) -> Pictures:
    """Draw temperature and logit over the similarity of a pair, a line for each configuration."""
    losses = {_visible(run.configuration): run for run in runs}
    with style():
        figure = draw_losses(losses, (2, 1), (WIDTH, 3 + 0.15 * len(losses)))
        if figure is None:
            return []
        return [("Temperature and logit over the similarity of a pair", "", picture(figure))]


def _similarities(run: FinishedRun, log: Sequence[Line]) -> list[tuple[str, str]]:
    """Draw histograms of the pairs of the development set and of the logged batches."""
    pictures = []
    scored = run.record.similarities
    if scored:
        times = [time for time in ("before", "after") if time in scored]
        panels = {f"{scored['set']}, {time} training": scored[time] for time in times}
        seen = "Similarities of scored pairs before and after training"
        pictures.append((seen, _histograms(panels, scored.get("positive_above", 4.0))))
    logged = [line["histograms"] for line in log if "histograms" in line]
    if logged:
        panels = {"first training batches": logged[0], "last training batches": logged[-1]}
        seen = "Similarities of the pairs of the first and the last training batches"
        pictures.append((seen, _histograms(panels)))
    return pictures


def _histograms(panels: Mapping[str, Histograms], score: float = 0.0) -> str:
    """Draw histograms, a panel for each title."""
    with style():
        figure = Figure(figsize=(WIDTH, 0.5 + 1.25 * len(panels)))
        grid = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
        for axes, (title, histograms) in zip(grid, panels.items(), strict=True):
            for name in [kind for kind in _KINDS if kind in histograms]:
                label, (colour, line) = _KINDS[name]
                counts = np.array(histograms[name])
                density = counts * len(counts) / (2 * max(counts.sum(), 1e-12))
                edges = np.linspace(-1, 1, len(counts) + 1)
                look = {"color": colour, "linestyle": line, "linewidth": 1.4}
                axes.stairs(density, edges, label=label.format(score), **look)
            axes.set(ylabel="density", title=title)
            axes.set(xlabel="cosine similarity s", xlim=(-1, 1), xticks=SIMILARITIES)
            axes.label_outer()
        _legend(figure, grid[0])
        return picture(figure)


def _legend(figure: Figure, axes: Axes, columns: int = 1) -> None:
    """Add one legend below the figure."""
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=columns)


def picture(figure: Figure) -> str:
    """Return a figure as a data URI."""
    with io.BytesIO() as drawn:
        figure.savefig(drawn, format="svg", metadata={"Date": None})
        return data_uri("image/svg+xml", drawn.getvalue())
