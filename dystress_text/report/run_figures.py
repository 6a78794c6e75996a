"""Finished runs as figures by configuration, seed and task: what ``run.json`` and the evaluation's files say."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dystress_text.errors import UserError
from dystress_text.evaluation.published import GROUPS, TASKS, Row, average
from dystress_text.evaluation.settings import EvaluationSettings
from dystress_text.simcse.objective import TEXT
from dystress_text.simcse.paper import ROWS, PaperRow
from dystress_text.simcse.settings import RunSettings, TextSettings
from dystress_text.training.build_loss import TEMPERATURE_OPTIONS, build_objective
from dystress_text.training.run_folder import PROGRAMS, RECORD
from dystress_text.training.saved_state import FREE_OPTIONS
from dystress_text.training.settings import EngineSettings, LossSettings

PAIRS = "sts-pairs.npz"
# what does not make a configuration; unlike a run that goes on, it has one training file
FREE = {*FREE_OPTIONS, "metric_for_best_model"} - {"train_file", "text_column"}
TRAINING = "training"
_NAME = re.compile(r"(?P<name>.+)-seed-(?P<seed>\d+)")


@dataclass(frozen=True)
class RunFigures:
    """A finished run.

    Attributes:
        folder: where it is.
        configuration: the folder's name without the seed.
        seed: of the run.
        record: what ``run.json`` holds.
        figures: by group (``training``, or a suite and ``sts`` or ``transfer``), then by task.
        pairs: (2, pairs) by STS task, cosines and gold scores; empty where the evaluation did not keep them.
        variants: what the data were, if they were not the published ones.
    """

    folder: Path
    configuration: str
    seed: int
    record: Mapping[str, Any]
    figures: dict[str, Row]
    pairs: dict[str, NDArray[np.float64]] = field(default_factory=dict)
    variants: tuple[str, ...] = ()

    @property
    def settings(self) -> dict[str, Any]:
        """The options of the training program that make the configuration."""
        return {name: value for name, value in options_of(self.record).items() if name not in {*FREE, "seed"}}

    def parameter(self, name: str) -> float | None:
        """A parameter of the temperature that was trained with, such as ``tau_max``; None where it has none."""
        found = re.search(rf"\b{name}=([0-9.e+-]+)", str(self.record["temperature"]))
        return None if found is None else float(found.group(1))

    @property
    def constant(self) -> float | None:
        """The temperature of a run with InfoNCE and one constant, a baseline; None for others."""
        plain = self.record["objective"] == "InfoNCELoss"
        return self.parameter("tau") if plain and self.record["temperature"].startswith("Constant") else None

    @property
    def paper_row(self) -> PaperRow | None:
        """The row of the paper's table with this objective and temperature."""
        if not self.record["settings"].get("detach_temperature"):
            return None
        return _paper_rows().get((self.record["objective"], self.record["temperature"]))


def options_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a run of text or images; what is younger than its record stands at what the run did without it."""
    loss, engine = LossSettings(), EngineSettings()
    texts = RunSettings(
        TextSettings(mask_duplicates=False), EvaluationSettings(), loss, engine
    ).options()  # it is on now and was not then
    return {**(texts if record["program"] == PROGRAMS[0] else {**vars(loss), **vars(engine)}), **record["settings"]}


def read_runs(folders: Iterable[Path]) -> tuple[list[RunFigures], list[str]]:
    """The finished runs in these folders, each a run or a folder of runs, and the names of those that are not finished.

    Raises:
        UserError: no run there, or two with the same configuration and seed, or a configuration with two settings.
    """
    runs, unfinished = [], []
    for place in run_folders(folders):
        record = read_json(place / RECORD)
        if record.get("program") != "dystress_text/train.py":
            raise UserError(f"{place / RECORD} is no record of a text run")
        if "trained" in record:
            runs.append(_read_run(place, record))
        else:
            unfinished.append(place.name)
    _check(runs)
    return runs, unfinished


def run_folders(folders: Iterable[Path]) -> list[Path]:
    """The runs' folders among these, each a run or a folder of runs, finished or not, none twice.

    Raises:
        UserError: one of them is none and holds none.
    """
    places: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"no such folder: {str(folder)!r}")
        inner = sorted(file.parent for file in folder.glob(f"*/{RECORD}"))
        found = [folder] if (folder / RECORD).is_file() else inner
        if not found:
            raise UserError(f"no run in {str(folder)!r}: neither it nor a folder in it has a {RECORD}")
        places += [place for place in found if place not in places]
    return places


def _read_run(folder: Path, record: dict[str, Any]) -> RunFigures:
    name = _NAME.fullmatch(folder.name)
    figures: dict[str, Row] = {TRAINING: {str(key): value for key, value in record["trained"].items()}}
    variants = [f"{option}: {variant}" for option, variant in record.get("data_variants", {}).items() if variant]
    for file in sorted(folder.glob("senteval-*-test.json")):
        result = read_json(file)
        for task, values in result["tasks"].items():
            kind = "sts" if "spearman" in values or task in TASKS["sts"] else "transfer"
            figure = values.get("spearman", values.get("accuracy", values.get("figure")))
            figures.setdefault(f"{result['suite']}/{kind}", {})[task] = figure
        if result.get("data_variant"):
            variants.append(f"evaluation: {result['data_variant']}")
    pairs: dict[str, NDArray[np.float64]] = {}
    if (folder / PAIRS).is_file():
        try:
            with np.load(folder / PAIRS, allow_pickle=False) as stored:
                pairs = {task: stored[task] for task in stored.files}
        except (OSError, ValueError, EOFError) as error:
            raise UserError(f"{folder / PAIRS} cannot be read: {error}") from error
    configuration = name["name"] if name else folder.name
    return RunFigures(folder, configuration, int(record["settings"]["seed"]), record, figures, pairs, tuple(variants))


def read_json(file: Path) -> dict[str, Any]:
    """A record.

    Raises:
        UserError: it cannot be read, or is none.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{file} is no record")
    return content


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
                f"{first[run.configuration].folder} and {run.folder} bear one name and differ in {', '.join(changed)}"
            )


def differing(runs: Sequence[RunFigures], but: Sequence[str] = ()) -> list[str]:
    """The settings in which runs differ, apart from seed, folders and those named."""
    values = [run.settings for run in runs]
    return [name for name in values[0] if name not in but and any(v.get(name) != values[0][name] for v in values)]


def differing_otherwise(runs: Sequence[RunFigures]) -> list[str]:
    """The settings apart from objective and temperature in which runs differ."""
    return differing(runs, ("objective", "temperature", "sigma", *TEMPERATURE_OPTIONS))


@dataclass(frozen=True)
class Group:
    """Figures that stand in one table.

    Attributes:
        key: of :attr:`RunFigures.figures`.
        title: of the table.
        columns: in order; the last may be the average.
        headline: the column that comparisons are about.
    """

    key: str
    title: str
    columns: tuple[str, ...]
    headline: str

    def row(self, run: RunFigures) -> Row:
        """The run's figures, None where there is none."""
        row = {column: run.figures.get(self.key, {}).get(column) for column in self.columns}
        return self._averaged(row)

    def paper(self, run: RunFigures) -> Row | None:
        """The paper's figures for the run's objective and temperature, averaged over the same tasks."""
        suite, _, kind = self.key.partition("/")
        if suite != "senteval" or run.paper_row is None:
            return None
        figures = run.paper_row.figures(kind)
        return self._averaged({column: figures.get(column) for column in self.columns})

    def _averaged(self, row: Row) -> Row:
        if self.headline.startswith("avg"):
            row[self.headline] = average({column: row[column] for column in self.columns if column != self.headline})
        return row


def groups_of(runs: Sequence[RunFigures]) -> list[Group]:
    """The tables that these runs have figures for."""
    found = []
    for key in dict.fromkeys(key for run in runs for key in run.figures):
        names = list(dict.fromkeys(name for run in runs for name in run.figures.get(key, {})))
        suite, _, kind = key.partition("/")
        if not kind:
            if names:
                found.append(Group(key, "Development set, by the model that was kept", tuple(names), names[0]))
            continue
        names.sort(key=lambda name: TASKS[kind].index(name) if name in TASKS[kind] else len(TASKS[kind]))
        whole = suite != "senteval" or tuple(names) == TASKS[kind]
        mean = "avg" if whole else f"avg of {len(names)}"
        title = GROUPS[kind] + ("" if suite == "senteval" else f", {suite} suite")
        found.append(Group(key, title, (*names, mean), mean))
    return found


@cache
def _paper_rows() -> dict[tuple[str, str], PaperRow]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the logit of some rows falls
        built = [(build_objective(LossSettings(**row.loss), TEXT), row) for row in ROWS]
    return {(type(objective).__name__, repr(objective.temperature)): row for objective, row in built}
