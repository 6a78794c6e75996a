"""Finished runs of text with what was measured on the test sets: from their folders, or from a file
of runs.

A model that is no run, such as the untrained one, has the results of its evaluations alone. A file
of runs has a line of JSON for each, with what tables need of it: ``dystress report sweep/ --format
jsonl``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dystress_text.analysis.runs import FinishedRun, read_finished
from dystress_text.errors import UserError
from dystress_text.evaluation.catalogue import (
    MINI_TRANSFER_TASKS,
    STS_SETS,
    TRANSFER_TASKS,
    Row,
)
from dystress_text.evaluation.lexical import LABEL, LEXICAL
from dystress_text.evaluation.readers import slug_of
from dystress_text.evaluation.results import (
    Result,
    newest,
    read_lines,
    result_of,
    results_in,
)
from dystress_text.training.run_folder import RECORD, TEXT_PROGRAM
from dystress_text.training.run_record import FINISHED, RunRecord

TRAINING = "training"
Measured = dict[str, dict[str, dict[str, Any]]]
# of columns: what training calls the same data in its metrics
_TITLES = {task.name: task.title for task in STS_SETS.values()} | {
    task.name: f"{task.name} dev"
    for task in TRANSFER_TASKS + MINI_TRANSFER_TASKS
    if task.scheme == "folds"
}
_KEPT = ("loss", "steps", "train_seconds", "device", "paper")


@dataclass(frozen=True)
class Evaluated:
    """A model that is no run of the training program, with its figures."""

    name: str  # of the model, with its pooler where the evaluation was told one
    # by group (``training``, ``retrieval``, or suite and kind, as in ``senteval/sts``), then task
    figures: Mapping[str, Row]
    variants: Sequence[str] = ()  # what the data were, if they were not the published ones
    # how, by group and task: on which data, in which mode and so on
    measured: Measured = field(default_factory=dict)

    def line(self) -> str:
        """Return the model as a line of a file of runs."""
        return json.dumps(vars(self))


@dataclass(frozen=True)
class TextRun(FinishedRun):
    """A finished run of text with its figures, as those of :class:`Evaluated`."""

    figures: Mapping[str, Row]
    variants: Sequence[str] = ()
    measured: Measured = field(default_factory=dict)

    def chose(self, column: str) -> bool:
        """Whether the set of a column may have chosen the step that was kept."""
        metrics = list(self.figures[TRAINING])
        chosen = self.record.settings.get("metric_for_best_model")
        choosing = [chosen] if chosen else metrics[:1]
        if choosing and choosing[0].startswith("avg_"):
            choosing = metrics
        name = slug_of(_TITLES.get(column, column))
        sets = {metric.rpartition("_")[0] for metric in choosing}
        return any(re.fullmatch(f"{each}(_(ndcg|mrr|recall)_.*)?", name) for each in sets)

    def line(self) -> str:
        """Return the run as a line of a file of runs."""
        record = self.record.to_json()
        kept = {name: record[name] for name in _KEPT if name in record}
        chosen = self.record.settings.get("metric_for_best_model")
        preset = self.record.settings.get("preset")
        more = {"seed": self.seed, "metric_for_best_model": chosen, "preset": preset}
        kept["settings"] = {**self.settings, **more}
        kept["corpus"] = {name: self.record.corpus[name] for name in ("sentences", "sha256")}
        evaluated = Evaluated(self.folder.name, self.figures, self.variants, self.measured)
        return json.dumps({**kept, **vars(evaluated)})


def read_text_runs(places: Sequence[Path]) -> tuple[list[TextRun], list[str], list[Evaluated]]:
    """Read finished runs of text, the names of unfinished ones, and models that are no runs.

    A place is a run, an evaluated model, a folder of both, or a file of runs or results
    (``.jsonl``). Models inside a run's folder are parts of the run. One of
    the models is the lexical baseline, where the runs' results have its figures.
    """
    lines: list[TextRun | Evaluated] = []
    folders: list[Path] = []
    for place in places:
        if place.suffix == ".jsonl":
            lines += _of_file(place)
            continue
        if place.suffix == ".json":
            raise UserError(
                f"{place}: result files of 0.2 are not read; run dystress senteval again"
            )
        models = _models_in(place)
        lines += models
        if not models or any(place.glob(f"*/{RECORD}")):
            folders.append(place)
    finished, unfinished = read_finished(folders, (TEXT_PROGRAM,))
    runs = [_with_figures(run) for run in finished]
    runs += [line for line in lines if isinstance(line, TextRun)]
    evaluated = [line for line in lines if isinstance(line, Evaluated)]
    if all(each.name != LABEL for each in evaluated):
        results = [each.baseline for run in runs for each in results_in(run.folder)]
        evaluated += _models(each for each in results if each is not None)
    return runs, unfinished, evaluated


def _of_file(file: Path) -> list[TextRun | Evaluated]:
    found: list[TextRun | Evaluated] = []
    results = []
    for number, line in read_lines(file):
        where = f"{file}: line {number}"
        if "group" in line:
            results.append(result_of(line, where))
            continue
        try:
            figures = line["figures"], line["variants"], line.get("measured", {})
            if "settings" in line:
                record = RunRecord.from_json({**line, "state": FINISHED})
                found.append(TextRun(Path(line["name"]), record, *figures))
            else:
                found.append(Evaluated(line["name"], *figures))
        except (AttributeError, KeyError, TypeError) as error:
            raise UserError(f"{where} is neither a run nor a result: {error!r}") from error
    return [*found, *_models(results)]


def _models_in(place: Path) -> list[Evaluated]:
    """Return the evaluated models in a folder or the folders in it, apart from runs."""
    if not place.is_dir() or (place / RECORD).is_file():
        return []
    inner = [folder for folder in sorted(place.iterdir()) if folder.is_dir()]
    folders = [folder for folder in (place, *inner) if not (folder / RECORD).is_file()]
    return [model for folder in folders for model in _models(results_in(folder))]


def _models(results: Iterable[Result]) -> list[Evaluated]:
    """Return each model with each of its poolers."""
    of_model: dict[str, list[Result]] = {}
    for result in results:
        name = LABEL
        if result.model != LEXICAL:
            name = Path(result.model).absolute().name
        pooler = result.settings.get("pooler_type")
        of_model.setdefault(f"{name}, {pooler}" if pooler else name, []).append(result)
    return [_evaluated(name, several) for name, several in of_model.items()]


def _with_figures(run: FinishedRun) -> TextRun:
    record = run.record
    results = [each for each in results_in(run.folder) if each.has({"pooler_type": None})]
    evaluated = _evaluated(run.folder.name, results)
    trained_on = [f"{option}: {name}" for option, name in record.data_variants.items() if name]
    sums = {slug_of(name): of_set["sha256"] for name, of_set in record.collections.items()}
    data = {**record.eval_sha256, **sums}
    how = {metric: {"data": data.get(metric.rpartition("_")[0])} for metric in record.trained}
    return TextRun(
        run.folder,
        record,
        figures={TRAINING: dict(record.trained), **evaluated.figures},
        variants=[*trained_on, *evaluated.variants],
        measured={**evaluated.measured, TRAINING: how},
    )


def _evaluated(name: str, results: Sequence[Result]) -> Evaluated:
    """Return the figures of the weights that were evaluated last; the test mode precedes the fast
    one.
    """
    current = [each for each in results if each.weights == results[-1].weights]
    current = [each for each in current if each.kind != "geometry"]
    current.sort(key=lambda result: result.settings.get("mode") != "fast")
    figures: dict[str, Row] = {}
    measured: Measured = {}
    variants: dict[str, None] = {}
    for result in newest(current, lambda result: (result.group, result.task)):
        how = {"data": result.data and result.data[:12], "dtype": result.settings.get("dtype")}
        if result.kind == "transfer":
            how["mode"] = result.settings.get("mode")
        figures.setdefault(result.group, {}).update(result.columns)
        measured.setdefault(result.group, {}).update(dict.fromkeys(result.columns, how))
        if result.variant:
            variants[f"evaluation: {result.variant}"] = None
    return Evaluated(name, figures, list(variants), measured)
