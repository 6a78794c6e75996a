"""Draw the plots of a page, each 9 cm wide to fit the screen of a phone."""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dystress_text.analysis.finished_run import FinishedRun
from dystress_text.analysis.plots import draw_losses, style
from dystress_text.losses.objectives import parse_loss
from dystress_text.losses.registry import LossError
from dystress_text.training.run_record import RunRecord

if TYPE_CHECKING:
    from dystress_text.evaluation.statistics import Estimate

Picture = tuple[str, str]  # description, and the picture as a URI
Curve = dict[int, float]  # a value by step
WIDTH = 9 / 2.54  # inches
_NOT_DRAWN = {"step", "learning_rate", "samples_per_second"}
_LOGGED = {  # of the similarity log
    "tau_effective": "effective temperature",
    "positive": "mean similarity of positives",
    "negative": "mean similarity of negatives",
}


def galleries(runs: Sequence[FinishedRun]) -> list[tuple[str, list[Picture]]]:
    """Return the plots of a page by heading; a heading may have none."""
    curves = [_curves(run) for run in runs]
    metrics = {name for each in curves for name, curve in each.items() if _varies(curve)}
    if len({run.record.loss for run in runs}) > 1:
        metrics.discard("loss")  # those of different objectives have no common scale
    with style():
        over_steps = [
            (f"{metric} over the steps", _draw_curves(metric, runs, curves))
            for metric in sorted(metrics)
        ]
        similarities = _losses(runs)
        if len(runs) == 1:
            similarities += _histograms(runs[0].record)
    return [("Over training", over_steps), ("Similarities and temperature", similarities)]


def draw_estimates(estimates: Mapping[str, Mapping[str, Estimate]]) -> list[Picture]:
    """Draw one plot for each set: a dot and a 95 % interval for each name."""
    pictures = []
    with style():
        for where, of_set in estimates.items():
            figure = Figure(figsize=(WIDTH, 0.8 + 0.3 * len(of_set)))
            axes = figure.subplots()
            for row, (name, each) in enumerate(of_set.items()):
                low, high = each.interval or (each.mean, each.mean)
                axes.plot([low, high], [row, row], "-", color="C0")
                axes.plot([each.mean], [row], "o", color="C0", markersize=4)
                left = axes.get_yaxis_transform()
                axes.annotate(name, (0, row), (3, 4), left, "offset points", size=6.5)
            axes.set(title=where, yticks=[], xlabel="95 % interval of each alone")
            axes.set_ylim(len(of_set) - 0.5, -0.9)  # the first at the top
            pictures.append((f"Intervals: {where}", _uri(figure)))
    return pictures


def _curves(run: FinishedRun) -> dict[str, Curve]:
    """Return the logged curves by name; each begins with the figure before training.

    A value that was not finite is None, and is drawn as a gap.
    """
    curves: dict[str, Curve] = {}
    untrained = {"step": 0, **run.record.untrained.get(run.record.pooler, {})}
    for line in (untrained, *run.metrics()):
        for name in line.keys() - _NOT_DRAWN:
            curves.setdefault(name, {})[line["step"]] = line[name]
    for line in run.similarities():
        for name in _LOGGED:
            curves.setdefault(name, {})[line["step"]] = line[name]
    return curves


def _varies(curve: Curve) -> bool:
    """Return whether a curve is worth drawing: a constant temperature, say, is not."""
    return len({value and round(value, 6) for value in curve.values()}) > 1


def _draw_curves(
    metric: str, runs: Sequence[FinishedRun], curves: Sequence[Mapping[str, Curve]]
) -> str:
    """Draw a line for each run, with one style per configuration."""
    names = dict.fromkeys(run.configuration for run in runs)
    looks = dict(zip(names, cycle(mpl.rcParams["axes.prop_cycle"]), strict=False))
    figure = Figure(figsize=(WIDTH, 2.1))
    axes = figure.subplots()
    labelled = set()
    for run, of_run in zip(runs, curves, strict=True):
        name = run.configuration
        curve = of_run.get(metric, {})
        label = "_" if name in labelled else name
        labelled.add(name)
        axes.plot(list(curve), list(curve.values()), label=label, **looks[name])
    if len(runs) == 1:
        _mark(axes, runs[0].record, metric)
    title = _LOGGED.get(metric) or runs[0].record.metric(metric).full_title
    axes.set(title=title.replace(": ", "\n"), xlabel="optimiser steps")
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    if len(axes.lines) > 1:
        figure.legend(loc="outside lower center", ncols=3 if len(runs) == 1 else 1)
    return _uri(figure)


def _mark(axes: Axes, record: RunRecord, metric: str) -> None:
    """Mark the step that was kept, and the figure of the lexical baseline."""
    axes.lines[0].set_label("this run")
    if record.best_step is not None and record.settings.get("metric_for_best_model") == metric:
        axes.axvline(record.best_step, color="C3", linestyle=":", label="kept")
    if metric in record.lexical:
        axes.axhline(record.lexical[metric], color="C3", linestyle="--", label=record.lexical_label)


def _losses(runs: Sequence[FinishedRun]) -> list[Picture]:
    """Draw the losses of runs; None if all of them are flat.

    Losses that learn their temperature are left out.
    """
    losses = {}
    for run in runs:
        if run.record.learned_temperature:
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # training has given the warning
                losses[run.configuration] = parse_loss(run.record.loss)
        except LossError:  # the class is not loaded here
            continue
    parts = [getattr(each, "reweighting", None) for each in losses.values()]
    if all(part is None or isinstance(part.as_argument(), float) for part in parts):
        return []
    figure = draw_losses(losses, (2, 1), (WIDTH, 3 + 0.15 * len(losses)))
    if figure is None:
        return []
    return [("Temperature and logit over the similarity of a pair", _uri(figure))]


def _histograms(record: RunRecord) -> list[Picture]:
    """Draw histograms of the similarities of scored pairs before and after training.

    The record contains counts in equal bins over [-1, 1].
    """
    scored = record.similarities
    if not scored:
        return []
    above = f"{scored['positive_above']:g}"
    kinds = {
        "random": "random pairs",
        "others": f"pairs scored {above} or less",
        "alike": f"pairs scored above {above}",
    }
    figure = Figure(figsize=(WIDTH, 3))
    panels = figure.subplots(2, 1, sharex=True)
    for axes, time in zip(panels, ("before", "after"), strict=True):
        for kind, label in kinds.items():
            counts = np.array(scored[time][kind])
            edges = np.linspace(-1, 1, len(counts) + 1)
            density = counts / max(counts.sum() * (edges[1] - edges[0]), 1e-12)
            middles = (edges[1:] + edges[:-1]) / 2
            axes.plot(middles, density, drawstyle="steps-mid", label=label)
        axes.set(ylabel="density", title=f"{scored['set']}, {time} training", xlim=(-1, 1))
    panels[-1].set_xlabel("cosine similarity s")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center")
    return [("Similarities of scored pairs before and after training", _uri(figure))]


def _uri(figure: Figure) -> str:
    """Return a matplotlib figure as a data URI."""
    with io.BytesIO() as drawn:
        figure.savefig(drawn, format="svg", metadata={"Date": None})
        content = base64.b64encode(drawn.getvalue()).decode("ascii")
    return f"data:image/svg+xml;base64,{content}"
