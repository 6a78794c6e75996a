"""What finished and evaluated runs came to: accuracy and geometry by configuration, over seeds. No drawing here.

A run of images is read from ``run.json`` and the file that ``vision/evaluate.py`` wrote beside it, a run of text from
``run.json`` and the file of ``eval/senteval.py``.
"""

from __future__ import annotations

import math
import re
import shlex
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dystress_text.errors import UserError
from dystress_text.evaluation.catalogue import TASKS
from dystress_text.report.comparison import Spread, spread
from dystress_text.report.run_figures import FREE, options_of, read_json, run_folders
from dystress_text.training.build_loss import TEMPERATURE_OPTIONS
from dystress_text.training.run_folder import PROGRAMS, RECORD

ACCURACY, RATE = "accuracy", "learning_rate"
_TEXT, _IMAGES = PROGRAMS
GEOMETRY = {_IMAGES: ("uniformity", "tolerance"), _TEXT: ("uniformity", "alignment")}
# what makes no configuration: the seed and what is free, apart from the data; and what the temperature's name says
_FREE = {*FREE, "seed", "knn_k"} - {"dataset"} | {"temperature", *TEMPERATURE_OPTIONS}


@dataclass(frozen=True)
class Configuration:
    """Runs that differ in their seeds alone.

    Attributes:
        temperature: in words.
        constant: the temperature, where it is one.
        rate: the learning rate.
        apart: what else than the temperature sets it apart from most configurations, in words; most often nothing.
        seeds: of its runs, in order.
        figures: mean and deviation over the seeds, by measure.
    """

    temperature: str
    constant: float | None
    rate: float
    apart: str
    seeds: tuple[int, ...]
    figures: Mapping[str, Spread]


@dataclass(frozen=True)
class Outcomes:
    """Configurations that were evaluated alike.

    Attributes:
        configurations: constants first, by temperature, then the others as their folders were named.
        headline: what the accuracy is, with its unit.
        geometry: measures of it that every run has; none where they were not asked for.
        notes: what the runs were evaluated on, the spread's meaning, and what most of them have in common.
    """

    configurations: tuple[Configuration, ...]
    headline: str
    geometry: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Run:
    """A run: ``others`` sets it apart beside its temperature, ``setup`` says how it was evaluated."""

    folder: Path
    record: Mapping[str, Any]
    figures: Mapping[str, float]
    headline: str
    setup: Mapping[str, Any]
    data: str

    @property
    def others(self) -> dict[str, Any]:
        settings = {key: value for key, value in options_of(self.record).items() if key not in _FREE}
        return {**settings, "objective": str(self.record["objective"])}


def read_outcomes(
    folders: Sequence[Path], accuracy: str | None = None, geometry: bool = True, over_rate: bool = False
) -> Outcomes:
    """The configurations among runs.

    Args:
        folders: runs, or folders of runs.
        accuracy: of images, ``knn`` or ``linear``; None for the first.
        geometry: whether every run must have it.
        over_rate: leave the learning rate out of what sets configurations apart in words.

    Raises:
        UserError: no such folder, no finished run, one that was not evaluated, runs of text and of images, runs that
            were not evaluated alike, two with one configuration and seed, or one configuration only.
    """
    runs, unfinished = [], []
    kinds: dict[str, Path] = {}
    for folder in run_folders(folders):
        record = read_json(folder / RECORD)
        if record.get("program") not in PROGRAMS:
            raise UserError(f"{folder / RECORD} is no record of a run")
        kinds.setdefault(record["program"], folder)
        if len(kinds) > 1:
            raise UserError(
                f"text and images do not go into one figure: {kinds[_TEXT]} is of text, {kinds[_IMAGES]} of images"
            )
        if "trained" not in record:
            unfinished.append(str(folder))
        elif record["program"] == _IMAGES:
            runs.append(_read_images(folder, record, accuracy or "knn", geometry))
        elif accuracy is not None:
            raise UserError(f"--accuracy is for runs of images; {folder} is a run of text")
        else:
            runs.append(_read_text(folder, record, geometry))
    if not runs:
        raise UserError(f"no finished run: {', '.join(unfinished)}")
    if unfinished:
        warnings.warn(f"not finished and left out: {', '.join(unfinished)}", stacklevel=2)
    _check_setups(runs)
    configurations, common = _configurations(runs, over_rate)
    if len(configurations) == 1:
        found = f"{len(runs)} seeds of" if len(runs) > 1 else "one run,"
        raise UserError(f"a comparison needs two configurations or more; this is {found} {runs[0].folder}")
    numbers = sorted({len(c.seeds) for c in configurations})
    over = " to ".join(str(number) for number in dict.fromkeys((numbers[0], numbers[-1])))
    told = "one seed each" if numbers == [1] else f"mean and standard deviation over {over} seeds"
    measures = GEOMETRY[next(iter(kinds))] if geometry else ()
    notes = (runs[0].data, told, *([f"{common} where none is named"] if common else []))
    return Outcomes(configurations, runs[0].headline, measures, notes)


def temperature_words(temperature: str) -> tuple[str, float | None]:
    """A temperature's name in words, and its value where it is a constant.

    Args:
        temperature: as ``run.json`` has it, such as ``CosineTemperature(tau_min=0.07, tau_max=0.2)``.
    """
    name, _, inside = temperature.partition("(")
    values = dict(re.findall(r"(\w+)='?([^,)\s']+)", inside))
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name.removesuffix("Temperature")).lower()
    if words == "constant":
        return f"constant {float(values['tau']):g}", float(values["tau"])
    low, high = values.pop("tau_min", None), values.pop("tau_max", None)
    lines = [words] if low is None or high is None else [words, f"{float(low):g} to {float(high):g}"]
    if "shift" in values and float(values.get("scale", 0)) == (1 + abs(float(values["shift"]))) / 2:
        del values["scale"]  # the one that belongs to the shift
    lines += [f"{key} {value}" for key, value in values.items()]
    return "\n".join(lines), None


def _configurations(runs: Sequence[_Run], over_rate: bool) -> tuple[tuple[Configuration, ...], str]:
    """The runs by configuration, and in words what most have of the settings in which some differ."""
    others = [run.others for run in runs]
    differing = [key for key in others[0] if any(other.get(key) != others[0][key] for other in others)]
    groups: dict[tuple[Any, ...], dict[int, _Run]] = {}
    for run in runs:
        key = (run.record["temperature"], *(str(run.others.get(name)) for name in differing))
        seed = int(run.record["settings"]["seed"])
        first = groups.setdefault(key, {}).setdefault(seed, run)
        if first is not run:
            raise UserError(f"{first.folder} and {run.folder} are one configuration with one seed")
    said = [name for name in differing if not (over_rate and name == RATE)]
    firsts = [next(iter(by_seed.values())).others for by_seed in groups.values()]
    usual = {name: Counter(str(others.get(name)) for others in firsts).most_common(1)[0][0] for name in said}
    found = []
    for by_seed in groups.values():
        members = [by_seed[seed] for seed in sorted(by_seed)]
        words, constant = temperature_words(members[0].record["temperature"])
        found.append(
            Configuration(
                words, constant, float(members[0].record["settings"][RATE]),
                _words({name: str(members[0].others.get(name)) for name in said}, usual),
                tuple(sorted(by_seed)),
                {name: spread([run.figures[name] for run in members]) for name in members[0].figures},
            )
        )  # fmt: skip
    found.sort(key=lambda c: math.inf if c.constant is None else c.constant)
    return tuple(found), _words(usual).replace("\n", ", ")


def _words(settings: Mapping[str, str], without: Mapping[str, str] | None = None) -> str:
    """Settings and their values, one a line; without those that are the same in ``without``."""
    shown = {name: value for name, value in settings.items() if without is None or without[name] != value}
    return "\n".join(f"{name} {value}" for name, value in shown.items())


def _check_setups(runs: Sequence[_Run]) -> None:
    first = runs[0]
    for run in runs:
        for name, value in run.setup.items():
            if value != first.setup[name]:
                raise UserError(
                    f"not evaluated alike, {name} is {first.setup[name]} in {first.folder} and {value} in {run.folder}"
                )


def _read_images(folder: Path, record: Mapping[str, Any], accuracy: str, geometry: bool) -> _Run:
    tasks = [accuracy, "geometry"] if geometry else [accuracy]
    command = f"python vision/evaluate.py --model {shlex.quote(str(folder))} --tasks {' '.join(tasks)}"
    file = folder / f"vision-{Path(record['settings']['dataset']).name}.json"
    if not file.is_file():
        raise UserError(f"{folder} is not evaluated: {command}")
    content = read_json(file)
    try:
        settings, data = content["settings"], content["data"]
        found = content["results"].get(settings["model"], {})
        missing = [task for task in tasks if task not in found]
        if missing:
            raise UserError(f"{file} is without {' and '.join(missing)}: {command}")
        result, headline, how = found[accuracy], "linear top-1 accuracy (%)", ["probe_epochs"]
        if accuracy == "knn":
            nearest = f"{settings['k']}-NN"
            result, headline, how = result[nearest], f"{nearest} top-1 accuracy (%)", ["k", "knn_temperature"]
        figures = {ACCURACY: result["top1"]}
        if geometry:
            figures |= {name: found["geometry"][name] for name in GEOMETRY[_IMAGES]}
        setup = {name: settings[name] for name in (*how, "limit")}
        setup |= {name: data[name] for name in ("name", "variant", "train_images", "test_images", "image_size")}
        about = f"{data['name']}, {data['train_images']:,} training and {data['test_images']:,} test images"
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{file} is no evaluation of images: {error!r}") from error
    about += f" (a variant: {data['variant']})" if data["variant"] else ""
    return _Run(folder, record, _numbers(figures, file), headline, setup, about)


def _read_text(folder: Path, record: Mapping[str, Any], geometry: bool) -> _Run:
    command = f"python eval/senteval.py --model {shlex.quote(str(folder))} --tasks sts"
    files = [folder / f"senteval-{suite}-test.json" for suite in ("senteval", "mini")]
    file = next((file for file in files if file.is_file()), None)
    if file is None:
        raise UserError(f"{folder} is not evaluated: {command}")
    content = read_json(file)
    try:
        average, found = content["averages"].get("sts"), content["geometry"]
        names = tuple(name for name, task in content["tasks"].items() if name in TASKS["sts"] or "spearman" in task)
        if average is None:
            raise UserError(f"{file} is without an average of STS: {command}")
        if geometry and found is None:
            raise UserError(f"{file} is without geometry: {command} --geometry dev")
        figures = {ACCURACY: average}
        setup = {"suite": content["suite"], "STS tasks": ", ".join(names), "data_variant": content["data_variant"]}
        about = f"{content['suite']} suite"
        if geometry:
            figures |= {name: found[name] for name in GEOMETRY[_TEXT]}
            setup["geometry"] = found["set"]
            about += f", geometry of {found['set']}"
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{file} is no evaluation of text: {error!r}") from error
    about += f" (a variant: {content['data_variant']})" if content["data_variant"] else ""
    which = "STS average" if set(names) == set(TASKS["sts"]) else f"average of {', '.join(names)}"
    headline = f"{names[0] if len(names) == 1 else which} (Spearman $\\times$ 100)"
    return _Run(folder, record, _numbers(figures, file), headline, setup, about)


def _numbers(figures: Mapping[str, Any], file: Path) -> dict[str, float]:
    for name, value in figures.items():
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            raise UserError(f"{file}: {name} is no number but {value!r}")
    return {name: float(value) for name, value in figures.items()}
