"""Read the figures of finished text runs and of evaluated models, from folders or result files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path

from dystress_text.analysis.finished_run import FinishedRun, as_folder, differing
from dystress_text.cli.options import check_names
from dystress_text.errors import UserError
from dystress_text.evaluation.catalogue import (
    MINI_TRANSFER_TASKS,
    STS_SETS,
    TRANSFER_TASKS,
    FiguresByTask,
)
from dystress_text.evaluation.lexical import LEXICAL
from dystress_text.evaluation.results import (
    Content,
    Result,
    lexical_words,
    newest,
    read_results,
    results_in,
    task_names,
)
from dystress_text.evaluation.text_sets import slug_of
from dystress_text.io.paths import distinct_names
from dystress_text.training.run_folder import RECORD, TEXT_PROGRAM, read_record, run_folders
from dystress_text.training.run_record import FINISHED, lexical_label

TRAINING = "training"
Names = Mapping[Content, str]  # of tasks
# the names of tasks in the metrics of training; tasks with a test split have another set there
_TITLES = {task.name: task.title for task in STS_SETS.values()} | {
    task.name: f"{task.name} dev"
    for task in TRANSFER_TASKS + MINI_TRANSFER_TASKS
    if "all" in task.parts
}


@dataclass
class Evaluated:
    """A model with its figures.

    Attributes:
        name: the model's name, with the pooler if the evaluation set one.
        figures: figures by group (``training``, ``retrieval``, or suite and kind, such as
            ``senteval/sts``), then by column.
        ways: how each figure was measured (data and mode), by group and column; only equal ways are
            compared.
        variants: variants of published data that were used instead of it.
        results: the results that intervals are computed from, by group and main column.
        is_reference: whether this is the lexical baseline or the dense model of a hybrid.
    """

    name: str
    figures: dict[str, FiguresByTask] = field(default_factory=dict)
    ways: dict[str, dict[str, str]] = field(default_factory=dict)
    variants: list[str] = field(default_factory=list)
    results: dict[str, dict[str, Result]] = field(default_factory=dict)
    is_reference: bool = False


@dataclass(frozen=True)
class ComparedRun(FinishedRun):
    """A finished text run with its figures."""

    evaluated: Evaluated

    def selected_on(self, group: str, column: str) -> bool:
        """Return whether the data of a group's main column selected the run's checkpoint."""
        name = self.record.settings.get("metric_for_best_model")
        result = self.evaluated.results.get(group, {}).get(column)
        if name is None or result is None:
            return False
        title = result.task
        if "/" in group:  # not of the user's own data, which may be named like a task
            title = _TITLES.get(title, title)
        return self.record.metric(name).is_on(result.kind, slug_of(title))


@dataclass(frozen=True)
class ComparedModels:
    """The runs and models that a report compares.

    Attributes:
        configurations: the finished runs of each configuration, in order.
        models: evaluated models that are not runs.
        unfinished: the names of unfinished runs.
        baseline: the configuration or model that the others are compared with.
    """

    configurations: Mapping[str, Sequence[ComparedRun]]
    models: Sequence[Evaluated]
    unfinished: Sequence[str]
    baseline: str

    @property
    def runs(self) -> list[ComparedRun]:
        return [run for runs in self.configurations.values() for run in runs]

    def by_seed(self, name: str) -> dict[int | None, Evaluated]:
        """Return the runs with this name by seed, or the model with this name under None."""
        if name in self.configurations:
            return {run.seed: run.evaluated for run in self.configurations[name]}
        return {None: next(model for model in self.models if model.name == name)}

    @property
    def evaluated(self) -> list[Evaluated]:
        """The runs and models that have a row in a table."""
        return [*(run.evaluated for run in self.runs), *self.models]


def compared_models_of(run: FinishedRun) -> ComparedModels:
    """Return a comparison that contains one finished run, with the results in its folder."""
    results = results_in(run.folder)
    alone = _with_figures(run, results, task_names(results))
    return ComparedModels({run.configuration: [alone]}, [], [], run.configuration)


def read_compared_models(
    places: Sequence[Path], baseline: str | None = None, order: Iterable[str] = ()
) -> ComparedModels:
    """Read finished text runs, and models without a run.

    A model is identified by its weights and its path, the user's data by their content.
    The lexical baseline and the dense model of a hybrid are listed as models if results contain
    their figures.

    Args:
        places: runs, evaluated models, folders of both, or result files (``.jsonl``). Models inside
            the folder of a run belong to it.
        baseline: a configuration by its name, folder or loss, or a model; None for the first.
        order: the order of configurations, such as that of the presets; others follow by name.

    Raises:
        UserError: a place contains neither a run nor a model, a file is damaged, runs of one
            configuration contradict each other, or the baseline has no run.
    """
    of_models: list[Result] = []
    folders = []
    for place in places:
        found = _of_models(place)
        of_models += found
        if not found or any(place.glob(f"*/{RECORD}")):
            folders.append(place)
    finished, unfinished = _runs_in(folders)
    of_runs = [results_in(run.folder) for run in finished]
    results = [*of_models, *chain(*of_runs)]
    names = task_names(results)
    beside = [each.dense_model for each in results]
    if all(result.model != LEXICAL for result in of_models):
        beside += [each.baseline for each in results]
    of_models += [each for each in beside if each is not None]
    by_name: dict[str, list[ComparedRun]] = {}
    for run, of_run in zip(finished, of_runs, strict=True):
        others = by_name.setdefault(run.configuration, [])
        for other in others:
            _check_alike(other, run)
        others.append(_with_figures(run, of_run, names))
    first = [name for name in order if name in by_name]
    ordered = dict.fromkeys([*first, *sorted(by_name)])
    losses = {name: by_name[name][0].record.loss for name in ordered}
    models = _models(of_models, names)
    known = losses | {model.name: model.name for model in models}
    return ComparedModels(
        {name: by_name[name] for name in ordered},
        models,
        unfinished,
        baseline_named(baseline, known),
    )


def evaluated_models(results: Mapping[str, Sequence[Result]]) -> ComparedModels:
    """Return the models that were evaluated together, under the names that the user gave them."""
    models = [_evaluated(name, of_model, {}) for name, of_model in results.items() if of_model]
    trained = [model.name for model in models if not model.is_reference]
    return ComparedModels({}, models, (), next(iter(trained), ""))


def baseline_named(wanted: str | None, losses: Mapping[str, str]) -> str:
    """Return the configuration that ``--baseline`` names; by default the first one, "" for none.

    Args:
        wanted: a name as the tables show it, a folder or a loss.
        losses: the loss of each configuration.

    Raises:
        ParameterError: no configuration has that name or loss.
    """
    if wanted is None:
        return next(iter(losses), "")
    for name, loss in losses.items():
        if as_folder(wanted) in (as_folder(name), as_folder(loss)):
            return name
    check_names("baseline", [wanted], losses)
    return wanted


def _runs_in(folders: Iterable[Path]) -> tuple[list[FinishedRun], list[str]]:
    """Return finished runs and the names of unfinished ones."""
    runs = []
    unfinished = []
    for folder in run_folders(folders):
        record = read_record(folder)
        if record.program != TEXT_PROGRAM:
            raise UserError(f"{folder / RECORD} is not the record of a run of {TEXT_PROGRAM}")
        if record.state == FINISHED:
            runs.append(FinishedRun(folder.absolute(), record))
        else:
            unfinished.append(folder.name)
    if unfinished and not runs:
        raise UserError(f"no finished run: {', '.join(unfinished)}")
    return runs, unfinished


def _check_alike(first: FinishedRun, second: FinishedRun) -> None:
    """Refuse two runs of one configuration with the same seed or different settings."""
    both = f"{first.folder} and {second.folder}"
    if first.seed == second.seed:
        raise UserError(f"{both} are the same configuration with the same seed")
    changed = differing([first.settings, second.settings])
    if changed:
        raise UserError(f"{both} have the same name but differ in {', '.join(changed)}")


def _of_models(place: Path) -> list[Result]:
    """Return the results in a file, or in a folder and its subfolders that hold no run."""
    if place.suffix == ".jsonl":
        results = read_results(place)
        if not results:
            raise UserError(f"{place} holds no results")
        return results
    if not place.is_dir() or (place / RECORD).is_file():
        return []
    inner = [folder for folder in sorted(place.iterdir()) if folder.is_dir()]
    folders = [folder for folder in (place, *inner) if not (folder / RECORD).is_file()]
    return [result for folder in folders for result in results_in(folder)]


def _models(results: Iterable[Result], names: Names) -> list[Evaluated]:
    """Return an entry for each model and pooler."""
    of_model: dict[tuple[str, str | None], list[Result]] = {}
    for result in results:
        path = str(Path(result.model).absolute())
        pooler = result.settings.get("pooler_type")
        if pooler:
            path += f", {pooler}"
        of_model.setdefault((path, result.weights), []).append(result)
    models = []
    for content, label in distinct_names({each: each for each in of_model}).items():
        models.append(_evaluated(label, of_model[content], names))
    return models


def _with_figures(run: FinishedRun, results: Sequence[Result], names: Names) -> ComparedRun:
    results = [each for each in results if each.has({"pooler_type": None})]
    evaluated = _evaluated(run.folder.name, results, names)
    evaluated.figures = {TRAINING: dict(run.record.trained), **evaluated.figures}
    for option, variant in run.record.data_variants.items():
        if variant:
            evaluated.variants.append(f"{option}: {variant}")
    return ComparedRun(run.folder, run.record, evaluated)


def _evaluated(label: str, results: Sequence[Result], names: Names) -> Evaluated:
    """Return the newest figures of a model, for the weights that were evaluated last."""
    if results and results[0].model == LEXICAL:
        label = lexical_label(lexical_words(results))
    model = Evaluated(label, is_reference=bool(results) and results[0].is_reference)
    current = [each for each in results if each.weights == results[-1].weights]
    for result in newest(current, lambda result: result.content):
        way = f"data {(result.data or 'unknown')[:12]}"
        if result.kind == "transfer":
            way += f", mode {result.settings.get('mode')}"
        columns = replace(result, task=names.get(result.content, result.task)).columns
        model.figures.setdefault(result.group, {}).update(columns)
        model.results.setdefault(result.group, {})[next(iter(columns))] = result
        model.ways.setdefault(result.group, {}).update(dict.fromkeys(columns, way))
        if result.variant:
            model.variants.append(f"evaluation: {result.variant}")
    return model
