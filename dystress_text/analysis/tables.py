"""Tables of runs: mean and deviation over seeds, the paper's figures, and paired differences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path

from dystress_text.analysis.page import Table
from dystress_text.analysis.runs import (
    baselines_named,
    by_configuration,
    differing,
    differing_keys,
)
from dystress_text.analysis.text_runs import TRAINING, Evaluated, TextRun
from dystress_text.cli import text_table
from dystress_text.config.presets import PRESETS
from dystress_text.evaluation.catalogue import GROUPS, TASKS, Row, average
from dystress_text.evaluation.retrieval import METRICS
from dystress_text.evaluation.statistics import Difference, holm, paired, spread

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
_NO_COMPARISON = (
    "No comparison on a test set with a constant that differs in the loss alone: dystress "
    "senteval --model FOLDER measures test sets, --baseline names a configuration"
)
_STATISTICS = (
    "±: standard deviation over seeds. p: paired t test, and the interval is as wide, both "
    "corrected for all comparisons of this report (Holm). Significant: 3 seeds or more and "
    "p < 0.05."
)


@dataclass(frozen=True)
class Group:
    """The columns of one table.

    Attributes:
        key: of a run's figures, such as ``senteval/sts``.
        title: of the table.
        tasks: in order.
        mean: the column of their average; "" for none.
    """

    key: str
    title: str
    tasks: tuple[str, ...]
    mean: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.tasks, self.mean) if self.mean else self.tasks

    @property
    def headlines(self) -> list[str]:
        """The columns that are compared: the average, or each set in its first metric."""
        if self.mean:
            return [self.mean]
        first = METRICS[0] if self.key == "retrieval" else ""
        return [task for task in self.tasks if task.endswith(first)]

    def row(self, figures: Mapping[str, Row]) -> Row:
        """Return a row of the table from figures by group."""
        found = figures.get(self.key, {})
        row: Row = {task: found.get(task) for task in self.tasks}
        if self.mean:
            row[self.mean] = average(row)
        return row


def groups_of(runs: Sequence[TextRun | Evaluated]) -> list[Group]:
    """Return the tables that runs and models have figures for."""
    tasks: dict[str, dict[str, None]] = {}
    for run in runs:
        for key, row in run.figures.items():
            tasks.setdefault(key, {}).update(dict.fromkeys(row))
    return [_group(key, list(names)) for key, names in tasks.items() if names]


def _group(key: str, tasks: list[str]) -> Group:
    suite, _, kind = key.partition("/")
    if not kind:
        return Group(key, _TITLES[key], tuple(tasks))
    published = TASKS[kind]
    known = [task for task in published if task in tasks]
    tasks = known + [task for task in tasks if task not in published]
    if suite != "senteval":
        return Group(key, f"{GROUPS[kind]}, {suite} suite", tuple(tasks), "avg")
    mean = "avg" if tuple(tasks) == published else f"avg of {len(tasks)}"
    return Group(key, GROUPS[kind], tuple(tasks), mean)


def unlike(key: str, tasks: Sequence[str], runs: Sequence[TextRun | Evaluated]) -> str:
    """Return how evaluations of the same tasks differ; "" if they do not."""
    differs: dict[str, list[str]] = {}
    for task in tasks:
        measured = [run for run in runs if task in run.figures.get(key, {})]
        ways = [run.measured.get(key, {}).get(task, {}) for run in measured]
        for name in differing_keys(ways):
            differs.setdefault(name, []).append(task)
    return "; ".join(f"other {name} ({', '.join(where)})" for name, where in differs.items())


@dataclass(frozen=True)
class Comparison:
    """A configuration compared with a baseline in one column.

    Attributes:
        group: the table.
        column: of the table.
        name: of the configuration.
        baseline: the name of another configuration.
        difference: of the two, paired by seed.
        obstacle: why they cannot be compared; "" if they can.
    """

    group: Group
    column: str
    name: str
    baseline: str
    difference: Difference
    obstacle: str

    def summary(self) -> str:
        """Return the difference with its interval and the flag, or the obstacle."""
        names = f"{self.name} - {self.baseline}"
        if self.obstacle:
            return f"{names} not compared: {self.obstacle}"
        return f"{names} = {self.difference.summary()}"

    @property
    def where(self) -> str:
        return f"{self.column} ({self.group.title})"


@dataclass(frozen=True)
class Comparisons:
    """Runs by configuration, and their comparisons.

    Attributes:
        runs: finished ones.
        unfinished: names of the others.
        evaluated: models without a run, for the tables.
        baselines: configurations named by the user; empty for the default ones.
    """

    runs: Sequence[TextRun]
    unfinished: Sequence[str] = ()
    evaluated: Sequence[Evaluated] = ()
    baselines: Sequence[str] = ()

    def __post_init__(self) -> None:
        # refuse contradictory runs at once
        losses = {name: runs[0].record.loss for name, runs in self.configurations.items()}
        object.__setattr__(self, "baselines", baselines_named(self.baselines, losses))

    @property
    def shown(self) -> list[TextRun | Evaluated]:
        """All that have a row in a table."""
        return [*self.runs, *self.evaluated]

    @cached_property
    def configurations(self) -> dict[str, list[TextRun]]:
        """The runs by configuration; the paper's rows come first, in its order."""
        found = by_configuration(self.runs)
        published = [name for name in PRESETS if name in found]
        others = sorted(found.keys() - PRESETS.keys())
        return {name: found[name] for name in [*published, *others]}

    def baselines_of(self, name: str) -> list[str]:
        """Return the configurations that one is compared with.

        Those that the user named come first. The default are constants whose runs differ in the
        loss alone: the own loss of the preset that all runs share, or 0.05 (SimCSE's) and the
        tau_max of the configuration, or all. Constants of InfoNCE precede those of other
        objectives.
        """
        if self.baselines:
            return [baseline for baseline in self.baselines if baseline != name]
        constants = {
            other: runs[0]
            for other, runs in self.configurations.items()
            if runs[0].constant and not self.away(name, other)
        }
        if self.presets_own in constants:
            fitting = [self.presets_own]
        else:
            infonce = [each for each in constants if constants[each].record.loss[:8] == "infonce("]
            usual = (0.05, getattr(self.configurations[name][0].temperature, "tau_max", None))
            fitting = infonce or list(constants)
            fitting = [each for each in fitting if constants[each].constant in usual] or fitting
        return [other for other in fitting if other != name]

    @cached_property
    def presets_own(self) -> str:
        """The configuration with the loss of the preset that all runs share; "" without one."""
        presets = {str(run.record.settings.get("preset")) for run in self.runs}
        preset = PRESETS.get(presets.pop()) if len(presets) == 1 else None
        for name, runs in self.configurations.items():
            if preset is not None and runs[0].record.loss == preset.settings["loss"]:
                return name
        return ""

    def away(self, *names: str) -> list[str]:
        """Return the settings, apart from the loss, in which configurations differ."""
        runs = [self.configurations[name][0] for name in names]
        found = differing(runs, {"loss"})
        if found or len({run.record.corpus["sha256"] for run in runs}) < 2:
            return found
        return ["training text"]  # a file has changed its content

    @cached_property
    def comparisons(self) -> list[Comparison]:
        """Each configuration compared with its baselines; p is corrected for all comparisons.

        Development sets of training are excluded because they chose the checkpoint.
        """
        pairs: list[tuple[str, str]] = []
        for name in self.configurations:
            others = self.baselines_of(name)
            pairs += [(name, other) for other in others if (other, name) not in pairs]
        groups = [group for group in groups_of(self.runs) if group.key != TRAINING]
        columns = [(group, column) for group in groups for column in group.headlines]
        found = []
        for (group, column), (name, other) in product(columns, pairs):
            ours = self.by_seed(name, group, column)
            theirs = self.by_seed(other, group, column)
            difference = paired(ours, theirs)
            if difference is not None:
                obstacle = self._obstacle(group, column, name, other)
                found.append(Comparison(group, column, name, other, difference, obstacle))
        corrected = iter(holm([each.difference for each in found if not each.obstacle]))
        return [
            each if each.obstacle else replace(each, difference=next(corrected)) for each in found
        ]

    def _obstacle(self, group: Group, column: str, *names: str) -> str:
        """Return why configurations cannot be compared; "" if they can."""
        runs = [run for name in names for run in self.configurations[name]]
        tasks = group.tasks if column == group.mean else (column,)
        chose = [task for task in tasks if any(run.chose(task) for run in runs)]
        if chose:
            return f"{', '.join(chose)} selected the checkpoint"
        other = unlike(group.key, tasks, runs)
        return f"measured with {other}" if other else ""

    def by_seed(self, name: str, group: Group, column: str) -> dict[int, float]:
        """Return the finite figures of a configuration in a column, by seed."""
        found = {}
        for run in self.configurations[name]:
            figure = group.row(run.figures)[column]
            if figure is not None and math.isfinite(figure):
                found[run.seed] = figure
        return found


def sections(compared: Comparisons, but: str | None = None) -> list[tuple[str, Table]]:
    """Return the tables with their titles, without that of the group ``but``."""
    groups = groups_of(compared.shown)
    return [(group.title, _means(compared, group)) for group in groups if group.key != but]


def _means(compared: Comparisons, group: Group) -> Table:
    """Return mean and deviation of each figure, the paper's figure, and the gap."""
    lines = [["", *group.columns]]
    for model in compared.evaluated:
        if group.key in model.figures:
            row = group.row(model.figures)
            lines.append([model.name, *(_cell(figure, "missing") for figure in row.values())])
    for name, runs in compared.configurations.items():
        found = [compared.by_seed(name, group, column) for column in group.columns]
        seeds = "1 seed" if len(runs) == 1 else f"{len(runs)} seeds"
        lines.append([f"{name}, {seeds}", *(_spread_cell(each, len(runs)) for each in found)])
        published = runs[0].paper_row
        suite, _, kind = group.key.partition("/")
        if published is None or suite != "senteval":
            continue
        figures = group.row({group.key: published.figures(kind)})
        lines.append(
            [f"  paper: {published.name}", *(_cell(each, "-") for each in figures.values())]
        )
        lines.append(["  ours - paper", *map(_gap, found, figures.values())])
    return lines


def _cell(figure: float | None, missing: str) -> str:
    return missing if figure is None else f"{figure:.2f}"


def _spread_cell(by_seed: Mapping[int, float], runs: int) -> str:
    if not by_seed:
        return "missing"
    cell = str(spread(list(by_seed.values())))
    return cell if len(by_seed) == runs else f"{cell} ({len(by_seed)} of {runs})"


def _gap(by_seed: Mapping[int, float], published: float | None) -> str:
    if published is None or not by_seed:
        return "-"
    return f"{spread(list(by_seed.values())).mean - published:+.2f}"


def render(compared: Comparisons, style: str) -> str:
    """Return verdict, tables and notes as text.

    Args:
        compared: the runs.
        style: ``text``, ``markdown`` or ``latex``.
    """
    heading, note = _STYLES[style]
    parts = ["\n".join(note + line for line in verdict(compared))]
    for title, lines in sections(compared):
        parts.append(heading.format(title) + text_table.lay_out(lines, style))
    parts.append("\n".join(note + line for line in notes_of(compared)))
    return "\n\n".join(filter(None, parts))


def verdict(compared: Comparisons) -> list[str]:
    """Return the best configuration of each column, then all differences.

    Returns:
        The lines; none for a single configuration.
    """
    if len(compared.configurations) < 2:
        return []
    lines = []
    of_columns: dict[str, list[Comparison]] = {}
    for each in compared.comparisons:
        of_columns.setdefault(each.where, []).append(each)
    for found in of_columns.values():
        lines += _answer(compared, found)
    if all(each.obstacle for each in compared.comparisons):
        lines.insert(0, _NO_COMPARISON)
    away = compared.away(*compared.configurations)
    if away:
        lines.append(f"Other settings that differ: {', '.join(away)}")
    return lines


def _answer(compared: Comparisons, found: Sequence[Comparison]) -> list[str]:
    """Return the best configuration with its smallest difference, then the other differences."""
    group, column, where = found[0].group, found[0].column, found[0].where
    tested = [each for each in found if not each.obstacle]
    if not tested:
        return [f"{where}: {each.summary()}" for each in found]
    names = dict.fromkeys(name for each in tested for name in (each.name, each.baseline))
    means = {name: spread([*compared.by_seed(name, group, column).values()]).mean for name in names}
    best = max(names, key=lambda name: means[name])
    of_best = [each for each in tested if best in (each.name, each.baseline)]
    nearest = min(of_best, key=lambda each: abs(each.difference.mean))
    answer = f"{best} scores highest on {where}: {means[best]:.2f}; {nearest.summary()}."
    for model in compared.evaluated:
        figure = group.row(model.figures).get(column)
        if figure is not None:
            answer += f" {model.name} scores {figure:.2f}."
    return [answer, *(f"{where}: {each.summary()}" for each in found if each is not nearest)]


def notes_of(compared: Comparisons) -> list[str]:
    """Return notes on the tables: setups, variants of data, and what is not comparable."""
    setups: dict[str, list[str]] = {}
    for name, runs in compared.configurations.items():
        setups.setdefault(_setup(runs[0]), []).append(name)
    notes = [f"Setup of {', '.join(names)}: {setup}" for setup, names in setups.items()]
    groups = groups_of(compared.shown)
    differs = dict.fromkeys(run.record.paper.differs for run in compared.runs)
    notes += [f"Not the paper's setup: {each}" for each in differs if each]
    variants = {variant for each in compared.shown for variant in each.variants}
    notes += [f"Variant of the published data: {variant}" for variant in sorted(variants)]
    for group in groups:
        other = unlike(group.key, group.tasks, compared.shown)
        if other:
            notes.append(f"{group.title}: not comparable, measured with {other}")
    baselines = dict.fromkeys(each.baseline for each in compared.comparisons)
    if baselines:
        reason = "constants that differ in the loss alone"
        if compared.baselines:
            reason = "named"
        elif compared.presets_own in baselines:
            reason = "the preset's own loss"
        notes.append(f"Compared with {', '.join(baselines)}: {reason}; --baseline names others")
    if any(each.difference.n > 1 for each in compared.comparisons):
        notes.append(_STATISTICS)
    if compared.unfinished:
        notes.append(f"Excluded, not finished: {', '.join(compared.unfinished)}")
    return notes


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
