"""Accuracy and geometry of evaluated runs of images by configuration: a point for each, a bar for the seeds.

The drawing needs the ``plots`` extra. Constants are blue discs, other temperatures vermilion squares.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dystress_text.errors import UserError
from dystress_text.report.comparison import Spread, spread
from dystress_text.report.plots import GREY, MORE_STYLES, STYLES, WIDTH, dress_plain, stacked, style
from dystress_text.report.runs import FREE, FinishedRun, read_finished
from dystress_text.training.run_folder import IMAGE_PROGRAM, read_json, vision_file

MEASURES = {
    "uniformity": "uniformity (lower: more spread out)",
    "tolerance": "tolerance (higher: classes tighter)",
}


@dataclass(frozen=True)
class Configuration:
    """Runs that differ only in their seeds.

    Attributes:
        temperature: in words.
        constant: the temperature, where it is one.
        rate: the learning rate.
        apart: what else sets configurations apart, in words.
        figures: mean and deviation over the seeds, of ``accuracy`` and of each measure.
    """

    temperature: str
    constant: float | None
    rate: float
    apart: str
    figures: Mapping[str, Spread]

    @property
    def name(self) -> str:
        """At its point; of a constant the value, as colour and marker say that it is one."""
        return "\n".join(filter(None, (self.temperature.removeprefix("constant "), self.apart)))


def read_outcomes(
    folders: Sequence[Path], accuracy: str = "knn", geometry: bool = True
) -> tuple[list[Configuration], str]:
    """The configurations among runs, constants first, and what the accuracy is and of what.

    Args:
        folders: runs, or folders of runs.
        accuracy: ``knn`` or ``linear``.
        geometry: whether every run must have it.

    Raises:
        UserError: no finished run, one that was not evaluated so, runs that were not evaluated alike, or two with one
            configuration and seed.
    """
    runs, _ = read_finished(folders, (IMAGE_PROGRAM,))
    if not runs:
        raise UserError(f"no finished run: {', '.join(map(str, folders))}")
    figures, setups = zip(*(_evaluation(run, accuracy, geometry) for run in runs), strict=True)
    for run, setup in zip(runs, setups, strict=True):
        differs = [name for name in setup if setup[name] != setups[0][name]]
        if differs:
            raise UserError(f"not evaluated alike, in {', '.join(differs)}: {runs[0].folder} and {run.folder}")
    settings = [{**run.record["settings"], "objective": run.record["objective"]} for run in runs]
    told = {"temp", "temperature", *(name for run in runs for name in run.temperature[1])}  # by the temperature's name
    free = {*FREE, "seed", "knn_k", *told} - {"dataset"}
    names = [n for n in settings[0] if n not in free and len({str(each.get(n)) for each in settings}) > 1]
    groups: dict[tuple[str, ...], dict[int, int]] = {}  # places of runs by configuration and seed
    for place, (run, each) in enumerate(zip(runs, settings, strict=True)):
        key = (temperature_words(*run.temperature)[0], *(f"{name} {each.get(name)}" for name in names))
        if groups.setdefault(key, {}).setdefault(run.seed, place) != place:
            first = runs[groups[key][run.seed]].folder
            raise UserError(f"{first} and {run.folder} are one configuration with one seed")
    found = []
    for (words, *apart), by_seed in groups.items():
        places = list(by_seed.values())
        over = {name: spread([figures[place][name] for place in places]) for name in figures[0]}
        constant, rate = temperature_words(*runs[places[0]].temperature)[1], settings[places[0]]["learning_rate"]
        found.append(Configuration(words, constant, rate, "\n".join(apart), over))
    about = f"{setups[0]['name']}, {setups[0]['train_images']:,} training and {setups[0]['test_images']:,} test images"
    what = "linear" if accuracy == "linear" else f"{setups[0]['k']}-NN"
    about += f" (a variant: {setups[0]['variant']})" if setups[0]["variant"] else ""
    found.sort(key=lambda c: math.inf if c.constant is None else c.constant)
    return found, f"{what} top-1 accuracy (%)\n{about}"


def temperature_words(kind: str, parameters: Mapping[str, Any]) -> tuple[str, float | None]:
    """A temperature's name in words, and its value where it is a constant."""
    values = dict(parameters)
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind.removesuffix("Temperature")).lower()
    if words == "constant":
        return f"constant {values['tau']:g}", values["tau"]
    low, high = values.pop("tau_min", None), values.pop("tau_max", None)
    lines = [words] if low is None or high is None else [words, f"{low:g} to {high:g}"]
    if "shift" in values and values.get("scale") == (1 + abs(values["shift"])) / 2:
        del values["scale"]  # the default for the shift
    return "\n".join(lines + [f"{key} {value}" for key, value in values.items()]), None


def _evaluation(run: FinishedRun, accuracy: str, geometry: bool) -> tuple[dict[str, float], dict[str, Any]]:
    """The figures of a run, and how it was evaluated."""
    try:
        content = read_json(vision_file(run.folder, run.record["settings"]["dataset"]))
        settings, data = content["settings"], content["data"]
        found = content["results"][settings["model"]]
        result = found["linear"] if accuracy == "linear" else found["knn"][f"{settings['k']}-NN"]
        how = ("probe_epochs", "limit") if accuracy == "linear" else ("k", "knn_temperature", "limit")
        setup = {name: settings[name] for name in how} | {"probe": result.get("probe")}
        setup |= {name: data[name] for name in ("name", "variant", "train_images", "test_images", "image_size")}
        figures = {"accuracy": float(result["top1"])}
        return figures | {name: float(found["geometry"][name]) for name in MEASURES if geometry}, setup
    except (KeyError, TypeError, AttributeError, UserError) as error:
        tasks = f"{accuracy}{' geometry' * geometry}"
        command = f"python vision/evaluate.py --model {shlex.quote(str(run.folder))} --tasks {tasks}"
        raise UserError(f"{run.folder} is not evaluated so ({error}): {command}") from error


# ---- drawing ---------------------------------------------------------------------------------------------------------


def draw(name: str, configurations: Sequence[Configuration], headline: str) -> Figure:
    """The figure of that name, one of :data:`dystress_text.figures.OUTCOMES`."""
    label, _, about = headline.partition("\n")
    with style():
        if name == "accuracy-geometry":
            figure, grid = plt.subplots(len(MEASURES), 1, figsize=(WIDTH, 5.4), layout="constrained")
            for axes, (measure, words) in zip(grid, MEASURES.items(), strict=True):
                _against(axes, configurations, measure)
                dress_plain(axes, label, "")
                axes.set_xlabel(words)
        else:
            measures = ["accuracy", *(measure for measure in MEASURES if name == "geometry-temperature")]
            figure, grid = stacked(len(measures), WIDTH, 1.5 + 1.6 * len(measures))
            for axes, measure in zip(grid, measures, strict=True):
                if name == "accuracy-rate":
                    _over_rate(axes, configurations, measure)
                else:
                    _by_name(axes, configurations, measure)
                dress_plain(axes, MEASURES.get(measure, label).replace(" (", "\n("), "")
        figure.suptitle(f"{about}; bars: standard deviation over seeds", fontsize=8)
        figure.draw_without_rendering()
    return figure


def _against(axes: Axes, configurations: Sequence[Configuration], measure: str) -> None:
    """Accuracy against a measure, a name at each point, a line through the constants."""
    constants = [c.figures for c in configurations if c.constant is not None]
    axes.plot([f[measure].mean for f in constants], [f["accuracy"].mean for f in constants], color=GREY, linewidth=0.8)
    for c in configurations:
        x, y = c.figures[measure], c.figures["accuracy"]
        colour = _point(axes, c, x, y)
        axes.annotate(c.name, (x.mean, y.mean), (4, 4), textcoords="offset points", fontsize=7, color=colour)
    axes.margins(0.16)


def _by_name(axes: Axes, configurations: Sequence[Configuration], measure: str) -> None:
    """A measure of the configurations side by side."""
    for place, c in enumerate(configurations):
        _point(axes, c, Spread(1, place, None), c.figures[measure])
    axes.set_xticks(range(len(configurations)), [c.name for c in configurations])
    axes.tick_params(axis="x", labelrotation=90 if len(configurations) > 6 else 0)


def _over_rate(axes: Axes, configurations: Sequence[Configuration], measure: str) -> None:
    """A measure over the learning rate, a line for each temperature."""
    for place, name in enumerate(dict.fromkeys(c.temperature for c in configurations)):
        members = sorted((c for c in configurations if c.temperature == name), key=lambda c: c.rate)
        (colour, line), figures = MORE_STYLES[place % len(MORE_STYLES)], [c.figures[measure] for c in members]
        means, bars = [f.mean for f in figures], [f.deviation or 0 for f in figures]
        rates = [c.rate for c in members]
        axes.errorbar(rates, means, bars, marker="o", linestyle=line, color=colour, capsize=2, label=name)
    axes.set_xscale("log")
    axes.set_xlabel("learning rate (log scale)")
    axes.legend(frameon=False)


def _point(axes: Axes, c: Configuration, x: Spread, y: Spread) -> str:
    """A point with its bars; returns its colour."""
    colour, marker = (STYLES[1][0], "s") if c.constant is None else (STYLES[0][0], "o")
    axes.errorbar(x.mean, y.mean, y.deviation, x.deviation, fmt=marker, color=colour, markersize=4.5, capsize=2)
    return colour
