"""Tables that compare runs: mean and standard deviation over seeds, and paired differences."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from pathlib import Path

from dystress_text.analysis.choice import by_halves, end_of_range
from dystress_text.analysis.compared_models import TRAINING, ComparedModels, ComparedRun, Evaluated
from dystress_text.analysis.finished_run import differing
from dystress_text.analysis.outcome import Table
from dystress_text.cli import text_table
from dystress_text.errors import UserError
from dystress_text.evaluation.catalogue import GROUPS, SUITES, FiguresByTask, average
from dystress_text.evaluation.results import Result
from dystress_text.evaluation.retrieval import FUSION, WITH_BM25
from dystress_text.evaluation.statistics import (
    Estimate,
    average_of,
    over_seeds,
    spread,
)

_TITLES = {
    TRAINING: "Development set, by the model that was kept",
    "retrieval": "Search x 100",
    "pairs": "Own pairs, Spearman x 100",
}
_STYLES = {  # the heading of a table, and the prefix of a note
    "text": ("{}\n\n", ""),
    "markdown": ("## {}\n\n", "- "),
    "latex": ("% {}\n", "% "),
}
_NO_COMPARISON = "No comparison on a test set: dystress evaluate --model FOLDER measures test sets"
_STATISTICS = (
    "±: standard deviation over seeds. Intervals: 95 %, over queries or pairs, and over seeds if "
    "there are several. Each stands alone: of 20 that should contain 0, one does not."
)
Seed = int | None  # None: a model without a run


@dataclass(frozen=True)
class Column:
    """A column that is compared: an average, or a main figure.

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
    def where(self) -> str:
        """What messages call the column."""
        return f"{self.name} ({self.title})"

    def results(self, models: Iterable[Evaluated]) -> list[Result]:
        """Return the results from which the column is computed, for all models."""
        found = [model.results.get(self.group, {}) for model in models]
        return [each[task] for each in found for task in self.tasks if task in each]

    def estimates(self, models: Mapping[Seed, Evaluated]) -> dict[Seed, Estimate]:
        """Return the finite figures by seed, with the resamples for intervals."""
        found = {}
        for seed, model in models.items():
            known = [each.estimate for each in self.results([model])]
            finite = [each for each in known if each is not None]
            if len(finite) == len(self.tasks):
                found[seed] = average_of(finite)
        return found


@dataclass(frozen=True)
class Group:
    """The columns of a table.

    Attributes:
        key: where the figures are stored, such as ``senteval/sts``.
        title: the title of the table.
        tasks: the tasks, in the order of the columns.
        mean: the column with the average of the tasks; "" for none.
        compared: the columns to compare: the average, or the main figures; in search of one metric.
        fused: whether a column shows a model's ranking combined with that of BM25.
    """

    key: str
    title: str
    tasks: Sequence[str]
    mean: str = ""
    compared: Sequence[Column] = ()
    fused: bool = False

    def row(self, model: Evaluated) -> FiguresByTask:
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


def groups_of(models: Sequence[Evaluated]) -> list[Group]:
    """Return the tables for which models have figures."""
    tasks: dict[str, dict[str, None]] = {}
    for model in models:
        for key, row in model.figures.items():
            tasks.setdefault(key, {}).update(dict.fromkeys(row))
    groups = []
    for key, names in tasks.items():
        results = [model.results.get(key, {}) for model in models]
        if names:
            groups.append(_group(key, list(names), results))
    return groups


def _group(key: str, tasks: list[str], results: Sequence[Mapping[str, Result]]) -> Group:
    """Return the table with a key; ``results`` has for each model its results by main column."""
    suite, _, kind = key.partition("/")
    try:
        if not kind:
            title = _TITLES[key]
            main = [Column(key, task, title, [task]) for task in dict.fromkeys(chain(*results))]
            fused = any(WITH_BM25 in each.figures for found in results for each in found.values())
            return Group(key, title, tasks, compared=main, fused=fused)
        published = [task.name for task in SUITES[suite][kind]]
        tasks.sort(key=published.index)
    except (KeyError, ValueError) as error:  # results of another version
        raise UserError(f"results of unknown sets: {key}, {', '.join(tasks)}") from error
    title = GROUPS[kind] if suite == "senteval" else f"{GROUPS[kind]}, {suite} suite"
    mean = "avg" if tasks == published else f"avg of {len(tasks)}"
    return Group(key, title, tasks, mean, [Column(key, mean, title, tasks)])


def compare(compared: ComparedModels) -> list[Comparison]:
    """Compare each configuration with the baseline and all models; without runs, the models.

    Development sets are left out, as they selected the checkpoint.
    """
    references = [model.name for model in compared.models if model.is_reference]
    names = [model.name for model in compared.models if not model.is_reference]
    if compared.configurations:
        references = names + references
        names = list(compared.configurations)
    subtracted = dict.fromkeys([compared.baseline, *references])
    pairs = [(name, other) for other in subtracted for name in names if name != other]
    found = []
    for column in _compared_columns(compared):
        for name, other in pairs:
            found += _comparison(compared, column, name, other)
    return found


def _comparison(
    compared: ComparedModels, column: Column, name: str, other: str
) -> list[Comparison]:
    """Return the comparison of two names in a column; [] without figures of a common seed."""
    ours, theirs = (column.estimates(compared.by_seed(each)) for each in (name, other))
    if None not in ours and None not in theirs:  # paired by seed
        ours = {seed: each for seed, each in ours.items() if seed in theirs}
        theirs = {seed: theirs[seed] for seed in ours}
    if not ours or not theirs:
        return []
    difference = over_seeds([*ours.values()]) - over_seeds([*theirs.values()])
    obstacle = _obstacle(compared, column, (name, other))
    return [Comparison(column, name, other, difference, obstacle)]


def estimates_of(compared: ComparedModels) -> dict[str, dict[str, Estimate]]:
    """Return the figures in each compared column, by configuration and model."""
    return {each.where: _estimates(compared, each) for each in _compared_columns(compared)}


def _estimates(compared: ComparedModels, column: Column) -> dict[str, Estimate]:
    """Return the figures in a column, by configuration and model."""
    found = {}
    for name in [*compared.configurations, *(model.name for model in compared.models)]:
        estimates = column.estimates(compared.by_seed(name))
        if estimates:
            found[name] = over_seeds([*estimates.values()])
    return found


def _compared_columns(compared: ComparedModels) -> list[Column]:
    """Return the columns to compare; the development sets of training have none."""
    return [column for group in groups_of(compared.evaluated) for column in group.compared]


def _obstacle(compared: ComparedModels, column: Column, names: Sequence[str]) -> str:
    """Return why two of the names cannot be compared; "" if they can."""
    runs = [run for name in names for run in compared.configurations.get(name, [])]
    selected = []
    for task in column.tasks:
        if any(run.selected_on(column.group, task) for run in runs):
            selected.append(task)
    if selected:
        return f"{', '.join(selected)} selected the checkpoint"
    models = [model for name in names for model in compared.by_seed(name).values()]
    return _unlike(column.group, column.tasks, models)


def _unlike(group: str, tasks: Sequence[str], models: Sequence[Evaluated]) -> str:
    """Describe the tasks that were measured in different ways; "" if there are none."""
    parts = []
    for task in tasks:
        ways = {model.ways.get(group, {}).get(task, "") for model in models} - {""}
        if len(ways) > 1:
            parts.append(f"{task} ({' or '.join(sorted(ways))})")
    return f"measured differently: {'; '.join(parts)}" if parts else ""


def means(compared: ComparedModels, group: Group) -> Table:
    """Return the figures of each model, then mean and standard deviation of each configuration."""
    columns = list(filter(None, (*group.tasks, group.mean)))
    lines = [["", *columns]]
    for model in compared.models:
        if group.key in model.figures:
            lines.append([model.name, *map(text_table.cell, group.row(model).values())])
    for name, runs in compared.configurations.items():
        seeds = "1 seed" if len(runs) == 1 else f"{len(runs)} seeds"
        lines.append([f"{name}, {seeds}", *(_cell(group, runs, column) for column in columns)])
    return lines


def _cell(group: Group, runs: Sequence[ComparedRun], column: str) -> str:
    figures = [group.row(run.evaluated)[column] for run in runs]
    known = [figure for figure in figures if figure is not None]
    if not known:
        return "missing"
    cell = spread(known)
    return cell if len(known) == len(runs) else f"{cell} ({len(known)} of {len(runs)})"


def render(compared: ComparedModels, style: str) -> str:
    """Return verdict, tables and notes as text.

    Args:
        compared: the runs and models.
        style: ``text``, ``markdown`` or ``latex``.
    """
    heading, note = _STYLES[style]
    comparisons = compare(compared)
    parts = ["\n".join(note + line for line in verdict(compared, comparisons))]
    for group in groups_of(compared.evaluated):
        table = text_table.lay_out(means(compared, group), style)
        parts.append(heading.format(group.title) + table)
        parts.append("\n".join(note + line for line in _intervals(compared, group)))
    parts.append("\n".join(note + line for line in notes_of(compared, comparisons)))
    return "\n\n".join(filter(None, parts))


def render_evaluation(compared: ComparedModels) -> str:
    """Return the tables of models that were evaluated together, each followed by its intervals."""
    comparisons = compare(compared)
    lines = []
    for group in groups_of(compared.models):
        lines.append("\n" + text_table.lay_out(means(compared, group)))
        lines += [FUSION] if group.fused else []
        lines += _intervals(compared, group, comparisons)
    return "\n".join(lines)


def _intervals(
    compared: ComparedModels, group: Group, comparisons: Sequence[Comparison] = ()
) -> list[str]:
    """Return the intervals of a table's main figures, then of their differences."""
    lines = []
    for column in group.compared:
        figures = _estimates(compared, column).items()
        found = [f"{name}: {each}" for name, each in figures if each.interval is not None]
        differences = [each for each in comparisons if each.column == column]
        found += [each.summary() for each in differences if each.difference.interval is not None]
        if found:
            lines += [f"95 % intervals, {column.name}:", *found]
    return lines


def verdict(compared: ComparedModels, comparisons: Sequence[Comparison]) -> list[str]:
    """Return the best configuration of each column, and all differences."""
    lines = []
    several = len(compared.configurations) > 1
    if several and all(each.obstacle for each in comparisons):
        lines.append(_NO_COMPARISON)
    for column, found in groupby(comparisons, lambda each: each.column):
        lines += _answer(compared, column, list(found))
    first = [runs[0].settings for runs in compared.configurations.values()]
    others = [name for name in differing(first) if name != "loss"] if several else []
    if others:
        lines.append(f"Other settings that differ: {', '.join(others)}")
    return lines


def _answer(compared: ComparedModels, column: Column, found: Sequence[Comparison]) -> list[str]:
    """Compare the best configuration with the second and the models, then list the others."""
    where = column.where
    pairs = {(each.name, each.baseline) for each in found if not each.obstacle}
    names = {name for pair in pairs if {*pair} <= {*compared.configurations} for name in pair}
    if not names:
        return [f"{where}: {each.summary()}" for each in found]
    estimates = _estimates(compared, column)
    best, second, *_ = sorted(names, key=lambda name: (-estimates[name].mean, name))
    answer = f"Of the trained models {best} scores highest on {where}: {estimates[best]}"
    for lead in _comparison(compared, column, best, second):
        answer += f"; {lead.summary()}"
        if lead.difference.interval is not None:
            low, high = lead.difference.interval
            contains = "contains" if low <= 0 <= high else "does not contain"
            answer += f": the interval {contains} 0"
    settings = {name: compared.configurations[name][0].settings for name in names}
    results = {name: column.results(compared.by_seed(name).values()) for name in names}
    about = [*end_of_range(settings, best), *by_halves(results)]
    # of the others only the differences from the baseline
    rest = [each for each in found if best in (each.name, each.baseline)]
    rest += [each for each in found if each not in rest and each.baseline == compared.baseline]
    about += [each.summary() for each in rest if {each.name, each.baseline} != {best, second}]
    return [f"{answer}.", *(f"{where}: {line}" for line in about)]


def notes_of(compared: ComparedModels, comparisons: Sequence[Comparison]) -> list[str]:
    """Return notes below the tables: setups, data variants, and figures that cannot be compared."""
    setups: dict[str, list[str]] = {}
    for name, runs in compared.configurations.items():
        setups.setdefault(_setup(runs[0]), []).append(name)
    notes = [f"Setup of {', '.join(names)}: {setup}" for setup, names in setups.items()]
    variants = {variant for each in compared.evaluated for variant in each.variants}
    notes += [f"Variant of the published data: {variant}" for variant in sorted(variants)]
    for group in groups_of(compared.evaluated):
        notes.append(_unlike(group.key, group.tasks, compared.evaluated))
        if group.fused:
            notes.append(FUSION)
    if comparisons:
        notes.append(f"Compared with {compared.baseline}; --baseline names another")
    if any(each.difference.interval is not None for each in comparisons):
        notes.append(_STATISTICS)
    if compared.unfinished:
        notes.append(f"Excluded, not finished: {', '.join(compared.unfinished)}")
    return list(filter(None, notes))


def _setup(run: ComparedRun) -> str:
    settings = run.record.settings
    corpus = run.record.corpus
    encoder = Path(settings["model_name_or_path"]).name
    return (
        f"{encoder}, {settings['pooler_type']}, "
        f"{run.record.steps:,} steps of {settings['train_batch_size']}, "
        f"learning rate {settings['learning_rate']:g}, {corpus['sentences']:,} sentences "
        f"(sha256 {corpus['sha256'][:12]}), {run.record.device}"
    )
