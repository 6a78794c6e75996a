"""What a report compares: finished text runs and evaluated models, their figures, and differences.

The figures are read from folders of runs and from files of results.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path

from dystress_text.analysis.finished_run import (
    FinishedRun,
    as_folder,
    check_alike,
    read_finished_runs,
)
from dystress_text.cli.options import check_names
from dystress_text.errors import UserError
from dystress_text.evaluation.catalogue import (
    GROUPS,
    MINI_TRANSFER_TASKS,
    STS_SETS,
    SUITES,
    TRANSFER_TASKS,
    FiguresByTask,
    average,
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
from dystress_text.evaluation.retrieval import WITH_BM25
from dystress_text.evaluation.statistics import Estimate, average_of, over_seeds
from dystress_text.evaluation.text_sets import slug_of
from dystress_text.io.paths import distinct_names
from dystress_text.training.run_folder import RECORD
from dystress_text.training.run_record import lexical_label

TRAINING = "training"
Names = Mapping[Content, str]  # of tasks
Seed = int | None  # None: a model without a run
# the names of tasks in the metrics of training; tasks with a test split have another set there
_TRAINING_NAMES = {task.name: task.title for task in STS_SETS.values()} | {
    task.name: f"{task.name} dev"
    for task in TRANSFER_TASKS + MINI_TRANSFER_TASKS
    if "all" in task.parts
}
_TABLE_TITLES = {
    TRAINING: "Development set, by the model that was kept",
    "retrieval": "Search x 100",
    "pairs": "Own pairs, Spearman x 100",
}


@dataclass
class EvaluatedModel:
    """A model with its figures.

    Attributes:
        name: the model's name, with the pooler if the evaluation set one.
        figures: figures by group (``training``, ``retrieval``, or suite and kind, such as
            ``senteval/sts``), then by column.
        results: the results that the figures are from, by group and main column.
        variants: variants of published data that were used instead of it.
        is_reference: whether this is the lexical baseline or the dense model of a hybrid.
    """

    name: str
    figures: dict[str, FiguresByTask] = field(default_factory=dict)
    results: dict[str, dict[str, Result]] = field(default_factory=dict)
    variants: list[str] = field(default_factory=list)
    is_reference: bool = False

    def results_of(self, group: str, columns: Iterable[str]) -> list[Result]:
        """Return the results behind some columns; columns without a result are left out."""
        results = self.results.get(group, {})
        return [results[column] for column in columns if column in results]


@dataclass(frozen=True)
class ComparedRun(FinishedRun):
    """A finished text run with its figures."""

    evaluated: EvaluatedModel

    def selected_on(self, group: str, column: str) -> bool:
        """Return whether the data of a group's main column selected the run's checkpoint."""
        name = self.record.settings.get("metric_for_best_model")
        if name is None:
            return False
        metric = self.record.metric(name)
        results = self.evaluated.results_of(group, [column])
        return any(metric.is_on(each.kind, _training_name(each)) for each in results)


@dataclass(frozen=True)
class Column:
    """A column whose figures are compared: an average, or a main figure.

    Attributes:
        group: where the figures are stored, such as ``senteval/sts``.
        name: the heading of the column.
        title: the title of the table.
        tasks: the tasks that the column averages, or the task that it shows.
    """

    group: str
    name: str
    title: str
    tasks: Sequence[str]

    @property
    def full_name(self) -> str:
        """The heading and the title of the table."""
        return f"{self.name} ({self.title})"

    def results(self, models: Iterable[EvaluatedModel]) -> list[Result]:
        """Return the results from which the column is computed, for all models."""
        return [each for model in models for each in model.results_of(self.group, self.tasks)]

    def estimates(self, models: Mapping[Seed, EvaluatedModel]) -> dict[Seed, Estimate]:
        """Return the figures of models that have finite ones, with the resamples for intervals."""
        by_seed = {}
        for seed, model in models.items():
            estimates = [each.estimate for each in self.results([model])]
            finite = [each for each in estimates if each is not None]
            if len(finite) == len(self.tasks):
                by_seed[seed] = average_of(finite)
        return by_seed


@dataclass(frozen=True)
class Group:
    """The columns of a table.

    Attributes:
        key: where the figures are stored, such as ``senteval/sts``.
        title: the title of the table.
        tasks: the tasks, in the order of the columns.
        mean: the column with the average of the tasks; "" for none.
        compared: the columns to compare: the average, or the main figures; of search, one metric.
        fused: whether a column shows a model's ranking combined with that of BM25.
    """

    key: str
    title: str
    tasks: Sequence[str]
    mean: str = ""
    compared: Sequence[Column] = ()
    fused: bool = False

    def row(self, model: EvaluatedModel) -> FiguresByTask:
        """Return the figures of a model, column by column."""
        figures = model.figures.get(self.key, {})
        row: FiguresByTask = {task: figures.get(task) for task in self.tasks}
        if self.mean:
            row[self.mean] = average(row)
        return row


@dataclass(frozen=True)
class Comparison:
    """A configuration or model compared with another one in one column.

    Attributes:
        column: the column of a table.
        name: the configuration or model.
        baseline: the configuration or model that it is compared with.
        difference: the difference, paired by query or pair, and by seed.
        obstacle: why the two cannot be compared; "" if they can.
    """

    column: Column
    name: str
    baseline: str
    difference: Estimate
    obstacle: str = ""

    def summary(self) -> str:
        """Return the difference with its interval, or the obstacle."""
        names = f"{self.name} - {self.baseline}"
        if self.obstacle:
            return f"{names} not compared: {self.obstacle}"
        return f"{names}: {self.difference}"


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
    models: Sequence[EvaluatedModel]
    unfinished: Sequence[str]
    baseline: str

    @property
    def runs(self) -> list[ComparedRun]:
        return [run for runs in self.configurations.values() for run in runs]

    @property
    def evaluated(self) -> list[EvaluatedModel]:
        """The runs and models that have a row in a table."""
        return [*(run.evaluated for run in self.runs), *self.models]

    def by_seed(self, name: str) -> dict[Seed, EvaluatedModel]:
        """Return the runs of a configuration by seed, or the model with this name under None."""
        if name in self.configurations:
            return {run.seed: run.evaluated for run in self.configurations[name]}
        return {None: next(model for model in self.models if model.name == name)}

    @cached_property
    def groups(self) -> list[Group]:
        """The tables for which runs or models have figures."""
        columns: dict[str, dict[str, None]] = {}
        for model in self.evaluated:
            for key, row in model.figures.items():
                columns.setdefault(key, {}).update(dict.fromkeys(row))
        groups = []
        for key, names in columns.items():
            results = [model.results.get(key, {}) for model in self.evaluated]
            if names:
                groups.append(_group(key, list(names), results))
        return groups

    @property
    def columns(self) -> list[Column]:
        """The columns to compare: all but those of development sets, which selected the models."""
        return [column for group in self.groups for column in group.compared]

    def estimates(self, column: Column) -> dict[str, Estimate]:
        """Return the figures in a column, by configuration and model."""
        figures = {}
        for name in [*self.configurations, *(model.name for model in self.models)]:
            by_seed = column.estimates(self.by_seed(name))
            if by_seed:
                figures[name] = over_seeds([*by_seed.values()])
        return figures

    @cached_property
    def comparisons(self) -> list[Comparison]:
        """Comparisons of each configuration with the baseline and all models.

        Without runs, each model is compared with the baseline and the references. Pairs without a
        common seed or without figures are left out.
        """
        references = [model.name for model in self.models if model.is_reference]
        names = [model.name for model in self.models if not model.is_reference]
        if self.configurations:
            references = names + references
            names = list(self.configurations)
        subtracted = dict.fromkeys([self.baseline, *references])
        pairs = [(name, other) for other in subtracted for name in names if name != other]
        compared = []
        for column in self.columns:
            for name, other in pairs:
                compared += self.compare(column, name, other)
        return compared

    def compare(self, column: Column, name: str, other: str) -> list[Comparison]:
        """Compare two names in a column; [] without figures of a common seed."""
        ours, theirs = (column.estimates(self.by_seed(each)) for each in (name, other))
        if None not in ours and None not in theirs:  # paired by seed
            ours = {seed: each for seed, each in ours.items() if seed in theirs}
            theirs = {seed: theirs[seed] for seed in ours}
        if not ours or not theirs:
            return []
        difference = over_seeds([*ours.values()]) - over_seeds([*theirs.values()])
        obstacle = self._obstacle(column, (name, other))
        return [Comparison(column, name, other, difference, obstacle)]

    def _obstacle(self, column: Column, names: Sequence[str]) -> str:
        """Return why two of the names cannot be compared; "" if they can."""
        runs = [run for name in names for run in self.configurations.get(name, [])]
        selected = [
            task
            for task in column.tasks
            if any(run.selected_on(column.group, task) for run in runs)
        ]
        if selected:
            return f"{', '.join(selected)} selected the checkpoint"
        models = [model for name in names for model in self.by_seed(name).values()]
        return measured_differently(column.group, column.tasks, models)


def measured_differently(group: str, tasks: Sequence[str], models: Sequence[EvaluatedModel]) -> str:
    """Describe the tasks that were measured on other data or in another mode; "" if none was."""
    parts = []
    for task in tasks:
        ways = {_way(each) for model in models for each in model.results_of(group, [task])}
        if len(ways) > 1:
            parts.append(f"{task} ({' or '.join(sorted(ways))})")
    return f"measured differently: {'; '.join(parts)}" if parts else ""


def _way(result: Result) -> str:
    """Describe how a figure was measured; only figures that were measured alike are compared."""
    way = f"data {(result.data or 'unknown')[:12]}"
    if result.kind == "transfer":
        way += f", mode {result.settings.get('mode')}"
    return way


def _training_name(result: Result) -> str:
    """Return the name of a result's data set in the metrics of training."""
    name = result.task
    if "/" in result.group:  # not of the user's own data, which may be named like a task
        name = _TRAINING_NAMES.get(name, name)
    return slug_of(name)


def _group(key: str, tasks: list[str], results: Sequence[Mapping[str, Result]]) -> Group:
    """Return the table with a key.

    Args:
        key: the key.
        tasks: the columns for which there are figures.
        results: the results of each model, by main column.
    """
    suite, _, kind = key.partition("/")
    try:
        if not kind:
            title = _TABLE_TITLES[key]
            main = [Column(key, task, title, [task]) for task in dict.fromkeys(chain(*results))]
            fused = any(WITH_BM25 in each.figures for of in results for each in of.values())
            return Group(key, title, tasks, compared=main, fused=fused)
        published = [task.name for task in SUITES[suite][kind]]
        tasks.sort(key=published.index)
    except (KeyError, ValueError) as error:  # results of another version
        unknown = f"{key}, {', '.join(tasks)}"
        raise UserError(f"results of unknown sets: {unknown}; evaluate the model again") from error
    title = GROUPS[kind] if suite == "senteval" else f"{GROUPS[kind]}, {suite} suite"
    mean = "avg" if tasks == published else f"avg of {len(tasks)}"
    return Group(key, title, tasks, mean, [Column(key, mean, title, tasks)])


def compared_models_of(run: FinishedRun) -> ComparedModels:
    """Return a comparison that contains one finished run, with the results in its folder."""
    results = results_in(run.folder)
    alone = _with_results(run, results, task_names(results))
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
        in_place = _results_of_models(place)
        of_models += in_place
        if not in_place or any(place.glob(f"*/{RECORD}")):
            folders.append(place)
    finished, unfinished = read_finished_runs(folders)
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
            check_alike(other, run)
        others.append(_with_results(run, of_run, names))
    first = [name for name in order if name in by_name]
    configurations = {name: by_name[name] for name in [*first, *sorted(by_name)]}
    models = _models(of_models, names)
    losses = {name: runs[0].record.loss for name, runs in configurations.items()}
    losses |= {model.name: model.name for model in models}
    baseline = baseline_named(baseline, losses)
    return ComparedModels(configurations, models, unfinished, baseline)


def evaluated_models(results: Mapping[str, Sequence[Result]]) -> ComparedModels:
    """Return the models that were evaluated together, under the names that the user gave them."""
    models = [_evaluated(name, of_model, {}) for name, of_model in results.items() if of_model]
    trained = [model.name for model in models if not model.is_reference]
    return ComparedModels({}, models, (), next(iter(trained), ""))


def baseline_named(wanted: str | None, losses: Mapping[str, str]) -> str:
    """Return the configuration that a ``baseline`` names; without one the first, "" if none exists.

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


def _results_of_models(place: Path) -> list[Result]:
    """Return the results in a file, or in a folder and its subfolders that hold no run."""
    if place.suffix == ".jsonl":
        results = read_results(place)
        if not results:
            raise UserError(f"{place} holds no results; dystress evaluate writes them")
        return results
    if not place.is_dir() or (place / RECORD).is_file():
        return []
    inner = [folder for folder in sorted(place.iterdir()) if folder.is_dir()]
    folders = [folder for folder in (place, *inner) if not (folder / RECORD).is_file()]
    return [result for folder in folders for result in results_in(folder)]


def _models(results: Iterable[Result], names: Names) -> list[EvaluatedModel]:
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


def _with_results(run: FinishedRun, results: Sequence[Result], names: Names) -> ComparedRun:
    results = [each for each in results if each.has({"pooler_type": None})]
    evaluated = _evaluated(run.folder.name, results, names)
    evaluated.figures = {TRAINING: dict(run.record.trained), **evaluated.figures}
    for option, variant in run.record.data_variants.items():
        if variant:
            evaluated.variants.append(f"{option}: {variant}")
    return ComparedRun(run.folder, run.record, evaluated)


def _evaluated(label: str, results: Sequence[Result], names: Names) -> EvaluatedModel:
    """Return the newest figures of a model, for the weights that were evaluated last."""
    if results and results[0].model == LEXICAL:
        label = lexical_label(lexical_words(results))
    model = EvaluatedModel(label, is_reference=bool(results) and results[0].is_reference)
    current = [each for each in results if each.weights == results[-1].weights]
    for result in newest(current, lambda result: result.content):
        columns = replace(result, task=names.get(result.content, result.task)).columns
        model.figures.setdefault(result.group, {}).update(columns)
        model.results.setdefault(result.group, {})[next(iter(columns))] = result
        if result.variant:
            model.variants.append(f"evaluation: {result.variant}")
    return model
