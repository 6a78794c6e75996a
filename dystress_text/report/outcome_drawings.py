"""Drawings of :mod:`dystress_text.report.outcomes`: a point for each configuration, a bar for the deviation over seeds.

Needs the ``plots`` extra. Constants are blue discs, other temperatures vermilion squares.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator
from numpy.typing import NDArray

from dystress_text.errors import UserError
from dystress_text.report.comparison import Spread
from dystress_text.report.drawings import GREY, SMALL, WIDTH, run_styles, style
from dystress_text.report.outcomes import ACCURACY, Configuration, Outcomes, read_outcomes
from dystress_text.report.plots import STYLES, dress_plain
from dystress_text.report.point_labels import PointLabel, label_points

CONSTANT, OTHER = (STYLES[0][0], "o"), (STYLES[1][0], "s")
MEASURES = {
    "uniformity": "uniformity (lower: more spread out)",
    "tolerance": "tolerance (higher: classes tighter)",
    "alignment": "alignment (lower: pairs closer)",
}


def draw_accuracy_geometry(outcomes: Outcomes) -> Figure:
    """Accuracy against each measure of the geometry, a panel each; every point is named by its temperature."""
    rows = len(outcomes.geometry)
    figure, panels = plt.subplots(rows, 1, figsize=(WIDTH, 0.7 + 2.35 * rows), sharey=True, layout="constrained")
    for axes, measure in zip(panels, outcomes.geometry, strict=True):
        for series in _series(outcomes.configurations):
            _join(axes, [(c.figures[measure].mean, c.figures[ACCURACY].mean) for c in series])
        for c in outcomes.configurations:
            _point(axes, c, c.figures[measure], c.figures[ACCURACY])
        axes.margins(x=0.14, y=0.16)
        dress_plain(axes, outcomes.headline, "", 8)
        axes.set_xlabel(MEASURES[measure])
    _finish(figure, outcomes, _kinds(outcomes.configurations))
    for axes, measure in zip(panels, outcomes.geometry, strict=True):
        labels = [
            PointLabel(c.figures[measure].mean, c.figures[ACCURACY].mean, _name(c), _look(c)[0])
            for c in outcomes.configurations
        ]
        label_points(axes, labels, _taken(axes), SMALL)
    return figure


def draw_over_temperature(outcomes: Outcomes) -> Figure:
    """Accuracy, and below it each measure of the geometry, over constants on an axis and the others side by side."""
    measures = (ACCURACY, *outcomes.geometry)
    constants = [c for c in outcomes.configurations if c.constant is not None]
    others = [c for c in outcomes.configurations if c.constant is None]
    if len({c.temperature for c in outcomes.configurations}) == 1:
        raise UserError(f"these runs share one temperature: {_name(outcomes.configurations[0], ' ')}")
    widths = [width for width, of in ((max(len(constants), 3), constants), (max(1.5 * len(others), 2.2), others)) if of]
    figure, grid = plt.subplots(
        len(measures), len(widths), figsize=(WIDTH, 1.5 + 1.6 * len(measures)), sharex="col", sharey="row",
        layout="constrained", width_ratios=widths, squeeze=False,
    )  # fmt: skip
    for row, measure in zip(grid, measures, strict=True):
        if constants:
            for series in _series(constants):
                _join(row[0], [(c.constant or 0, c.figures[measure].mean) for c in series])
            for c in constants:
                _point(row[0], c, Spread(1, c.constant or 0, None), c.figures[measure])
        for place, c in enumerate(others):
            _point(row[-1], c, Spread(1, place, None), c.figures[measure])
        for axes in row:
            axes.margins(y=0.16)
            dress_plain(axes, _wrapped(_measure(outcomes, measure)) if axes is row[0] else "", "", 8)
    if constants:
        _log_axis(grid[-1, 0], [c.constant or 0 for c in constants], "constant temperature\n(log scale)")
    if others:
        names = [_name(c) for c in others]
        grid[-1, -1].set_xticks(range(len(names)), names)
        grid[-1, -1].set_xlim(-0.6, len(names) - 0.4)
        grid[-1, -1].set_xlabel("temperature function")
    figure.draw_without_rendering()
    if others:
        _turn_if_tight(grid[-1, -1])
    _finish(figure, outcomes, {})
    for row, measure in zip(grid, measures, strict=True):
        marked = [c for c in constants if c.apart]
        if marked:
            labels = [PointLabel(c.constant or 0, c.figures[measure].mean, c.apart, _look(c)[0]) for c in marked]
            label_points(row[0], labels, _taken(row[0]), SMALL)
    return figure


def draw_over_rate(outcomes: Outcomes) -> Figure:
    """Accuracy over the learning rate, a curve for each temperature."""
    rates = [c.rate for c in outcomes.configurations]
    if len(set(rates)) == 1:
        raise UserError(f"these runs share one learning rate: {rates[0]:g}")
    curves: dict[str, list[Configuration]] = {}
    for c in outcomes.configurations:
        curves.setdefault(_name(c), []).append(c)
    figure, axes = plt.subplots(figsize=(WIDTH, 3.1), layout="constrained")
    ends = []
    for (name, members), (colour, line) in zip(curves.items(), run_styles(len(curves)), strict=True):
        members.sort(key=lambda c: c.rate)
        means, bars = _columns([c.figures[ACCURACY] for c in members])
        axes.errorbar([c.rate for c in members], means, bars, fmt="o", linestyle=line, color=colour, elinewidth=1,
                      capsize=2, markersize=4, ecolor=(colour, 0.55))  # fmt: skip
        ends.append(PointLabel(members[-1].rate, float(means[-1]), name, colour))
    axes.margins(x=0.2, y=0.12)
    dress_plain(axes, outcomes.headline, "", 8)
    _log_axis(axes, rates, "learning rate (log scale)")
    _finish(figure, outcomes, {})
    label_points(axes, ends, _taken(axes), SMALL)
    return figure


def _look(c: Configuration) -> tuple[str, str]:
    """Colour and marker."""
    return OTHER if c.constant is None else CONSTANT


def _name(c: Configuration, between: str = "\n") -> str:
    """The name at its point. For a constant it is the value; colour and marker say that it is a constant."""
    words = c.temperature if c.constant is None else c.temperature.removeprefix("constant ")
    return "\n".join(filter(None, (words, c.apart))).replace("\n", between)


def _measure(outcomes: Outcomes, name: str) -> str:
    return outcomes.headline if name == ACCURACY else MEASURES[name]


def _wrapped(label: str) -> str:
    return label.replace(" (", "\n(", 1) if len(label) > 26 else label


def _series(configurations: Sequence[Configuration]) -> list[list[Configuration]]:
    """Constants that differ in nothing but the temperature, which a line may join."""
    found: dict[str, list[Configuration]] = {}
    for c in configurations:
        if c.constant is not None:
            found.setdefault(c.apart, []).append(c)
    return list(found.values())


def _join(axes: Axes, points: Sequence[tuple[float, float]]) -> None:
    axes.plot(*zip(*points, strict=True), color=GREY, linewidth=0.8, zorder=1)


def _point(axes: Axes, c: Configuration, x: Spread, y: Spread) -> None:
    colour, marker = _look(c)
    axes.errorbar(
        x.mean, y.mean, y.deviation, x.deviation, fmt=marker, color=colour, markersize=4.5, elinewidth=1, capsize=2,
        ecolor=(colour, 0.55),
    )  # fmt: skip


def _columns(spreads: Sequence[Spread]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Means and deviations; the deviation of one seed is NaN, which draws no bar."""
    return np.array([s.mean for s in spreads]), np.array(
        [np.nan if s.deviation is None else s.deviation for s in spreads]
    )


def _taken(axes: Axes) -> list[NDArray[np.float64]]:
    """Places on all points, bars and lines of the axes, a few pixels apart, in data coordinates."""
    found = []
    to_data = axes.transData.inverted()
    paths = [line.get_path().vertices for line in axes.lines]
    for collection in axes.collections:
        paths += [path.vertices for path in collection.get_paths()]
    for path in paths:
        at = axes.transData.transform(np.asarray(path, dtype=float))
        at = at[np.isfinite(at).all(axis=1)]  # a point of one seed has bars of no length
        for start, end in pairwise(at if len(at) > 1 else [*at, *at]):
            steps = np.linspace(0, 1, 2 + int(np.hypot(*(end - start)) // 3))[:, None]
            found.append(to_data.transform(start + steps * (end - start)))
    return found


def _log_axis(axes: Axes, values: Sequence[float], label: str) -> None:
    """A logarithmic axis with ticks at the values, without those that would crowd."""
    axes.set_xscale("log")
    at = sorted(set(values))
    shown = at[:1]
    for value in at[1:]:
        if np.log(value / shown[-1]) > 0.06 * np.log(at[-1] / at[0]):
            shown.append(value)
    axes.xaxis.set_major_locator(FixedLocator(shown))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlabel(label)


def _turn_if_tight(axes: Axes) -> None:
    """Turn the names of categories where they do not fit side by side."""
    boxes = [label.get_window_extent() for label in axes.get_xticklabels()]
    if any(second.x0 - first.x1 < 4 for first, second in pairwise(boxes)):
        axes.tick_params(axis="x", labelrotation=90)
        for label in axes.get_xticklabels():
            label.set_multialignment("right")


def _kinds(configurations: Sequence[Configuration]) -> dict[str, tuple[str, str]]:
    """The legend: what colour and marker mean."""
    names = {CONSTANT: "constant temperature, in order", OTHER: "temperature function"}
    return {names[look]: look for look in dict.fromkeys(map(_look, configurations))}


def _finish(figure: Figure, outcomes: Outcomes, kinds: dict[str, tuple[str, str]]) -> None:
    """Title and legend, then the layout."""
    figure.suptitle("\n".join(line for note in outcomes.notes for line in textwrap.wrap(note, 76)), fontsize=8)
    handles = [Line2D([], [], color=c, marker=m, linestyle="", markersize=4.5) for c, m in kinds.values()]
    if handles:
        figure.legend(handles, list(kinds), loc="outside lower center", ncols=2, frameon=False)
    figure.draw_without_rendering()


DRAWINGS: dict[str, Callable[[Outcomes], Figure]] = {
    "accuracy-geometry": draw_accuracy_geometry,
    "accuracy-temperature": draw_over_temperature,
    "geometry-temperature": draw_over_temperature,
    "accuracy-rate": draw_over_rate,
}


def make(name: str, runs: Sequence[Path], accuracy: str | None = None) -> Figure:
    """The figure of that name from these runs.

    Raises:
        UserError: the runs do not make one; see :func:`dystress_text.report.outcomes.read_outcomes`.
    """
    outcomes = read_outcomes(runs, accuracy, "geometry" in name, name == "accuracy-rate")
    with style():
        return DRAWINGS[name](outcomes)
