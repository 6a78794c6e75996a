"""Results of finished and evaluated runs: accuracy and geometry by configuration, over seeds. No drawing here."""

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
from dystress_text.report.runs import FREE, FinishedRun, TemperatureValues, is_sts, read_finished, text_evaluations
from dystress_text.training.run_folder import IMAGE_PROGRAM, TEXT_PROGRAM, evaluation_file, read_json, vision_file
from dystress_text.training.settings import TEMPERATURE_OPTIONS

ACCURACY, RATE = "accuracy", "learning_rate"
GEOMETRY = {IMAGE_PROGRAM: ("uniformity", "tolerance"), TEXT_PROGRAM: ("uniformity", "alignment")}
# Options that do not set configurations apart, and those that the temperature's name tells. The data do set them apart.
_FREE = {*FREE, "seed", "knn_k"} - {"dataset"} | {"temperature", *TEMPERATURE_OPTIONS}


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
    """A run with its evaluation.

    Attributes:
        run: the run.
        figures: by measure.
        headline: what the accuracy is, with its unit.
        setup: how the run was evaluated; all runs of a figure share it.
        data: what the run was evaluated on, in words.
    """

    run: FinishedRun
    figures: Mapping[str, float]
    headline: str
    setup: Mapping[str, Any]
    data: str

    @property
    def others(self) -> dict[str, Any]:
        """What sets the configuration apart other than its temperature."""
        settings = {key: value for key, value in self.run.options.items() if key not in _FREE}
        return {**settings, "objective": str(self.run.record["objective"])}


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
    finished, unfinished = read_finished(folders)
    if not finished:
        raise UserError(f"no finished run: {', '.join(map(str, unfinished))}")
    kinds = {run.record["program"]: run.folder for run in finished}
    if len(kinds) > 1:
        raise UserError(
            f"text and images do not go into one figure: {kinds[TEXT_PROGRAM]} is of text, {kinds[IMAGE_PROGRAM]} of "
            "images"
        )
    (kind,) = kinds
    if kind == TEXT_PROGRAM and accuracy is not None:
        raise UserError(f"--accuracy is for runs of images; {finished[0].folder} is a run of text")
    if kind == TEXT_PROGRAM:
        runs = [_read_text(run, geometry) for run in finished]
    else:
        runs = [_read_images(run, accuracy or "knn", geometry) for run in finished]
    if unfinished:
        warnings.warn(f"not finished and left out: {', '.join(map(str, unfinished))}", stacklevel=2)
    _check_setups(runs)
    configurations, common = _configurations(runs, over_rate)
    if len(configurations) == 1:
        found = f"{len(runs)} seeds of" if len(runs) > 1 else "one run,"
        raise UserError(f"a comparison needs two configurations or more; this is {found} {finished[0].folder}")
    numbers = sorted({len(c.seeds) for c in configurations})
    over = " to ".join(str(number) for number in dict.fromkeys((numbers[0], numbers[-1])))
    told = "one seed each" if numbers == [1] else f"mean and standard deviation over {over} seeds"
    measures = GEOMETRY[kind] if geometry else ()
    notes = (runs[0].data, told, *([f"{common} where none is named"] if common else []))
    return Outcomes(configurations, runs[0].headline, measures, notes)


def temperature_words(temperature: TemperatureValues) -> tuple[str, float | None]:
    """A temperature's name in words, and its value where it is a constant."""
    values = dict(temperature.parameters)
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", temperature.kind.removesuffix("Temperature")).lower()
    if words == "constant":
        return f"constant {values['tau']:g}", values["tau"]
    low, high = values.pop("tau_min", None), values.pop("tau_max", None)
    lines = [words] if low is None or high is None else [words, f"{low:g} to {high:g}"]
    if "shift" in values and values.get("scale") == (1 + abs(values["shift"])) / 2:
        del values["scale"]  # the default for the shift
    lines += [f"{key} {value}" for key, value in values.items()]
    return "\n".join(lines), None


def _configurations(runs: Sequence[_Evaluated], over_rate: bool) -> tuple[tuple[Configuration, ...], str]:
    """The runs by configuration, and in words what most have of the settings in which some differ."""
    others = [run.others for run in runs]
    differing = [key for key in others[0] if any(other.get(key) != others[0][key] for other in others)]
    groups: dict[tuple[Any, ...], dict[int, _Evaluated]] = {}
    for run in runs:
        key = (run.run.temperature.key, *(str(run.others.get(name)) for name in differing))
        first = groups.setdefault(key, {}).setdefault(run.run.seed, run)
        if first is not run:
            raise UserError(f"{first.run.folder} and {run.run.folder} are one configuration with one seed")
    said = [name for name in differing if not (over_rate and name == RATE)]
    firsts = [next(iter(by_seed.values())).others for by_seed in groups.values()]
    usual = {name: Counter(str(others.get(name)) for others in firsts).most_common(1)[0][0] for name in said}
    found = []
    for by_seed in groups.values():
        members = [by_seed[seed] for seed in sorted(by_seed)]
        words, constant = temperature_words(members[0].run.temperature)
        found.append(
            Configuration(
                words, constant, float(members[0].run.options[RATE]),
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


def _check_setups(runs: Sequence[_Evaluated]) -> None:
    first = runs[0]
    for each in runs:
        for name, value in each.setup.items():
            if value != first.setup[name]:
                raise UserError(
                    f"not evaluated alike, {name} is {first.setup[name]} in {first.run.folder} and {value} in "
                    f"{each.run.folder}"
                )


def _read_images(run: FinishedRun, accuracy: str, geometry: bool) -> _Evaluated:
    tasks = [accuracy, "geometry"] if geometry else [accuracy]
    command = f"python vision/evaluate.py --model {shlex.quote(str(run.folder))} --tasks {' '.join(tasks)}"
    file = vision_file(run.folder, run.record["settings"]["dataset"])
    if not file.is_file():
        raise UserError(f"{run.folder} is not evaluated: {command}")
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
            figures |= {name: found["geometry"][name] for name in GEOMETRY[IMAGE_PROGRAM]}
        setup = {name: settings[name] for name in (*how, "limit")}
        if accuracy == "linear":
            setup["probe"] = result.get("probe", "fixed")  # records from before the choice have fixed features
        setup |= {name: data[name] for name in ("name", "variant", "train_images", "test_images", "image_size")}
        about = f"{data['name']}, {data['train_images']:,} training and {data['test_images']:,} test images"
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{file} is not an evaluation of images: {error!r}") from error
    return _Evaluated(run, _numbers(figures, file), headline, setup, about + _variant(data["variant"]))


def _read_text(run: FinishedRun, geometry: bool) -> _Evaluated:
    command = f"dystress senteval --model {shlex.quote(str(run.folder))} --tasks sts"
    suites = text_evaluations(run.folder)
    found = suites.get("senteval", suites.get("mini"))
    if found is None:
        raise UserError(f"{run.folder} is not evaluated: {command}")
    suite, average, measured = found["suite"], found.get("averages", {}).get("sts"), found.get("geometry")
    file = evaluation_file(run.folder, suite, "test")
    if average is None:
        raise UserError(f"{file} is without an average of STS: {command}")
    if geometry and measured is None:
        raise UserError(f"{file} is without geometry: {command} --geometry dev")
    names = tuple(task for task, result in found["tasks"].items() if is_sts(task, result))
    variant, figures, about = found.get("data_variant"), {ACCURACY: average}, f"{suite} suite"
    setup = {"suite": suite, "STS tasks": ", ".join(names), "data_variant": variant}
    if geometry and measured is not None:
        figures |= {name: measured.get(name) for name in GEOMETRY[TEXT_PROGRAM]}
        setup["geometry"] = measured.get("set")
        about += f", geometry of {measured.get('set')}"
    which = "STS average" if set(names) == set(TASKS["sts"]) else f"average of {', '.join(names)}"
    headline = f"{names[0] if len(names) == 1 else which} (Spearman $\\times$ 100)"
    return _Evaluated(run, _numbers(figures, file), headline, setup, about + _variant(variant))


def _variant(variant: str | None) -> str:
    return f" (a variant: {variant})" if variant else ""


def _numbers(figures: Mapping[str, Any], file: Path) -> dict[str, float]:
    for name, value in figures.items():
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            raise UserError(f"{file}: {name} is not a finite number but {value!r}")
    return {name: float(value) for name, value in figures.items()}
