"""Read finished text runs and evaluated models with their figures, from folders or result files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dystress_text.analysis.runs import FinishedRun, as_folder, by_configuration, read_finished
from dystress_text.cli.options import check_names
from dystress_text.config.presets import PRESETS
from dystress_text.evaluation.catalogue import (
    MINI_TRANSFER_TASKS,
    STS_SETS,
    TRANSFER_TASKS,
    Row,
)
from dystress_text.evaluation.lexical import LEXICAL
from dystress_text.evaluation.readers import slug_of
from dystress_text.evaluation.results import Result, newest, read_results, results_in
from dystress_text.training.run_folder import RECORD, TEXT_PROGRAM
from dystress_text.training.run_record import LEXICAL_LABEL

TRAINING = "training"
# the names of tasks in the metrics of training; tasks with a test split have another set there
_TITLES = {task.name: task.title for task in STS_SETS.values()} | {
    task.name: f"{task.name} dev"
    for task in TRANSFER_TASKS + MINI_TRANSFER_TASKS
    if task.scheme == "folds"
}


@dataclass
class Evaluated:
    """The figures of a model.

    Attributes:
        name: of the model, with the pooler that the evaluation was given.
        figures: by group (``training``, ``retrieval``, or suite and kind, such as
            ``senteval/sts``), then by column.
        ways: how each figure was measured (data and mode), by group and column.
        sets: the name of each column's data in the metrics of training.
        variants: of the published data.
    """

    name: str
    figures: dict[str, Row] = field(default_factory=dict)
    ways: dict[str, dict[str, str]] = field(default_factory=dict)
    sets: dict[str, str] = field(default_factory=dict)
    variants: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class TextRun(FinishedRun):
    """A finished text run with its figures."""

    evaluated: Evaluated

    def selected_on(self, column: str) -> bool:
        """Return whether the data of a column selected the checkpoint."""
        metric = self.record.settings.get("metric_for_best_model") or ""
        metrics = list(self.record.trained) if metric.startswith("avg_") else [metric]
        selected = {each.rpartition("_")[0] for each in metrics}
        return self.evaluated.sets.get(column) in selected


@dataclass(frozen=True)
class TextRuns:
    """What a report compares.

    Attributes:
        configurations: finished runs; the presets come first, in the paper's order.
        models: evaluated ones without a run.
        unfinished: names of runs.
        baseline: the configuration that the others are compared with.
    """

    configurations: Mapping[str, Sequence[TextRun]]
    models: Sequence[Evaluated]
    unfinished: Sequence[str]
    baseline: str

    @property
    def runs(self) -> list[TextRun]:
        return [run for runs in self.configurations.values() for run in runs]

    @property
    def evaluated(self) -> list[Evaluated]:
        """All that have a row in a table."""
        return [*(run.evaluated for run in self.runs), *self.models]


def read_text_runs(places: Sequence[Path], baseline: str | None = None) -> TextRuns:
    """Read finished text runs, and models without a run.

    The lexical baseline is one of the models if the results of the runs have its figures.

    Args:
        places: runs, evaluated models, folders of both, or result files (``.jsonl``). Models inside
            the folder of a run belong to it.
        baseline: a configuration by its name, folder or loss; None for the first one.

    Raises:
        UserError: a place holds no run and no model, a file is damaged, runs of one configuration
            contradict each other, or the baseline has no run.
    """
    models: list[Evaluated] = []
    folders = []
    for place in places:
        found = _models_in(place)
        models += found
        if not found or any(place.glob(f"*/{RECORD}")):
            folders.append(place)
    finished, unfinished = read_finished(folders, (TEXT_PROGRAM,))
    if all(model.name != LEXICAL_LABEL for model in models):
        results = [each.baseline for run in finished for each in results_in(run.folder)]
        models += _models(each for each in results if each is not None)
    by_name = by_configuration(map(_with_figures, finished))
    published = [name for name in PRESETS if name in by_name]
    names = [*published, *sorted(by_name.keys() - PRESETS.keys())]
    losses = {name: by_name[name][0].record.loss for name in names}
    return TextRuns(
        {name: by_name[name] for name in names},
        models,
        unfinished,
        baseline_named(baseline, losses),
    )


def baseline_named(wanted: str | None, losses: Mapping[str, str]) -> str:
    """Return the configuration that ``--baseline`` names; by default the first one, "" for none.

    Args:
        wanted: a name as the tables show it, a folder or a loss.
        losses: the loss of each configuration.

    Raises:
        ParameterError: nothing has that name.
    """
    if wanted is None:
        return next(iter(losses), "")
    for name, loss in losses.items():
        if as_folder(wanted) in (as_folder(name), as_folder(loss)):
            return name
    check_names("baseline", [wanted], losses)
    return wanted


def _models_in(place: Path) -> list[Evaluated]:
    """Return the evaluated models in a result file, a folder or the folders in it, without runs."""
    if place.suffix == ".jsonl":
        return _models(read_results(place))
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
    results = [each for each in results_in(run.folder) if each.has({"pooler_type": None})]
    evaluated = _evaluated(run.folder.name, results)
    evaluated.figures = {TRAINING: dict(run.record.trained), **evaluated.figures}
    for option, variant in run.record.data_variants.items():
        if variant:
            evaluated.variants.append(f"{option}: {variant}")
    return TextRun(run.folder, run.record, evaluated)


def _evaluated(name: str, results: Sequence[Result]) -> Evaluated:
    """Return the newest figures of the weights that were evaluated last."""
    model = Evaluated(name)
    current = [each for each in results if each.weights == results[-1].weights]
    for result in newest(current, lambda result: (result.group, result.task)):
        way = f"data {(result.data or 'unknown')[:12]}"
        if result.kind == "transfer":
            way += f", mode {result.settings.get('mode')}"
        model.figures.setdefault(result.group, {}).update(result.columns)
        model.ways.setdefault(result.group, {}).update(dict.fromkeys(result.columns, way))
        title = _TITLES.get(result.task, result.task)
        model.sets.update(dict.fromkeys(result.columns, slug_of(title)))
        if result.variant:
            model.variants.append(f"evaluation: {result.variant}")
    return model
