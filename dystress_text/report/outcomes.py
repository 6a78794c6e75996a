"""Accuracy and geometry of evaluated runs by configuration: a point for each, a bar for the deviation over seeds.

The drawing needs the ``plots`` extra. Constants are blue discs, other temperatures vermilion squares.
"""

from __future__ import annotations

import math
import re
import shlex
import textwrap
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dystress_text.errors import ParameterError, UserError
from dystress_text.report.comparison import Spread, spread
from dystress_text.report.runs import FREE, FinishedRun, is_sts, read_finished, text_evaluations
from dystress_text.training.run_folder import IMAGE_PROGRAM, TEXT_PROGRAM, read_json, vision_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ACCURACY, RATE = "accuracy", "learning_rate"
GEOMETRY = {IMAGE_PROGRAM: ("uniformity", "tolerance"), TEXT_PROGRAM: ("uniformity", "alignment")}
MEASURES = {
    "uniformity": "uniformity (lower: more spread out)",
    "tolerance": "tolerance (higher: classes tighter)",
    "alignment": "alignment (lower: pairs closer)",
}


@dataclass(frozen=True)
class Configuration:
    """Runs that differ only in their seeds.

    Attributes:
        temperature: in words.
        constant: the temperature, where it is one.
        rate: the learning rate.
        apart: what sets it apart from most configurations other than the temperature, in words; mostly empty.
        seeds: of its runs, in order.
        figures: mean and deviation over the seeds, by measure.
    """

    temperature: str
    constant: float | None
    rate: float
    apart: str
    seeds: tuple[int, ...]
    figures: Mapping[str, Spread]

    @property
    def name(self) -> str:
        """At its point; of a constant the value, as colour and marker say that it is one."""
        return "\n".join(filter(None, (self.temperature.removeprefix("constant "), self.apart)))


@dataclass(frozen=True)
class Outcomes:
    """Configurations that were evaluated alike.

    Attributes:
        configurations: constants first, by temperature, then the others as their folders were named.
        headline: what the accuracy is, with its unit.
        geometry: its measures, which every run has; empty where they were not asked for.
        notes: what the runs were evaluated on, what the deviation means, and what most runs have in common.
    """

    configurations: tuple[Configuration, ...]
    headline: str
    geometry: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Evaluated:
    """A run with its figures by measure, what the accuracy is, and how it was evaluated: alike in one picture."""

    run: FinishedRun
    figures: Mapping[str, Any]
    headline: str
    setup: Mapping[str, Any]
    data: str


def read_outcomes(folders: Sequence[Path], accuracy: str | None = None, geometry: bool = True) -> Outcomes:
    """The configurations among runs.

    Args:
        folders: runs, or folders of runs.
        accuracy: of images, ``knn`` or ``linear``; None for the first.
        geometry: whether every run must have it.

    Raises:
        UserError: no finished run, one that was not evaluated, runs of text and of images, runs that were not
            evaluated alike, two with one configuration and seed, or one configuration only.
    """
    finished, unfinished = read_finished(folders)
    if not finished:
        raise UserError(f"no finished run: {', '.join(map(str, unfinished))}")
    if unfinished:
        warnings.warn(f"not finished and left out: {', '.join(map(str, unfinished))}", stacklevel=2)
    kinds = {run.record["program"]: run.folder for run in finished}
    if len(kinds) > 1:
        raise UserError(f"text and images do not go into one figure: {' and '.join(map(str, kinds.values()))}")
    (kind,) = kinds
    if kind == TEXT_PROGRAM and accuracy is not None:
        raise ParameterError("accuracy", f"for runs of images; {finished[0].folder} is a run of text")
    measures = GEOMETRY[kind] if geometry else ()
    read = _read_text if kind == TEXT_PROGRAM else _read_images
    runs = [read(run, accuracy or "knn", measures) for run in finished]
    for each in runs:
        differs = [name for name, value in each.setup.items() if value != runs[0].setup.get(name)]
        if differs or each.setup.keys() != runs[0].setup.keys():
            first = runs[0].run.folder
            raise UserError(f"not evaluated alike, in {', '.join(differs)}: {first} and {each.run.folder}")
        for name, value in each.figures.items():
            if not isinstance(value, (int, float)) or not math.isfinite(value):
                raise UserError(f"{each.run.folder}: {name} is not a finite number but {value!r}")
    configurations, common = _configurations(runs)
    if len(configurations) == 1:
        raise UserError(f"a comparison needs two configurations or more; {finished[0].folder} is of the only one")
    numbers = sorted({len(c.seeds) for c in configurations})
    over = " to ".join(str(number) for number in dict.fromkeys((numbers[0], numbers[-1])))
    told = "one seed each" if numbers == [1] else f"mean and standard deviation over {over} seeds"
    notes = (runs[0].data, told, *([f"{common} where none is named"] if common else []))
    return Outcomes(configurations, runs[0].headline, measures, notes)


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


def _configurations(runs: Sequence[_Evaluated]) -> tuple[tuple[Configuration, ...], str]:
    """The runs by configuration, and in words what most have of the settings in which some differ."""
    told = {"temp", *(name for each in runs for name in each.run.temperature[1])}  # by the temperature's name
    free = {*FREE, "seed", "knn_k", "temperature"} - {"dataset"} | told
    others = [{**each.run.record["settings"], "objective": each.run.record["objective"]} for each in runs]
    names = [name for name in others[0] if name not in free and len({str(o.get(name)) for o in others}) > 1]
    groups: dict[tuple[str, ...], dict[int, _Evaluated]] = {}
    for each, settings in zip(runs, others, strict=True):
        key = (*temperature_words(*each.run.temperature)[:1], *(str(settings.get(name)) for name in names))
        first = groups.setdefault(key, {}).setdefault(each.run.seed, each)
        if first is not each:
            raise UserError(f"{first.run.folder} and {each.run.folder} are one configuration with one seed")
    usual = [Counter(key[1 + i] for key in groups).most_common(1)[0][0] for i in range(len(names))]
    found = []
    for (words, *values), by_seed in groups.items():
        members = [by_seed[seed] for seed in sorted(by_seed)]
        apart = [f"{name} {v}" for name, v, u in zip(names, values, usual, strict=True) if v != u]
        figures = {name: spread([each.figures[name] for each in members]) for name in members[0].figures}
        constant = temperature_words(*members[0].run.temperature)[1]
        rate = float(members[0].run.record["settings"][RATE])
        found.append(Configuration(words, constant, rate, "\n".join(apart), tuple(sorted(by_seed)), figures))
    found.sort(key=lambda c: math.inf if c.constant is None else c.constant)
    return tuple(found), ", ".join(f"{name} {value}" for name, value in zip(names, usual, strict=True))


def _read_images(run: FinishedRun, accuracy: str, measures: Sequence[str]) -> _Evaluated:
    tasks = [accuracy, "geometry"] if measures else [accuracy]
    file = vision_file(run.folder, run.record["settings"]["dataset"])
    try:
        content = read_json(file)
        settings, data = content["settings"], content["data"]
        found = content["results"][settings["model"]]
        result, headline, how = found[accuracy], "linear top-1 accuracy (%)", ["probe_epochs"]
        if accuracy == "knn":
            nearest = f"{settings['k']}-NN"
            result, headline, how = result[nearest], f"{nearest} top-1 accuracy (%)", ["k", "knn_temperature"]
        figures = {ACCURACY: result["top1"], **{name: found["geometry"][name] for name in measures}}
        setup = {name: settings[name] for name in (*how, "limit")} | {"probe": result.get("probe")}
        setup |= {name: data[name] for name in ("name", "variant", "train_images", "test_images", "image_size")}
    except (KeyError, TypeError, AttributeError, UserError) as error:
        command = f"python vision/evaluate.py --model {shlex.quote(str(run.folder))} --tasks {' '.join(tasks)}"
        raise UserError(f"{run.folder} is not evaluated so ({error}): {command}") from error
    about = f"{data['name']}, {data['train_images']:,} training and {data['test_images']:,} test images"
    return _Evaluated(run, figures, headline, setup, about + _variant(data["variant"]))


def _read_text(run: FinishedRun, accuracy: str, measures: Sequence[str]) -> _Evaluated:
    suites = text_evaluations(run.folder)
    found = suites.get("senteval", suites.get("mini", {}))
    average, geometry = found.get("averages", {}).get("sts"), found.get("geometry") or {}
    if average is None or (measures and not geometry):
        command = f"dystress senteval --model {shlex.quote(str(run.folder))} --tasks sts --geometry dev"
        raise UserError(f"{run.folder} is not evaluated so: {command}")
    names = [task for task, result in found["tasks"].items() if is_sts(task, result)]
    figures = {ACCURACY: average, **{name: geometry.get(name) for name in measures}}
    setup = {"suite": found["suite"], "STS tasks": ", ".join(names), "data_variant": found.get("data_variant")}
    setup |= {"geometry": geometry.get("set")} if measures else {}
    which = names[0] if len(names) == 1 else f"average of {len(names)} STS sets"
    about = f"{found['suite']} suite" + (f", geometry of {geometry.get('set')}" if measures else "")
    return _Evaluated(run, figures, f"{which} (Spearman $\\times$ 100)", setup, about + _variant(setup["data_variant"]))


def _variant(variant: str | None) -> str:
    return f" (a variant: {variant})" if variant else ""


# ---- drawing ---------------------------------------------------------------------------------------------------------


def draw(name: str, outcomes: Outcomes) -> Figure:
    """The figure of that name, one of :data:`dystress_text.figures.OUTCOMES`."""
    import matplotlib.pyplot as plt

    from dystress_text.report.plots import GREY, WIDTH, dress_plain, stacked, style

    with style():
        if name == "accuracy-geometry":
            rows = len(outcomes.geometry)
            figure, grid = plt.subplots(rows, 1, figsize=(WIDTH, 0.7 + 2.35 * rows), layout="constrained")
            for axes, measure in zip(grid, outcomes.geometry, strict=True):
                constants = [c.figures for c in outcomes.configurations if c.constant is not None]
                axes.plot(*zip(*((f[measure].mean, f[ACCURACY].mean) for f in constants), strict=True), color=GREY)
                for c in outcomes.configurations:
                    _point(axes, c, c.figures[measure], c.figures[ACCURACY])
                    at = (c.figures[measure].mean, c.figures[ACCURACY].mean)
                    axes.annotate(c.name, at, (4, 4), textcoords="offset points", fontsize=7, color=_look(c)[0])
                axes.margins(0.16)
                dress_plain(axes, outcomes.headline, "")
                axes.set_xlabel(MEASURES[measure])
        else:
            measures = (ACCURACY, *outcomes.geometry)
            figure, grid = stacked(len(measures), WIDTH, 1.5 + 1.6 * len(measures))
            for axes, measure in zip(grid, measures, strict=True):
                _over(axes, outcomes, measure, name == "accuracy-rate")
                label = outcomes.headline if measure == ACCURACY else MEASURES[measure]
                dress_plain(axes, label.replace(" (", "\n("), "")
        notes = (line for note in outcomes.notes for line in textwrap.wrap(note, 76))
        figure.suptitle("\n".join(notes), fontsize=8)
        figure.draw_without_rendering()
    return figure


def _over(axes: Axes, outcomes: Outcomes, measure: str, over_rate: bool) -> None:
    """A measure over the learning rate, with a line for each temperature, or over the configurations side by side."""
    from dystress_text.report.plots import MORE_STYLES

    if not over_rate:
        for place, c in enumerate(outcomes.configurations):
            _point(axes, c, Spread(1, place, None), c.figures[measure])
        names = [c.name for c in outcomes.configurations]
        axes.set_xticks(range(len(names)), names, rotation=90 if len(names) > 6 else 0)
        return
    lines: dict[str, list[Configuration]] = {}
    for c in sorted(outcomes.configurations, key=lambda c: c.rate):
        lines.setdefault(c.temperature, []).append(c)
    for place, (name, members) in enumerate(lines.items()):
        (colour, line), figures = MORE_STYLES[place % len(MORE_STYLES)], [c.figures[measure] for c in members]
        bars = [f.deviation or 0 for f in figures]
        axes.errorbar(
            [c.rate for c in members], [f.mean for f in figures], bars, fmt="o", linestyle=line, color=colour,
            capsize=2, markersize=4, label=name,
        )  # fmt: skip
    axes.set_xscale("log")
    rates = sorted({c.rate for c in outcomes.configurations})
    axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("learning rate (log scale)")
    axes.legend(frameon=False)


def _look(c: Configuration) -> tuple[str, str]:
    """Colour and marker."""
    from dystress_text.report.plots import STYLES

    return (STYLES[1][0], "s") if c.constant is None else (STYLES[0][0], "o")


def _point(axes: Axes, c: Configuration, x: Spread, y: Spread) -> None:
    colour, marker = _look(c)
    axes.errorbar(
        x.mean, y.mean, y.deviation, x.deviation, fmt=marker, color=colour, markersize=4.5, elinewidth=1, capsize=2,
        ecolor=(colour, 0.55),
    )  # fmt: skip
