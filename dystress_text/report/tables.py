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
from dystress_text.report.comparison import Difference, holm, paired, spread
from dystress_text.report.page import Table
from dystress_text.report.runs import FinishedRun, by_configuration, differing
from dystress_text.report.text_runs import TRAINING, Evaluated, TextRun
from dystress_text.simcse.arguments import parse
from dystress_text.simcse.paper import ROWS, PaperRow
from dystress_text.simcse.presets import PRESETS
from dystress_text.simcse.texts import WIKI1M

_FEW = 3  # as many undecided comparisons are named one by one


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
    """The tables that these have figures for."""
    groups = []
    for key in dict.fromkeys(key for run in runs for key in run.figures):
        names = list(dict.fromkeys(name for run in runs for name in run.figures.get(key, {})))
        suite, _, kind = key.partition("/")
        if key == "retrieval":
            groups.append(Group(key, "Search x 100", tuple(names), names[0]))
        elif key == "pairs":
            groups.append(Group(key, "Own pairs, Spearman x 100", tuple(names), names[0]))
        elif kind:
            names.sort(
                key=lambda name: (
                    TASKS[kind].index(name) if name in TASKS[kind] else len(TASKS[kind])
                )
            )
            mean = (
                "avg"
                if suite != "senteval" or tuple(names) == TASKS[kind]
                else f"avg of {len(names)}"
            )
            title = GROUPS[kind] + ("" if suite == "senteval" else f", {suite} suite")
            groups.append(Group(key, title, (*names, mean), mean))
        elif names:
            groups.append(
                Group(key, "Development set, by the model that was kept", tuple(names), names[0])
            )
    return groups


def paper_row(run: TextRun) -> PaperRow | None:
    """The row of the paper's table for a run that has its encoder, data and loss."""
    settings = run.record["settings"]
    encoder, trained_on = (
        Path(settings.get(name) or "").name for name in ("model_name_or_path", "train_file")
    )
    its_own = encoder == PRESETS["paper"].settings["model_name_or_path"] and trained_on in (
        "",
        WIKI1M,
    )
    if not its_own or run.variants:
        return None
    return next((row for row in ROWS if row.loss == run.record["loss"]), None)


def unlike(key: str, columns: Sequence[str], of: Sequence[TextRun | Evaluated]) -> str:
    """In what the measurements of figures of one name differ, and of which figures; empty where in
    nothing.
    """
    differs: dict[str, list[str]] = {}
    for column in columns:
        ways = [
            each.measured.get(key, {}).get(column, {})
            for each in of
            if column in each.figures.get(key, {})
        ]
        for name in dict.fromkeys(name for way in ways for name in way):
            if len({way.get(name) for way in ways}) > 1:
                differs.setdefault(name, []).append(column)
    parts = [f"other {name} ({', '.join(columns)})" for name, columns in differs.items()]
    return f"measured with {' and '.join(parts)}" if parts else ""


@dataclass(frozen=True)
class Comparison:
    """A configuration against a baseline in a group's headline."""

    group: Group
    name: str
    baseline: str
    difference: Difference
    obstacle: str  # why the difference says nothing; empty where it does

    def in_words(self, count: int = 1) -> str:
        """What the seeds can tell, and what they cannot; corrected for a number of comparisons."""
        name, baseline, d, where = self.name, self.baseline, self.difference, self.group.where
        if self.obstacle:
            return f"{name} and {baseline} are not compared in {where}: {self.obstacle}."
        correction = f", corrected for {count} comparisons (Holm)," * (count > 1)
        interval = f"the 95 % interval{correction} is"
        if d.told:
            higher, lower = (name, baseline) if d.mean > 0 else (baseline, name)
            d = replace(d, mean=abs(d.mean))
            said = f"{higher} is {d.mean:.2f} above {lower} in {where}"
            return f"{said}; {d.seeds} seeds can tell: {interval} {d.interval(True)}."
        subtracted = f"{name} - {baseline} = {d.mean:+.2f} in {where}"
        if d.p is None:
            return f"{subtracted} ({d.interval()})."
        told = "not significant" if d.seeds > 2 else f"{d.seeds} seeds are too few to tell"
        return f"{subtracted} (95 % CI{correction} {d.interval(True)}; {d.seeds} seeds): {told}."


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
        order = {name: place for place, name in enumerate(PRESETS)}
        of = by_configuration(self.runs)
        return {
            name: of[name]
            for name in sorted(of, key=lambda name: (order.get(name, len(order)), name))
        }

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
        constants = {
            other: runs[0].constant
            for other, runs in self.configurations.items()
            if runs[0].constant and not self.away(name, other)
        }
        highest = getattr(one.temperature, "tau_max", None)
        fitting = [other for other, tau in constants.items() if tau in (0.05, highest)]
        return [other for other in fitting or constants if other != name]

    def away(self, *names: str) -> list[str]:
        """The settings, apart from the loss's, in which configurations differ; a file may have
        changed its content.
        """
        runs = [self.configurations[name][0] for name in names]
        texts = {run.record["corpus"]["sha256"] for run in runs}
        return differing(runs, {"loss"}) or ["training text"] * (len(texts) > 1)

    @cached_property
    def comparisons(self) -> list[Comparison]:
        """Each configuration against its baselines in each group's headline, with p corrected for
        all of them.

        The sets of training are left out: they chose the step that was kept.
        """
        pairs: list[tuple[str, str]] = []
        for name in self.configurations:
            pairs += [
                (name, other) for other in self.baselines_of(name) if (other, name) not in pairs
            ]
        compared = []
        for group, (name, other) in product(
            (g for g in groups_of(self.runs) if g.key != TRAINING), pairs
        ):
            difference = paired(
                *(self.by_seed(each, group, group.headline) for each in (name, other))
            )
            if difference is not None:
                compared.append(
                    Comparison(group, name, other, difference, self._obstacle(group, name, other))
                )
        corrected = iter(holm([each.difference for each in compared if not each.obstacle]))
        return [
            each if each.obstacle else replace(each, difference=next(corrected))
            for each in compared
        ]

    def _obstacle(self, group: Group, *names: str) -> str:
        """Why configurations cannot be compared in a group's headline; empty where they can."""
        runs = [run for name in names for run in self.configurations[name]]
        columns = group.columns[:-1] if group.headline == group.columns[-1] else (group.headline,)
        chose = [column for column in columns if any(run.chose(column) for run in runs)]
        if chose:
            return f"{', '.join(chose)} chose the step that was kept"
        return unlike(group.key, columns, runs)

    def by_seed(self, name: str, group: Group, column: str) -> dict[int, float]:
        """A configuration's figures in a column."""
        figures = {run.seed: group.row(run.figures)[column] for run in self.configurations[name]}
        return {
            seed: figure
            for seed, figure in figures.items()
            if figure is not None and math.isfinite(figure)
        }


def sections(compared: Comparisons, but: str | None = None) -> list[tuple[str, Table]]:
    """Titles and tables; ``but`` names a group to leave out."""
    tables = []
    for group in (group for group in groups_of(compared.shown) if group.key != but):
        tables.append((group.title, _means(compared, group)))
        if len(differences := _differences(compared, group)) > 1:
            tables.append((f"{group.title}: differences over seeds", differences))
    return tables


def _means(compared: Comparisons, group: Group) -> Table:
    """Mean and deviation of each figure, the paper's figure, and the difference."""
    lines = [["", *group.columns]]
    for model in compared.evaluated:
        if group.key in model.figures:
            figures = group.row(model.figures)
            lines.append(
                [model.name, *("missing" if f is None else f"{f:.2f}" for f in figures.values())]
            )
    for name, runs in compared.configurations.items():
        columns = [list(compared.by_seed(name, group, column).values()) for column in group.columns]
        cells = [
            f"{spread(of)}{f' ({len(of)} of {len(runs)})' * (len(of) < len(runs))}"
            if of
            else "missing"
            for of in columns
        ]
        lines.append([f"{name}, {len(runs)} seed{'s' * (len(runs) > 1)}", *cells])
        if published := group.paper(runs[0]):
            row, figures = published
            both = [*zip(columns, figures.values(), strict=True)]
            lines.append([f"  paper: {row}", *("-" if f is None else f"{f:.2f}" for _, f in both)])
            gaps = (
                "-" if f is None or not ours else f"{spread(ours).mean - f:+.2f}"
                for ours, f in both
            )
            lines.append(["  ours - paper", *gaps])
    return lines


def _differences(compared: Comparisons, group: Group) -> Table:
    """The differences of a group with their tests."""
    lines = [
        [
            "",
            "baseline",
            "common seeds",
            group.headline,
            "95 %, row alone",
            "p, row alone",
            "p, Holm",
        ]
    ]
    for each in (each for each in compared.comparisons if each.group == group):
        d = each.difference
        tests = (
            ["-", "-"]
            if d.p is None or d.corrected is None
            else [f"{d.p:.3f}", f"{min(1, d.corrected):.3f}"]
        )
        told = ["-", each.obstacle] if each.obstacle else [f"{d.mean:+.2f}", d.interval()]
        lines.append([each.name, each.baseline, str(d.seeds), *told, *tests])
    return lines


def render(compared: Comparisons, style: str) -> str:
    """The verdict, all tables and the notes below them, as ``text``, ``markdown`` or ``latex``."""
    heading = {"markdown": "## {}\n\n", "latex": "% {}\n", "text": "{}\n\n"}[style]
    note = {"markdown": "- {}", "latex": "% {}", "text": "{}"}[style]
    tables = [
        heading.format(title) + text_table.lay_out(lines, style)
        for title, lines in sections(compared)
    ]
    first, last = (
        "\n".join(map(note.format, lines)) for lines in (verdict(compared), notes_of(compared))
    )
    return "\n\n".join(part for part in (first, *tables, last) if part)


# ---- what a reader of the tables must know
# ---------------------------------------------------------------------------


def verdict(compared: Comparisons) -> list[str]:
    """Which configuration is above which, where the seeds can tell; no line for a configuration
    alone.
    """
    if len(compared.configurations) < 2:
        return []
    away = compared.away(*compared.configurations)
    lines = [f"The configurations differ in more than the temperature: {', '.join(away)}."] * bool(
        away
    )
    judged = [each for each in compared.comparisons if not each.obstacle]
    refused = [each.in_words() for each in compared.comparisons if each.obstacle]
    if not judged and not any(map(compared.baselines_of, compared.configurations)):
        lines.append(
            "Nothing is compared: there is no constant that differs in nothing else; --baseline names one."
        )
    elif not judged:
        refused.append(
            "No verdict: no set was measured alike for both sides of a comparison that did not choose the step which "
            "was kept; dystress senteval --model FOLDER measures test sets."
        )
    count = sum(each.difference.p is not None for each in judged)
    told: list[str] = []
    open_ones: list[str] = []
    for each in (each for each in judged if each.group == judged[0].group):
        changed = compared.away(each.name, each.baseline)
        doing = (
            f" It is no temperature's doing alone: they differ in {', '.join(changed)}."
            if changed
            else ""
        )
        (told if each.difference.told else open_ones).append(each.in_words(count) + doing)
    if len(open_ones) > _FEW:
        of, where = len(told + open_ones), judged[0].group.where
        open_ones = [f"{len(open_ones)} of {of} differences in {where} are not told from none."]
    return [*lines, *told, *open_ones, *refused]


def notes_of(compared: Comparisons) -> list[str]:
    """The notes below the tables, each one a sentence or two."""
    runs, configurations = compared.runs, compared.configurations
    setups: dict[str, list[str]] = {}
    for name, several in configurations.items():
        setups.setdefault(_setup(several[0]), []).append(name)
    whose = [f" of {', '.join(names)}" if len(setups) > 1 else "" for names in setups.values()]
    notes = [f"Setup{names}: {setup}." for setup, names in zip(setups, whose, strict=True)]
    published = [
        run for run in runs if any(group.paper(run) is not None for group in groups_of([run]))
    ]
    if away := not_the_papers(published):
        notes.append(
            f"Not the paper's setup ({', '.join(away)}): the lines 'ours - paper' are not about its claims."
        )
    variants = sorted({variant for each in compared.shown for variant in each.variants})
    notes += [f"Not the published data but a variant: {variant}." for variant in variants]
    for group in groups_of(compared.shown):
        if other := unlike(group.key, group.columns, compared.shown):
            notes.append(f"{group.title}: figures of one name were {other}, and do not compare.")
    single = [name for name, several in configurations.items() if len(several) == 1]
    if single:
        notes.append(
            f"One seed: no interval over seeds, and no claim about a temperature: {', '.join(single)}."
        )
    elif configurations:
        notes.append(
            "± is the standard deviation over seeds. p is that of the two-sided paired t test, which takes differences "
            "for normal; 'Holm' is p corrected for all comparisons of this report, and alone decides what is told."
        )
    return notes + [f"Not finished and left out: {', '.join(compared.unfinished)}."] * bool(
        compared.unfinished
    )


def _setup(run: TextRun) -> str:
    """What was trained on what, in a line."""
    settings, corpus = run.record["settings"], run.record["corpus"]
    return (
        f"{Path(settings['model_name_or_path']).name}, {settings['pooler_type']}, {run.record['steps']:,} steps of "
        f"{settings['train_batch_size']}, learning rate {settings['learning_rate']:g}, {corpus['sentences']:,} "
        f"sentences (sha256 {corpus['sha256'][:12]}), {run.record['device']}"
    )


def not_the_papers(runs: Sequence[TextRun]) -> list[str]:
    """The settings, apart from the temperature's, that are not those of the paper's text runs."""
    paper = FinishedRun(Path(), {"settings": parse(["--preset=paper"]).options()})
    as_used = {
        "eval_steps",
        "mixed_precision",
        "mlp_only_train",
    }  # the setup's line has the precision that was used
    away = differing([paper, *runs], {"loss", *as_used})
    return away + ["mlp_only_train"] * any(
        run.settings.get("mlp_only_train") is False for run in runs
    )
