"""The one reader of finished runs: what ``run.json`` and the evaluations in a run's folder say."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dystress_text.errors import UserError
from dystress_text.evaluation.catalogue import TASKS, Row
from dystress_text.evaluation.settings import EvaluationSettings
from dystress_text.simcse.settings import RunSettings, TextSettings
from dystress_text.training.run_folder import PROGRAMS, RECORD, TEXT_PROGRAM, evaluation_file, read_json, run_folders
from dystress_text.training.settings import FREE_OPTIONS, OWNERS, TEMPERATURE_OPTIONS, EngineSettings, LossSettings

PAIRS = "sts-pairs.npz"
# Options that do not set configurations apart. Unlike a resumed run, a configuration has one training file.
FREE = {*FREE_OPTIONS, "metric_for_best_model"} - {"train_file", "text_column"}
TRAINING = "training"
_NAME = re.compile(r"(?P<name>.+)-seed-(?P<seed>\d+)")


@dataclass(frozen=True)
class TemperatureValues:
    """A temperature as a record holds it.

    Attributes:
        kind: the name of its class; empty for a run without a temperature.
        parameters: by name, such as ``tau_min``; numbers, or words such as a schedule's unit.
    """

    kind: str
    parameters: Mapping[str, Any]

    @property
    def key(self) -> tuple[str, frozenset[tuple[str, Any]]]:
        """The same for equal temperatures."""
        return self.kind, frozenset(self.parameters.items())


def temperature_values(temperature: str | None, parameters: Mapping[str, Any] | None = None) -> TemperatureValues:
    """A temperature from its representation, such as ``CosineTemperature(tau_min=0.07, tau_max=0.2)``.

    Args:
        temperature: the representation; None for a run without a temperature.
        parameters: the values, where the record holds them; None for an older record, whose representation is parsed.
    """
    kind, _, inside = (temperature or "").partition("(")
    if parameters is None:
        parameters = {name: _value(text) for name, text in re.findall(r"(\w+)='?([^,)\s']+)", inside)}
    return TemperatureValues(kind, parameters)


def _value(text: str) -> int | float | str:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


@dataclass(frozen=True)
class FinishedRun:
    """A finished run of text or images.

    Attributes:
        folder: where it is.
        record: what ``run.json`` holds.
    """

    folder: Path
    record: Mapping[str, Any]

    @property
    def seed(self) -> int:
        """The seed of the run."""
        return int(self.record["settings"]["seed"])

    @cached_property
    def options(self) -> dict[str, Any]:
        """All options; one that is younger than the record has the value that the run behaved as."""
        loss, engine = LossSettings(), EngineSettings()
        defaults = {**vars(loss), **vars(engine)}
        if self.record["program"] == TEXT_PROGRAM:
            text = TextSettings()
            defaults = RunSettings(text, EvaluationSettings(), loss, engine).options()
        return {**defaults, **self.record["settings"]}

    @cached_property
    def temperature(self) -> TemperatureValues:
        """The temperature before the first step."""
        return temperature_values(self.record["temperature"], self.record.get("temperature_parameters"))

    @property
    def constant(self) -> float | None:
        """The temperature of a run with InfoNCE and one constant, which is a baseline; None for others."""
        plain = self.record["objective"] == "InfoNCELoss" and self.temperature.kind == "ConstantTemperature"
        return self.temperature.parameters["tau"] if plain else None


def read_finished(folders: Iterable[Path], programs: Sequence[str] = PROGRAMS) -> tuple[list[FinishedRun], list[Path]]:
    """The finished runs, and the folders of those that are not finished.

    Args:
        folders: runs, or folders of runs.
        programs: those whose runs are read, of :data:`dystress_text.training.run_folder.PROGRAMS`.

    Raises:
        UserError: a folder without runs, or a run of another program.
    """
    runs, unfinished = [], []
    for folder in run_folders(folders):
        record = read_json(folder / RECORD)
        if record.get("program") not in programs:
            raise UserError(f"{folder / RECORD} is not the record of a run of {' or '.join(programs)}")
        if "trained" in record:
            runs.append(FinishedRun(folder, record))
        else:
            unfinished.append(folder)
    return runs, unfinished


def text_evaluations(folder: Path) -> dict[str, dict[str, Any]]:
    """What ``eval/senteval.py`` wrote about a run on the test sets, by suite (``senteval``, ``mini``).

    Raises:
        UserError: a file cannot be read or is not an evaluation of text.
    """
    found = {}
    for file in sorted(folder.glob(evaluation_file(folder, "*", "test").name)):
        content = read_json(file)
        if not isinstance(content.get("tasks"), dict) or "suite" not in content:
            raise UserError(f"{file} is not an evaluation of text")
        found[content["suite"]] = content
    return found


def is_sts(task: str, result: Mapping[str, Any]) -> bool:
    """Whether a task of an evaluation is one of STS, and not of transfer."""
    return "spearman" in result or task in TASKS["sts"]


@dataclass(frozen=True)
class RunFigures(FinishedRun):
    """A finished run of text with its figures.

    Attributes:
        configuration: the folder's name without the seed.
        figures: by group (``training``, or a suite and ``sts`` or ``transfer``), then by task.
        pairs: (2, pairs) by STS task, cosines and gold scores; empty where the evaluation did not store them.
        variants: what the data were, if they were not the published ones.
    """

    configuration: str
    figures: Mapping[str, Row]
    pairs: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    variants: tuple[str, ...] = ()

    @property
    def settings(self) -> dict[str, Any]:
        """The options that make the configuration."""
        return {name: value for name, value in self.options.items() if name not in {*FREE, "seed"}}


def read_text_runs(folders: Iterable[Path]) -> tuple[list[RunFigures], list[str]]:
    """The finished runs of text with their figures, and the names of those that are not finished.

    Args:
        folders: runs, or folders of runs.

    Raises:
        UserError: no run there, two runs with the same configuration and seed, or a configuration with two settings.
    """
    finished, unfinished = read_finished(folders, (TEXT_PROGRAM,))
    runs = [_with_figures(run) for run in finished]
    _check(runs)
    return runs, [folder.name for folder in unfinished]


def _with_figures(run: FinishedRun) -> RunFigures:
    folder, record = run.folder, run.record
    figures: dict[str, Row] = {TRAINING: {str(key): value for key, value in record["trained"].items()}}
    variants = [f"{option}: {variant}" for option, variant in record.get("data_variants", {}).items() if variant]
    for suite, evaluation in text_evaluations(folder).items():
        for task, result in evaluation["tasks"].items():
            key = f"{suite}/sts" if is_sts(task, result) else f"{suite}/transfer"
            figure = result.get("spearman", result.get("accuracy", result.get("figure")))
            figures.setdefault(key, {})[task] = figure
        if evaluation.get("data_variant"):
            variants.append(f"evaluation: {evaluation['data_variant']}")
    name = _NAME.fullmatch(folder.name)
    configuration = name["name"] if name else folder.name
    return RunFigures(folder, record, configuration, figures, _read_pairs(folder / PAIRS), tuple(variants))


def _read_pairs(file: Path) -> dict[str, NDArray[np.float64]]:
    if not file.is_file():
        return {}
    try:
        with np.load(file, allow_pickle=False) as stored:
            return {task: stored[task] for task in stored.files}
    except (OSError, ValueError, EOFError) as error:
        raise UserError(f"{file} cannot be read: {error}") from error


def _check(runs: Sequence[RunFigures]) -> None:
    first: dict[str, RunFigures] = {}
    seen: dict[tuple[str, int], RunFigures] = {}
    for run in runs:
        other = seen.setdefault((run.configuration, run.seed), run)
        if other is not run:
            raise UserError(f"{other.folder} and {run.folder} are one configuration with one seed")
        changed = differing([first.setdefault(run.configuration, run), run])
        if changed:
            raise UserError(
                f"{first[run.configuration].folder} and {run.folder} have one name and differ in {', '.join(changed)}"
            )


def differing(runs: Sequence[RunFigures], but: Sequence[str] = ()) -> list[str]:
    """The settings in which runs differ, apart from seed, folders and those in ``but``."""
    values = [run.settings for run in runs]
    return [name for name in values[0] if name not in but and any(v.get(name) != values[0][name] for v in values)]


def differing_otherwise(runs: Sequence[RunFigures]) -> list[str]:
    """The settings apart from objective and temperature in which runs differ."""
    of_the_rule = ("temperature", "rule", "detach_temperature", *TEMPERATURE_OPTIONS)
    return differing(runs, ("objective", "rows", *OWNERS, *of_the_rule))
