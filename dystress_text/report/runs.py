"""The one reader of finished runs: what ``run.json`` and the evaluations in a run's folder say, or a file of runs.

A file of runs has a line of JSON for each, with what tables need of it: ``dystress report sweep/ --format jsonl``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from dystress_text.errors import UserError
from dystress_text.evaluation.catalogue import TASKS, Row, figure_of
from dystress_text.training.run_folder import PROGRAMS, RECORD, TEXT_PROGRAM, evaluation_file, read_json, run_folders
from dystress_text.training.settings import FREE_OPTIONS, LossSettings

# Options that do not set configurations apart. Unlike a resumed run, a configuration has one training file.
FREE = {*FREE_OPTIONS, "metric_for_best_model"} - {"train_file", "text_column"}
OF_THE_LOSS = {entry.name for entry in fields(LossSettings)}
TRAINING = "training"
_NAME = re.compile(r"(?P<name>.+)-seed-(?P<seed>\d+)")
_KEPT = ("objective", "temperature", "temperature_parameters", "steps", "train_seconds", "device", "paper")


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

    @property
    def configuration(self) -> str:
        """The folder's name without the seed."""
        name = _NAME.fullmatch(self.folder.name)
        return name["name"] if name else self.folder.name

    @property
    def settings(self) -> dict[str, Any]:
        """The options that make the configuration."""
        return {name: value for name, value in self.record["settings"].items() if name not in {*FREE, "seed"}}

    @property
    def temperature(self) -> tuple[str, Mapping[str, Any]]:
        """The class of the temperature before the first step, "" for none, and its values by name."""
        return (self.record["temperature"] or "").partition("(")[0], self.record.get("temperature_parameters") or {}

    @property
    def constant(self) -> float | None:
        """The temperature of a run with InfoNCE and one constant, which is a baseline; None for others."""
        kind, values = self.temperature
        plain = self.record["objective"] == "InfoNCELoss" and kind == "ConstantTemperature"
        return values["tau"] if plain else None


@dataclass(frozen=True)
class TextRun(FinishedRun):
    """A finished run of text with its figures.

    Attributes:
        figures: by group (``training``, or a suite and ``sts`` or ``transfer``, as in ``senteval/sts``), then by task.
        variants: what the data were, if they were not the published ones.
    """

    figures: Mapping[str, Row]
    variants: Sequence[str] = ()

    def line(self) -> str:
        """The line of a file of runs."""
        record = {name: self.record[name] for name in _KEPT if name in self.record}
        settings = {name: v for name, v in {**self.settings, "seed": self.seed}.items() if v is not None}
        corpus = {name: self.record["corpus"][name] for name in ("sentences", "sha256")}
        found = {"name": self.folder.name, **record, "settings": settings, "corpus": corpus}
        return json.dumps({**found, "figures": self.figures, "variants": self.variants})


def read_finished(folders: Iterable[Path], programs: Sequence[str] = PROGRAMS) -> tuple[list[FinishedRun], list[Path]]:
    """The finished runs among folders of runs, of these programs, and the folders of those that are not finished.

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
    """What ``dystress senteval`` wrote about a run on the test sets, by suite (``senteval``, ``mini``)."""
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


def read_text_runs(places: Iterable[Path]) -> tuple[list[TextRun], list[str]]:
    """The finished runs of text, and the names of those that are not finished.

    Args:
        places: runs, folders of runs, or files of runs (``.jsonl``).

    Raises:
        UserError: no run there, two runs with the same configuration and seed, or a configuration with two settings.
    """
    places = list(places)
    folders = [place for place in places if place.suffix != ".jsonl"]
    finished, unfinished = read_finished(folders, (TEXT_PROGRAM,))
    runs = [_with_figures(run) for run in finished]
    for file in places:
        if file not in folders:
            runs += _of_file(file)
    check_configurations(runs)
    return runs, [folder.name for folder in unfinished]


def _of_file(file: Path) -> list[TextRun]:
    try:
        lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        return [TextRun(Path(line["name"]), line, line["figures"], line["variants"]) for line in lines]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{file} is not a file of runs: {error!r}") from error


def _with_figures(run: FinishedRun) -> TextRun:
    figures: dict[str, Row] = {TRAINING: {str(key): value for key, value in run.record["trained"].items()}}
    variants = [f"{option}: {name}" for option, name in run.record.get("data_variants", {}).items() if name]
    for suite, evaluation in text_evaluations(run.folder).items():
        for task, result in evaluation["tasks"].items():
            figures.setdefault(f"{suite}/{'sts' if is_sts(task, result) else 'transfer'}", {})[task] = figure_of(result)
        if evaluation.get("data_variant"):
            variants.append(f"evaluation: {evaluation['data_variant']}")
    return TextRun(run.folder, run.record, figures, variants)


def check_configurations(runs: Sequence[FinishedRun]) -> None:
    """Refuse two runs with one configuration and seed, and a configuration with two settings."""
    first: dict[str, FinishedRun] = {}
    seen: dict[tuple[str, int], FinishedRun] = {}
    for run in runs:
        other = seen.setdefault((run.configuration, run.seed), run)
        if other is not run:
            raise UserError(f"{other.folder} and {run.folder} are one configuration with one seed")
        one = first.setdefault(run.configuration, run)
        changed = differing([one, run])
        if changed:
            raise UserError(f"{one.folder} and {run.folder} have one name and differ in {', '.join(changed)}")


def differing(runs: Sequence[FinishedRun], but: Iterable[str] = ()) -> list[str]:
    """The settings in which runs differ, apart from seed, folders and those in ``but``."""
    values = [run.settings for run in runs]
    names = dict.fromkeys(name for each in values for name in each if name not in but)
    return [name for name in names if any(each.get(name) != values[0].get(name) for each in values)]
