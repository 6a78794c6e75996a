"""Read finished text runs and evaluated models with their figures.

They come from folders, from result files, or from a file of runs: a line of JSON for each run, as
``dystress report sweep/ --format jsonl`` prints it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dystress_text.analysis.runs import FinishedRun, read_finished
from dystress_text.config.paper import ROWS, PaperRow
from dystress_text.errors import UserError
from dystress_text.evaluation.catalogue import (
    MINI_TRANSFER_TASKS,
    STS_SETS,
    TRANSFER_TASKS,
    Row,
)
from dystress_text.evaluation.lexical import LEXICAL
from dystress_text.evaluation.readers import slug_of
from dystress_text.evaluation.results import (
    Result,
    newest,
    read_lines,
    result_of,
    results_in,
)
from dystress_text.training.run_folder import RECORD, TEXT_PROGRAM
from dystress_text.training.run_record import FINISHED, LEXICAL_LABEL, RunRecord

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
    """A model without a run, such as the untrained one, with its figures.

    Attributes:
        name: of the model, with the pooler that the evaluation was given.
        figures: by group (``training``, ``retrieval``, or suite and kind, such as
            ``senteval/sts``), then by task.
        variants: of the published data.
        measured: the data, mode and precision of each figure, by group and task.
    """

    name: str
    figures: Mapping[str, Row]
    variants: Sequence[str] = ()
    measured: Measured = field(default_factory=dict)

    def line(self) -> str:
        """Return the model as a line of a file of runs."""
        return json.dumps(vars(self))


@dataclass(frozen=True)
class TextRun(FinishedRun):
    """A finished text run with its figures, as in :class:`Evaluated`."""

    figures: Mapping[str, Row]
    variants: Sequence[str] = ()
    measured: Measured = field(default_factory=dict)

    @property
    def paper_row(self) -> PaperRow | None:
        """The row of the paper's table that the run repeats; None for other settings or data."""
        paper = self.record.paper
        if paper.differs or self.variants:
            return None
        return next((row for row in ROWS if row.title in paper.rows), None)

    def chose(self, column: str) -> bool:
        """Return whether the set of a column may have selected the checkpoint."""
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
        settings = self.record.settings
        more = ("seed", "metric_for_best_model", "preset")
        kept["settings"] = {**self.settings, **{name: settings.get(name) for name in more}}
        kept["corpus"] = {name: self.record.corpus[name] for name in ("sentences", "sha256")}
        evaluated = Evaluated(self.folder.name, self.figures, self.variants, self.measured)
        return json.dumps({**kept, **vars(evaluated)})


def read_text_runs(places: Sequence[Path]) -> tuple[list[TextRun], list[str], list[Evaluated]]:
    """Read finished text runs, the names of unfinished ones, and models without a run.

    Args:
        places: runs, evaluated models, folders of both, or files of runs or results (``.jsonl``).
            Models inside the folder of a run belong to it.

    Returns:
        The runs, the names of unfinished ones, and the models. One of these is the lexical
        baseline if the results of the runs have its figures.

    Raises:
        UserError: a place holds no run and no model, or a file is damaged.
    """
    lines: list[TextRun | Evaluated] = []
    folders: list[Path] = []
    for place in places:
        if place.suffix == ".jsonl":
            lines += _of_file(place)
            continue
        models = _models_in(place)
        lines += models
        if not models or any(place.glob(f"*/{RECORD}")):
            folders.append(place)
    finished, unfinished = read_finished(folders, (TEXT_PROGRAM,))
    runs = [_with_figures(run) for run in finished]
    runs += [line for line in lines if isinstance(line, TextRun)]
    evaluated = [line for line in lines if isinstance(line, Evaluated)]
    if all(each.name != LEXICAL_LABEL for each in evaluated):
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
    """Return the evaluated models in a folder or the folders in it, without runs."""
    if not place.is_dir() or (place / RECORD).is_file():
        return []
    inner = [folder for folder in sorted(place.iterdir()) if folder.is_dir()]
    folders = [folder for folder in (place, *inner) if not (folder / RECORD).is_file()]
    return [model for folder in folders for model in _models(results_in(folder))]


def _models(results: Iterable[Result]) -> list[Evaluated]:
    """Return each model with each of its poolers."""
    of_model: dict[str, list[Result]] = {}
    for result in results:
        name = LEXICAL_LABEL
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
    """Return the figures of the weights that were evaluated last.

    The test mode takes precedence over the fast one.
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
