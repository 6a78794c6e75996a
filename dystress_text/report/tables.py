"""Tables of a sweep: mean and deviation over seeds, the paper's figures, tests against constants, and notes on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from scipy import stats

from dystress_text.cli import text_table
from dystress_text.cli.options import check_names
from dystress_text.core.registry import TEMPERATURES
from dystress_text.evaluation.catalogue import GROUPS, TASKS, Row, average
from dystress_text.report.comparison import Difference, paired, spread
from dystress_text.report.page import Table
from dystress_text.report.runs import OF_THE_LOSS, FinishedRun, by_configuration, differing
from dystress_text.report.text_runs import TRAINING, Evaluated, TextRun
from dystress_text.simcse.arguments import parse
from dystress_text.simcse.paper import ROWS, PaperRow
from dystress_text.simcse.presets import PRESETS
from dystress_text.simcse.texts import WIKI1M

_FEW = 3  # as many undecided comparisons are named one by one


@dataclass(frozen=True)
class Group:
    """Figures that stand in one table."""

    key: str  # of :attr:`dystress_text.report.runs.TextRun.figures`
    title: str  # of the table
    columns: tuple[str, ...]  # in order; the last may be the average
    headline: str  # the column that comparisons are about

    @property
    def where(self) -> str:
        """The headline and its table in words."""
        return f"{self.headline} ({self.title})"

    def row(self, run: TextRun | Evaluated) -> Row:
        """The run's figures, None where there is none."""
        return self._averaged(run.figures.get(self.key, {}))

    def paper(self, run: TextRun) -> tuple[str, Row] | None:
        """The paper's row for the run: its name, and figures over the same tasks."""
        suite, _, kind = self.key.partition("/")
        row = paper_row(run) if suite == "senteval" and kind in TASKS else None
        return None if row is None else (row.name, self._averaged(row.figures(kind)))

    def _averaged(self, figures: Row) -> Row:
        row: Row = {column: figures.get(column) for column in self.columns}
        if self.headline.startswith("avg"):
            row[self.headline] = average({column: row[column] for column in self.columns if column != self.headline})
        return row


def groups_of(runs: Sequence[TextRun | Evaluated]) -> list[Group]:
    """The tables that these have figures for."""
    found = []
    for key in dict.fromkeys(key for run in runs for key in run.figures):
        names = list(dict.fromkeys(name for run in runs for name in run.figures.get(key, {})))
        suite, _, kind = key.partition("/")
        if key == "retrieval":
            found.append(Group(key, "Search x 100", tuple(names), names[0]))
        elif kind:
            names.sort(key=lambda name: TASKS[kind].index(name) if name in TASKS[kind] else len(TASKS[kind]))
            mean = "avg" if suite != "senteval" or tuple(names) == TASKS[kind] else f"avg of {len(names)}"
            title = GROUPS[kind] + ("" if suite == "senteval" else f", {suite} suite")
            found.append(Group(key, title, (*names, mean), mean))
        elif names:
            found.append(Group(key, "Development set, by the model that was kept", tuple(names), names[0]))
    return found


def paper_row(run: TextRun) -> PaperRow | None:
    """The row of the paper's table for a run that has its encoder, data, objective and temperature."""
    settings, temperature = run.record["settings"], run.temperature
    encoder, trained_on = (Path(settings.get(name) or "").name for name in ("model_name_or_path", "train_file"))
    its_own = encoder == PRESETS["paper"].settings["model_name_or_path"] and trained_on in ("", WIKI1M)
    if not its_own or run.variants or not settings.get("detach_temperature"):
        return None
    for row in ROWS:
        values = {"tau" if name == "temp" else name: value for name, value in row.loss.items()}
        kind = TEMPERATURES[values.pop("temperature")].__name__
        wanted = {"objective": values.pop("objective", "infonce"), "rows": values.pop("rows", None), "rule": None}
        if temperature == (kind, values) and all(settings.get(name) == value for name, value in wanted.items()):
            return row
    return None


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
        """The runs by configuration, the paper's rows in its order first; runs that do not go together are refused."""
        order = {name: place for place, name in enumerate(PRESETS)}
        found = by_configuration(self.runs)
        return {name: found[name] for name in sorted(found, key=lambda name: (order.get(name, len(order)), name))}

    def __post_init__(self) -> None:
        check_names("baseline", self.baselines, self.configurations)  # runs that do not go together are refused here

    def baselines_of(self, name: str) -> list[str]:
        """The configurations that one is compared with: the user's, else constants that are SimCSE's or its own end.

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
        fitting = [other for other, tau in constants.items() if tau in (0.05, one.temperature[1].get("tau_max"))]
        return [other for other in fitting or constants if other != name]

    def away(self, *names: str) -> list[str]:
        """The settings, apart from the loss's, in which configurations differ; a file may have changed its content."""
        runs = [self.configurations[name][0] for name in names]
        texts = {run.record["corpus"]["sha256"] for run in runs}
        return differing(runs, OF_THE_LOSS) or ["training text"] * (len(texts) > 1)

    def differences(self, group: Group) -> list[tuple[str, str, Difference]]:
        """Each configuration against its baselines in the group's headline, over the seeds that both have."""
        found = []
        for name in self.configurations:
            ours = self.by_seed(name, group, group.headline)
            for baseline in self.baselines_of(name):
                difference = paired(ours, self.by_seed(baseline, group, group.headline))
                if difference is not None:
                    found.append((name, baseline, difference))
        return found

    def by_seed(self, name: str, group: Group, column: str) -> dict[int, float]:
        """A configuration's figures in a column."""
        found = {run.seed: group.row(run)[column] for run in self.configurations[name]}
        return {seed: figure for seed, figure in found.items() if figure is not None}


def sections(compared: Comparisons, but: str | None = None) -> list[tuple[str, Table]]:
    """Titles and tables; ``but`` names a group to leave out."""
    found = []
    for group in groups_of(compared.shown):
        if group.key != but:
            found.append((group.title, _means(compared, group)))
            differences = _differences(compared, group)
            if len(differences) > 1:
                found.append((f"{group.title}: differences over seeds", differences))
    return found


def _means(compared: Comparisons, group: Group) -> Table:
    """Mean and deviation of each figure, the paper's figure, and the difference."""
    lines = [["", *group.columns]]
    for model in compared.evaluated:
        if group.key in model.figures:
            found = group.row(model)
            lines.append([model.name, *("missing" if f is None else f"{f:.2f}" for f in found.values())])
    for name, runs in compared.configurations.items():
        columns = [list(compared.by_seed(name, group, column).values()) for column in group.columns]
        cells = [
            f"{spread(of)}{f' ({len(of)} of {len(runs)})' * (len(of) < len(runs))}" if of else "missing"
            for of in columns
        ]
        lines.append([f"{name}, {len(runs)} seed{'s' * (len(runs) > 1)}", *cells])
        if published := group.paper(runs[0]):
            row, figures = published
            theirs = [figures[column] for column in group.columns]
            gaps = [
                spread(of).mean - f if of and f is not None else None for of, f in zip(columns, theirs, strict=True)
            ]
            lines.append([f"  paper: {row}", *("-" if f is None else f"{f:.2f}" for f in theirs)])
            lines.append(["  ours - paper", *("-" if gap is None else f"{gap:+.2f}" for gap in gaps)])
    return lines


def _differences(compared: Comparisons, group: Group) -> Table:
    """The differences of a group with their tests."""
    found = compared.differences(group)
    tested = [d.p for _, _, d in found if d.p is not None]
    adjusted = iter(stats.false_discovery_control(tested) if tested else [])
    lines = [["", "baseline", "common seeds", group.headline, "95 % over seeds", "p", "p, all rows"]]
    for name, baseline, d in found:
        tests = ["-", "-"] if d.p is None else [f"{d.p:.3f}", f"{next(adjusted):.3f}"]
        lines.append([name, baseline, str(d.seeds), f"{d.mean:+.2f}", d.interval, *tests])
    return lines


def render(compared: Comparisons, style: str) -> str:
    """The verdict, all tables and the notes below them, as ``text``, ``markdown`` or ``latex``."""
    heading = {"markdown": "## {}\n\n", "latex": "% {}\n", "text": "{}\n\n"}[style]
    note = {"markdown": "- {}", "latex": "% {}", "text": "{}"}[style]
    tables = [heading.format(title) + text_table.lay_out(lines, style) for title, lines in sections(compared)]
    first, last = ("\n".join(map(note.format, lines)) for lines in (verdict(compared), notes_of(compared)))
    return "\n\n".join(part for part in (first, *tables, last) if part)


# ---- what a reader of the tables must know ---------------------------------------------------------------------------


def verdict(compared: Comparisons) -> list[str]:
    """Which configuration is higher, by how much, and whether the seeds can tell; no line for a configuration alone."""
    if len(compared.configurations) < 2:
        return []
    away = compared.away(*compared.configurations)
    lines = [f"The configurations differ in more than the temperature: {', '.join(away)}."] * bool(away)
    groups = sorted(groups_of(compared.runs), key=lambda group: group.key == TRAINING)  # test sets first
    group, found = next(((g, found) for g in groups if (found := compared.differences(g))), (None, []))
    if group is None:
        return [*lines, "Nothing is compared: there is no constant that differs in nothing else; --baseline names one."]
    told, open_ones = [], []
    for name, baseline, difference in found:
        higher, lower, d = (name, baseline, difference) if difference.mean >= 0 else (baseline, name, -difference)
        line = f"{higher} is {d.mean:.2f} above {lower} in {group.where}"
        if changed := compared.away(name, baseline):
            open_ones.append(f"{line}, which is no temperature's doing alone: they differ in {', '.join(changed)}.")
        elif d.low is None:
            open_ones.append(f"{line}, with one seed: nobody can tell whether that is the temperature or the seed.")
        elif d.low > 0 and d.seeds > 2:
            told.append(f"{line}; {d.seeds} seeds can tell: the 95 % interval is {d.interval}.")
        else:
            too = "are too few to" if d.seeds == 2 else "cannot"
            open_ones.append(f"{line}, but {d.seeds} seeds {too} tell: the 95 % interval is {d.interval}.")
    if len(open_ones) > _FEW:
        open_ones = [f"{len(open_ones)} of {len(found)} differences in {group.where} are not told from none."]
    return [*lines, *told, *open_ones]


def notes_of(compared: Comparisons) -> list[str]:
    """The notes below the tables, each one a sentence or two."""
    runs, configurations = compared.runs, compared.configurations
    setups: dict[str, list[str]] = {}
    for name, several in configurations.items():
        setups.setdefault(_setup(several[0]), []).append(name)
    whose = [f" of {', '.join(names)}" if len(setups) > 1 else "" for names in setups.values()]
    notes = [f"Setup{names}: {setup}." for setup, names in zip(setups, whose, strict=True)]
    published = [run for run in runs if any(group.paper(run) is not None for group in groups_of([run]))]
    if away := not_the_papers(published):
        notes.append(f"Not the paper's setup ({', '.join(away)}): the lines 'ours - paper' are not about its claims.")
    variants = sorted({variant for each in compared.shown for variant in each.variants})
    notes += [f"Not the published data but a variant: {variant}." for variant in variants]
    single = [name for name, several in configurations.items() if len(several) == 1]
    if single:
        notes.append(f"One seed: no interval, and no claim about a temperature: {', '.join(single)}.")
    elif configurations:
        least = min(map(len, configurations.values()))
        notes.append(
            f"± is the standard deviation over seeds. p is that of the two-sided sign-flip test, at least "
            f"{2 / 2**least:.3g} with {least} seeds; 'all rows' is p after Benjamini and Hochberg over the table."
        )
    return notes + [f"Not finished and left out: {', '.join(compared.unfinished)}."] * bool(compared.unfinished)


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
    as_used = {"eval_steps", "mixed_precision", "mlp_only_train"}  # the setup's line has the precision that was used
    away = differing([paper, *runs], OF_THE_LOSS | as_used)
    return away + ["mlp_only_train"] * any(run.settings.get("mlp_only_train") is False for run in runs)
