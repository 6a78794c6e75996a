"""Tables that compare runs: mean and standard deviation over seeds, and paired differences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from dystress_text.analysis.choice import by_halves, end_of_range
from dystress_text.analysis.outcome import Table
from dystress_text.analysis.runs import differing
from dystress_text.analysis.text_runs import TRAINING, Evaluated, TextRun, TextRuns
from dystress_text.cli import text_table
from dystress_text.errors import UserError
from dystress_text.evaluation.catalogue import GROUPS, SUITES, Row, average
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
class Group:
    """The columns of a table.

    Attributes:
        key: where the figures are stored, such as ``senteval/sts``.
        title: the title of the table.
        tasks: the tasks, in the order of the columns.
        mean: the column with the average of the tasks; "" for none.
        main: the columns to compare if there is no average; for search those of one metric.
        fused: whether a column shows a model's ranking combined with that of BM25.
    """

    key: str
    title: str
    tasks: Sequence[str]
    mean: str = ""
    main: Sequence[str] = ()
    fused: bool = False

    @property
    def headlines(self) -> Sequence[str]:
        """The columns to compare: the average, or the main ones."""
        return [self.mean] if self.mean else self.main

    def row(self, model: Evaluated) -> Row:
        """Return the figures of a model, column by column."""
        figures = model.figures.get(self.key, {})
        row: Row = {task: figures.get(task) for task in self.tasks}
        if self.mean:
            row[self.mean] = average(row)
        return row

    def by_seed(self, runs: Sequence[TextRun], column: str) -> dict[int, float]:
        """Return the finite figures of a configuration in a column, by seed."""
        found = {}
        for run in runs:
            figure = self.row(run.evaluated)[column]
            if figure is not None and math.isfinite(figure):
                found[run.seed] = figure
        return found

    def where(self, column: str) -> str:
        """Return the name of a column in messages."""
        return f"{column} ({self.title})"

    def tasks_of(self, column: str) -> Sequence[str]:
        """Return the tasks whose average a column shows, or the column itself."""
        return self.tasks if column == self.mean else [column]

    def results(self, models: Mapping[Seed, Evaluated], column: str) -> list[Result]:
        """Return the results from which a main column is computed, for all models."""
        found = [model.results.get(self.key, {}) for model in models.values()]
        return [each[task] for each in found for task in self.tasks_of(column) if task in each]

    def estimates(self, models: Mapping[Seed, Evaluated], column: str) -> dict[Seed, Estimate]:
        """Return the finite figures in a main column by seed, with the data for intervals."""
        tasks = self.tasks_of(column)
        found = {}
        for seed, model in models.items():
            results = model.results.get(self.key, {})
            known = [results[task].estimate for task in tasks if task in results]
            finite = [each for each in known if each is not None]
            if len(finite) == len(tasks):
                found[seed] = average_of(finite)
        return found


@dataclass(frozen=True)
class Comparison:
    """A configuration or model compared with another one in one column.

    Attributes:
        group: the table.
        column: the column of the table.
        name: the configuration or model.
        baseline: the configuration or model that it is compared with.
        difference: the difference, paired by query or pair, and by seed.
        obstacle: why the two cannot be compared; "" if they can.
    """

    group: Group
    column: str
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

    @property
    def where(self) -> str:
        return self.group.where(self.column)


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
            main = list(dict.fromkeys(chain(*results)))
            fused = any(WITH_BM25 in each.figures for found in results for each in found.values())
            return Group(key, _TITLES[key], tasks, main=main, fused=fused)
        published = [task.name for task in SUITES[suite][kind]]
        tasks.sort(key=published.index)
    except (KeyError, ValueError) as error:  # results of another version
        raise UserError(f"results of unknown sets: {key}, {', '.join(tasks)}") from error
    title = GROUPS[kind] if suite == "senteval" else f"{GROUPS[kind]}, {suite} suite"
    return Group(key, title, tasks, "avg" if tasks == published else f"avg of {len(tasks)}")


def compare(compared: TextRuns) -> list[Comparison]:
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
    for group, column in _main_columns(compared):
        for name, other in pairs:
            found += _comparison(compared, group, column, name, other)
    return found


def _comparison(
    compared: TextRuns, group: Group, column: str, name: str, other: str
) -> list[Comparison]:
    """Return the comparison of two names in a column; [] without figures of a common seed."""
    ours, theirs = (group.estimates(compared.by_seed(each), column) for each in (name, other))
    if None not in ours and None not in theirs:  # paired by seed
        ours = {seed: each for seed, each in ours.items() if seed in theirs}
        theirs = {seed: theirs[seed] for seed in ours}
    if not ours or not theirs:
        return []
    difference = over_seeds([*ours.values()]) - over_seeds([*theirs.values()])
    obstacle = _obstacle(compared, group, column, (name, other))
    return [Comparison(group, column, name, other, difference, obstacle)]


def estimates_of(compared: TextRuns) -> dict[str, dict[str, Estimate]]:
    """Return the figures in each main column, by configuration and model."""
    found: dict[str, dict[str, Estimate]] = {}
    for group, column in _main_columns(compared):
        of_column = found.setdefault(group.where(column), {})
        for name in [*compared.configurations, *(model.name for model in compared.models)]:
            estimates = group.estimates(compared.by_seed(name), column)
            if estimates:
                of_column[name] = over_seeds([*estimates.values()])
    return found


def _main_columns(compared: TextRuns) -> list[tuple[Group, str]]:
    """Return the columns to compare, without the development sets that selected the checkpoint."""
    groups = [group for group in groups_of(compared.evaluated) if group.key != TRAINING]
    return [(group, column) for group in groups for column in group.headlines]


def _obstacle(compared: TextRuns, group: Group, column: str, names: Sequence[str]) -> str:
    """Return why two of the names cannot be compared; "" if they can."""
    tasks = group.tasks_of(column)
    runs = [run for name in names for run in compared.configurations.get(name, [])]
    selected = [task for task in tasks if any(run.selected_on(task) for run in runs)]
    if selected:
        return f"{', '.join(selected)} selected the checkpoint"
    models = [model for name in names for model in compared.by_seed(name).values()]
    return _unlike(group, tasks, models)


def _unlike(group: Group, tasks: Sequence[str], models: Sequence[Evaluated]) -> str:
    """Return a description of tasks that were measured in different ways; "" if there are none."""
    parts = []
    for task in tasks:
        ways = {model.ways.get(group.key, {}).get(task, "") for model in models} - {""}
        if len(ways) > 1:
            parts.append(f"{task} ({' or '.join(sorted(ways))})")
    return f"measured differently: {'; '.join(parts)}" if parts else ""


def means(compared: TextRuns, group: Group) -> Table:
    """Return the figures of each model, then mean and standard deviation of each configuration."""
    columns = [*group.tasks, group.mean] if group.mean else list(group.tasks)
    lines = [["", *columns]]
    for model in compared.models:
        if group.key in model.figures:
            lines.append([model.name, *map(text_table.cell, group.row(model).values())])
    for name, runs in compared.configurations.items():
        seeds = "1 seed" if len(runs) == 1 else f"{len(runs)} seeds"
        lines.append([f"{name}, {seeds}", *(_cell(group, runs, column) for column in columns)])
    return lines


def _cell(group: Group, runs: Sequence[TextRun], column: str) -> str:
    figures = list(group.by_seed(runs, column).values())
    if not figures:
        return "missing"
    cell = spread(figures)
    return cell if len(figures) == len(runs) else f"{cell} ({len(figures)} of {len(runs)})"


def render(compared: TextRuns, style: str) -> str:
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


def render_evaluation(compared: TextRuns) -> str:
    """Return the tables of models that were evaluated together, each followed by its intervals."""
    comparisons = compare(compared)
    lines = []
    for group in groups_of(compared.models):
        lines.append("\n" + text_table.lay_out(means(compared, group)))
        lines += [*_fusion(group), *_intervals(compared, group, comparisons)]
    return "\n".join(lines)


def _intervals(
    compared: TextRuns, group: Group, comparisons: Sequence[Comparison] = ()
) -> list[str]:
    """Return lines with the intervals of a table's main figures, then of their differences."""
    estimates = estimates_of(compared)
    lines = []
    for column in group.headlines:
        where = group.where(column)
        figures = estimates.get(where, {}).items()
        found = [f"{name}: {each}" for name, each in figures if each.interval is not None]
        differences = [each for each in comparisons if each.where == where]
        found += [each.summary() for each in differences if each.difference.interval is not None]
        if found:
            lines += [f"95 % intervals, {column}:", *found]
    return lines


def _fusion(group: Group) -> list[str]:
    """Return a line that explains the column with BM25, if the table has one."""
    return [FUSION] if group.fused else []


def verdict(compared: TextRuns, comparisons: Sequence[Comparison]) -> list[str]:
    """Return lines that name the best configuration of each column, and all differences."""
    of_columns: dict[str, list[Comparison]] = {}
    for each in comparisons:
        of_columns.setdefault(each.where, []).append(each)
    lines = []
    several = len(compared.configurations) > 1
    if several and all(each.obstacle for each in comparisons):
        lines.append(_NO_COMPARISON)
    for found in of_columns.values():
        lines += _answer(compared, found)
    first = [runs[0].settings for runs in compared.configurations.values()]
    others = [name for name in differing(first) if name != "loss"] if several else []
    if others:
        lines.append(f"Other settings that differ: {', '.join(others)}")
    return lines


def _answer(compared: TextRuns, found: Sequence[Comparison]) -> list[str]:
    """Return the lines below the title.

    The first ones compare the best configuration with the second one and the models.
    """
    group, column, where = found[0].group, found[0].column, found[0].where
    pairs = {(each.name, each.baseline) for each in found if not each.obstacle}
    names = {name for pair in pairs if {*pair} <= {*compared.configurations} for name in pair}
    if not names:
        return [f"{where}: {each.summary()}" for each in found]
    estimates = estimates_of(compared)[where]
    best, second, *_ = sorted(names, key=lambda name: (-estimates[name].mean, name))
    answer = f"Of the trained models {best} scores highest on {where}: {estimates[best]}"
    for lead in _comparison(compared, group, column, best, second):
        answer += f"; {lead.summary()}"
        if lead.difference.interval is not None:
            low, high = lead.difference.interval
            contains = "contains" if low <= 0 <= high else "does not contain"
            answer += f": the interval {contains} 0"
    settings = {name: compared.configurations[name][0].settings for name in names}
    results = {name: group.results(compared.by_seed(name), column) for name in names}
    about = [*end_of_range(settings, best), *by_halves(results)]
    # of the others only the differences from the baseline
    rest = [each for each in found if best in (each.name, each.baseline)]
    rest += [each for each in found if each not in rest and each.baseline == compared.baseline]
    about += [each.summary() for each in rest if {each.name, each.baseline} != {best, second}]
    return [f"{answer}.", *(f"{where}: {line}" for line in about)]


def notes_of(compared: TextRuns, comparisons: Sequence[Comparison]) -> list[str]:
    """Return notes below the tables: setups, data variants, and figures that cannot be compared."""
    setups: dict[str, list[str]] = {}
    for name, runs in compared.configurations.items():
        setups.setdefault(_setup(runs[0]), []).append(name)
    notes = [f"Setup of {', '.join(names)}: {setup}" for setup, names in setups.items()]
    variants = {variant for each in compared.evaluated for variant in each.variants}
    notes += [f"Variant of the published data: {variant}" for variant in sorted(variants)]
    for group in groups_of(compared.evaluated):
        notes.append(_unlike(group, group.tasks, compared.evaluated))
        notes += _fusion(group)
    if comparisons:
        notes.append(f"Compared with {compared.baseline}; --baseline names another")
    if any(each.difference.interval is not None for each in comparisons):
        notes.append(_STATISTICS)
    if compared.unfinished:
        notes.append(f"Excluded, not finished: {', '.join(compared.unfinished)}")
    return list(filter(None, notes))


def _setup(run: TextRun) -> str:
    settings = run.record.settings
    corpus = run.record.corpus
    encoder = Path(settings["model_name_or_path"]).name
    return (
        f"{encoder}, {settings['pooler_type']}, "
        f"{run.record.steps:,} steps of {settings['train_batch_size']}, "
        f"learning rate {settings['learning_rate']:g}, {corpus['sentences']:,} sentences "
        f"(sha256 {corpus['sha256'][:12]}), {run.record.device}"
    )
