"""Tables of a sweep: mean and deviation over seeds, the paper's figures, tests against constants,
and notes on them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path

from dystress_text.cli import text_table
from dystress_text.cli.options import check_names
from dystress_text.evaluation.catalogue import GROUPS, TASKS, Row, average
from dystress_text.evaluation.statistics import Difference, holm, paired, spread
from dystress_text.report.page import Table
from dystress_text.report.runs import FinishedRun, by_configuration, differing
from dystress_text.report.text_runs import TRAINING, Evaluated, TextRun
from dystress_text.simcse.arguments import parse
from dystress_text.simcse.paper import ROWS, PaperRow
from dystress_text.simcse.presets import PRESETS
from dystress_text.simcse.texts import WIKI1M
from dystress_text.training.run_record import RunRecord

_TITLES = {
    TRAINING: "Development set, by the model that was kept",
    "retrieval": "Search x 100",
    "pairs": "Own pairs, Spearman x 100",
}


@dataclass(frozen=True)
class Group:
    """Figures that stand in one table."""

    key: str  # of a run's figures
    title: str
    columns: tuple[str, ...]  # in order; the last may be the average
    headline: str  # the column that comparisons are about

    @property
    def where(self) -> str:
        return f"{self.headline} ({self.title})"

    def paper(self, run: TextRun) -> tuple[str, Row] | None:
        """The paper's row for the run: its name, and figures over the same tasks."""
        suite, _, kind = self.key.partition("/")
        row = paper_row(run) if suite == "senteval" and kind in TASKS else None
        return None if row is None else (row.name, self.row({self.key: row.figures(kind)}))

    def row(self, figures: Mapping[str, Row]) -> Row:
        """Of the figures of a run or model by group, None where there is none."""
        row: Row = {column: figures.get(self.key, {}).get(column) for column in self.columns}
        if self.headline.startswith("avg"):
            row[self.headline] = average(
                {column: row[column] for column in self.columns if column != self.headline}
            )
        return row


def groups_of(runs: Sequence[TextRun | Evaluated]) -> list[Group]:
    """Return the tables that these have figures for."""
    columns: dict[str, dict[str, None]] = {}
    for run in runs:
        for key, row in run.figures.items():
            columns.setdefault(key, {}).update(dict.fromkeys(row))
    return [_group(key, list(names)) for key, names in columns.items() if names]


def _group(key: str, names: list[str]) -> Group:
    suite, _, kind = key.partition("/")
    if not kind:
        return Group(key, _TITLES[key], tuple(names), names[0])
    order = {name: place for place, name in enumerate(TASKS[kind])}
    names.sort(key=lambda name: order.get(name, len(order)))
    complete = suite != "senteval" or tuple(names) == TASKS[kind]
    mean = "avg" if complete else f"avg of {len(names)}"
    title = GROUPS[kind] if suite == "senteval" else f"{GROUPS[kind]}, {suite} suite"
    return Group(key, title, (*names, mean), mean)


def paper_row(run: TextRun) -> PaperRow | None:
    """Return the row of the paper's table for a run that has its encoder, data and loss."""
    settings = run.record.settings
    encoder = Path(settings.get("model_name_or_path") or "").name
    trained_on = Path(settings.get("train_file") or "").name
    its_encoder = encoder == PRESETS["paper"].settings["model_name_or_path"]
    if not its_encoder or trained_on not in ("", WIKI1M) or run.variants:
        return None
    return next((row for row in ROWS if row.loss == run.record.loss), None)


def unlike(key: str, columns: Sequence[str], of: Sequence[TextRun | Evaluated]) -> str:
    """Return how the measurements of one figure differ, and of which; empty where they do not."""
    differs: dict[str, list[str]] = {}
    for column in columns:
        having = [each for each in of if column in each.figures.get(key, {})]
        ways = [each.measured.get(key, {}).get(column, {}) for each in having]
        for name in dict.fromkeys(name for way in ways for name in way):
            if len({way.get(name) for way in ways}) > 1:
                differs.setdefault(name, []).append(column)
    return "; ".join(f"other {name} ({', '.join(where)})" for name, where in differs.items())


@dataclass(frozen=True)
class Comparison:
    """A configuration against a baseline in a group's headline."""

    group: Group
    name: str
    baseline: str
    difference: Difference
    obstacle: str  # why the difference says nothing; empty where it does

    def summary(self) -> str:
        """Return the difference with its interval and the flag, or why there is none."""
        names = f"{self.group.where}: {self.name} - {self.baseline}"
        if self.obstacle:
            return f"{names} not compared: {self.obstacle}"
        return f"{names} = {self.difference.summary()}"


@dataclass(frozen=True)
class Comparisons:
    """Runs by configuration, and which configurations are compared."""

    runs: Sequence[TextRun]  # finished ones
    unfinished: Sequence[str] = ()  # names of the others
    evaluated: Sequence[Evaluated] = ()  # models that are no runs, for the tables
    baselines: Sequence[str] = ()  # configurations named by the user; empty for the ones that fit

    @property
    def shown(self) -> list[TextRun | Evaluated]:
        """All that have a line in a table."""
        return [*self.runs, *self.evaluated]

    @cached_property
    def configurations(self) -> dict[str, list[TextRun]]:
        """The runs by configuration, the paper's rows in its order first; runs that do not go
        together are refused.
        """
        of = by_configuration(self.runs)
        ours = [name for name in PRESETS if name in of]
        return {name: of[name] for name in [*ours, *sorted(of.keys() - PRESETS.keys())]}

    def __post_init__(self) -> None:
        check_names(
            "baseline", self.baselines, self.configurations
        )  # runs that do not go together are refused here

    def baselines_of(self, name: str) -> list[str]:
        """The configurations that one is compared with: the user's, else constants that are
        SimCSE's or its own end.

        Of themselves only those that differ in nothing but the loss.
        """
        if self.baselines:
            return [baseline for baseline in self.baselines if baseline != name]
        one = self.configurations[name][0]
        if one.constant == 0.05:
            return []
        others = {other: runs[0].constant for other, runs in self.configurations.items()}
        constants = [other for other, tau in others.items() if tau and not self.away(name, other)]
        ends = (0.05, getattr(one.temperature, "tau_max", None))
        fitting = [other for other in constants if others[other] in ends]
        return [other for other in fitting or constants if other != name]

    def away(self, *names: str) -> list[str]:
        """The settings, apart from the loss's, in which configurations differ; a file may have
        changed its content.
        """
        runs = [self.configurations[name][0] for name in names]
        texts = {run.record.corpus["sha256"] for run in runs}
        return differing(runs, {"loss"}) or (["training text"] if len(texts) > 1 else [])

    @cached_property
    def comparisons(self) -> list[Comparison]:
        """Each configuration against its baselines in each group's headline, p corrected for all.

        The sets of training are left out: they chose the step that was kept.
        """
        pairs: list[tuple[str, str]] = []
        for name in self.configurations:
            others = self.baselines_of(name)
            pairs += [(name, other) for other in others if (other, name) not in pairs]
        found = []
        for group, (name, other) in product(groups_of(self.runs), pairs):
            ours, theirs = (self.by_seed(each, group, group.headline) for each in (name, other))
            difference = paired(ours, theirs)
            if difference is not None and group.key != TRAINING:
                obstacle = self._obstacle(group, name, other)
                found.append(Comparison(group, name, other, difference, obstacle))
        corrected = iter(holm([each.difference for each in found if not each.obstacle]))
        return [
            each if each.obstacle else replace(each, difference=next(corrected)) for each in found
        ]

    def _obstacle(self, group: Group, *names: str) -> str:
        """Why configurations cannot be compared in a group's headline; empty where they can."""
        runs = [run for name in names for run in self.configurations[name]]
        columns = group.columns[:-1] if group.headline == group.columns[-1] else (group.headline,)
        chose = [column for column in columns if any(run.chose(column) for run in runs)]
        if chose:
            return f"{', '.join(chose)} chose the step that was kept"
        other = unlike(group.key, columns, runs)
        return f"measured with {other}" if other else ""

    def by_seed(self, name: str, group: Group, column: str) -> dict[int, float]:
        """Return a configuration's figures in a column."""
        figures = {run.seed: group.row(run.figures)[column] for run in self.configurations[name]}
        return {
            seed: figure
            for seed, figure in figures.items()
            if figure is not None and math.isfinite(figure)
        }


def sections(compared: Comparisons, but: str | None = None) -> list[tuple[str, Table]]:
    """Return the tables with their titles; ``but`` names a group to leave out."""
    groups = groups_of(compared.shown)
    return [(group.title, _means(compared, group)) for group in groups if group.key != but]


def _means(compared: Comparisons, group: Group) -> Table:
    """Mean and deviation of each figure, the paper's figure, and the difference."""
    lines = [["", *group.columns]]
    for model in compared.evaluated:
        if group.key in model.figures:
            row = group.row(model.figures)
            lines.append([model.name, *(_cell(figure) for figure in row.values())])
    for name, runs in compared.configurations.items():
        found = {column: compared.by_seed(name, group, column) for column in group.columns}
        title = f"{name}, {len(runs)} seed" + ("s" if len(runs) > 1 else "")
        lines.append([title, *(_spread_cell(seeds, len(runs)) for seeds in found.values())])
        if published := group.paper(runs[0]):
            row_name, figures = published
            lines.append([f"  paper: {row_name}", *(_cell(f, "-") for f in figures.values())])
            gaps = (_gap(found[column], figures[column]) for column in group.columns)
            lines.append(["  ours - paper", *gaps])
    return lines


def _cell(figure: float | None, missing: str = "missing") -> str:
    return missing if figure is None else f"{figure:.2f}"


def _spread_cell(by_seed: Mapping[int, float], runs: int) -> str:
    if not by_seed:
        return "missing"
    few = f" ({len(by_seed)} of {runs})" if len(by_seed) < runs else ""
    return f"{spread(list(by_seed.values()))}{few}"


def _gap(by_seed: Mapping[int, float], published: float | None) -> str:
    if published is None or not by_seed:
        return "-"
    return f"{spread(list(by_seed.values())).mean - published:+.2f}"


def render(compared: Comparisons, style: str) -> str:
    """Return verdict, tables and notes as ``text``, ``markdown`` or ``latex``."""
    heading = {"markdown": "## {}\n\n", "latex": "% {}\n", "text": "{}\n\n"}[style]
    note = {"markdown": "- {}", "latex": "% {}", "text": "{}"}[style]
    tables = [
        heading.format(title) + text_table.lay_out(lines, style)
        for title, lines in sections(compared)
    ]
    first = "\n".join(note.format(line) for line in verdict(compared))
    last = "\n".join(note.format(line) for line in notes_of(compared))
    return "\n\n".join(part for part in (first, *tables, last) if part)


def verdict(compared: Comparisons) -> list[str]:
    """Return all differences with intervals and flags; none for a configuration alone."""
    if len(compared.configurations) < 2:
        return []
    lines = []
    if away := compared.away(*compared.configurations):
        lines.append(f"Settings that differ besides the loss: {', '.join(away)}")
    if all(each.obstacle for each in compared.comparisons):
        lines.append(
            "No comparison on a test set with a constant that differs in the loss alone: dystress "
            "senteval --model FOLDER measures test sets, --baseline names a configuration"
        )
    return lines + [each.summary() for each in compared.comparisons]


def notes_of(compared: Comparisons) -> list[str]:
    """Return what a reader of the tables must know: setups, variants, what does not compare."""
    setups: dict[str, list[str]] = {}
    for name, runs in compared.configurations.items():
        setups.setdefault(_setup(runs[0]), []).append(name)
    notes = [f"Setup of {', '.join(names)}: {setup}" for setup, names in setups.items()]
    groups = groups_of(compared.shown)
    published = [run for run in compared.runs if any(group.paper(run) for group in groups)]
    if away := not_the_papers(published):
        notes.append(f"Not the paper's setup: {', '.join(away)}")
    variants = {variant for each in compared.shown for variant in each.variants}
    notes += [f"Not the published data but a variant: {variant}" for variant in sorted(variants)]
    for group in groups:
        if other := unlike(group.key, group.columns, compared.shown):
            notes.append(f"{group.title}: not comparable, measured with {other}")
    if any(each.difference.n > 1 for each in compared.comparisons):
        notes.append(
            "±: standard deviation over seeds. p: paired t test, and the interval is as wide, both "
            "corrected for all comparisons of this report (Holm). Significant: 3 seeds or more and "
            "p < 0.05."
        )
    if compared.unfinished:
        notes.append(f"Not finished and left out: {', '.join(compared.unfinished)}")
    return notes


def _setup(run: TextRun) -> str:
    settings, corpus = run.record.settings, run.record.corpus
    return (
        f"{Path(settings['model_name_or_path']).name}, {settings['pooler_type']}, "
        f"{run.record.steps:,} steps of {settings['train_batch_size']}, "
        f"learning rate {settings['learning_rate']:g}, {corpus['sentences']:,} sentences "
        f"(sha256 {corpus['sha256'][:12]}), {run.record.device}"
    )


def not_the_papers(runs: Sequence[TextRun]) -> list[str]:
    """Return the settings, apart from the loss, that are not those of the paper's text runs."""
    paper = FinishedRun(Path(), RunRecord(settings=parse(["--preset=paper"]).options()))
    as_used = {"eval_steps", "mixed_precision", "mlp_only_train"}  # the setup says the precision
    away = differing([paper, *runs], {"loss", *as_used})
    if any(run.settings.get("mlp_only_train") is False for run in runs):
        away.append("mlp_only_train")
    return away
