"""Tables of a sweep: mean and deviation over seeds, the paper's figures, and tests against constant temperatures."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from scipy import stats

from dystress_text.cli import text_table
from dystress_text.errors import UserError
from dystress_text.report.comparison import Difference, over_pairs, paired, spread
from dystress_text.report.groups import Group, groups_of, paper_row
from dystress_text.report.runs import RunFigures
from dystress_text.simcse.presets import PRESETS

FORMATS = (*text_table.FORMATS, "csv", "html")
ONE_SEED = "one seed: no interval"
COLUMNS = (
    "group", "configuration", "task", "seeds", "mean", "deviation", "paper", "difference_from_paper", "baseline",
    "common_seeds", "difference", "low", "high", "p", "exact", "pairs_low", "pairs_high", "note",
)  # fmt: skip
Table = list[list[str]]  # cells as text, the header first


@dataclass(frozen=True)
class Comparisons:
    """Runs by configuration, and which configurations are compared.

    Attributes:
        runs: finished ones.
        unfinished: names of the others.
        baselines: configurations named by the user; empty for the ones that fit.
        resamples: of the bootstrap over pairs; 0 for none.
    """

    runs: Sequence[RunFigures]
    unfinished: Sequence[str] = ()
    baselines: Sequence[str] = ()
    resamples: int = 0

    @cached_property
    def configurations(self) -> dict[str, list[RunFigures]]:
        """The runs by configuration, the paper's rows in its order first."""
        order = list(PRESETS)
        names = sorted({run.configuration for run in self.runs})
        names.sort(key=lambda name: order.index(name) if name in order else len(order))
        return {name: [run for run in self.runs if run.configuration == name] for name in names}

    def baselines_of(self, name: str) -> list[str]:
        """The configurations that one is compared with.

        Raises:
            UserError: an unknown name among the user's.
        """
        for baseline in self.baselines:
            if baseline not in self.configurations:
                raise UserError(f"--baseline: no {baseline!r}; there are {', '.join(self.configurations)}")
        if self.baselines:
            return [baseline for baseline in self.baselines if baseline != name]
        one = self.configurations[name][0]
        constants = {other: runs[0].constant for other, runs in self.configurations.items() if runs[0].constant}
        fitting = [
            other for other, tau in constants.items() if tau in (0.05, one.temperature.parameters.get("tau_max"))
        ]
        if one.constant == 0.05:
            return []
        return [other for other in fitting or constants if other != name]

    def pairs(self) -> Iterator[tuple[str, str]]:
        """Each configuration with each of its baselines."""
        for name in self.configurations:
            for baseline in self.baselines_of(name):
                yield name, baseline

    def by_seed(self, name: str, group: Group, column: str) -> dict[int, float]:
        """A configuration's figures in a column."""
        found = {run.seed: group.row(run)[column] for run in self.configurations[name]}
        return {seed: figure for seed, figure in found.items() if figure is not None}

    def difference(self, name: str, baseline: str, group: Group, column: str) -> Difference | None:
        """The paired difference over seeds; None without a seed that both have."""
        return paired(self.by_seed(name, group, column), self.by_seed(baseline, group, column))

    def interval_over_pairs(self, name: str, baseline: str, task: str) -> tuple[float, float] | None:
        """The bootstrap interval; None where one of the two has no stored pairs of the task."""
        ours, theirs = (
            {run.seed: run.pairs[task] for run in self.configurations[each] if task in run.pairs}
            for each in (name, baseline)
        )
        return over_pairs(ours, theirs, self.resamples)


def sections(compared: Comparisons, but: str | None = None) -> list[tuple[str, Table]]:
    """Titles and tables; ``but`` names a group to leave out."""
    found = []
    for group in groups_of(compared.runs):
        if group.key == but:
            continue
        found.append((group.title, _means(compared, group)))
        differences = _differences(compared, group)
        if differences:
            found.append((f"{group.title}: differences over seeds", differences))
        intervals = _pair_intervals(compared, group) if group.key.endswith("sts") and compared.resamples else []
        if intervals:
            found.append((f"{group.title}: 95 % intervals of the differences over sentence pairs", intervals))
    return found


def _means(compared: Comparisons, group: Group) -> Table:
    """Mean and deviation of each figure, the paper's figure, and the difference."""
    lines = [["", *group.columns]]
    for name, runs in compared.configurations.items():
        cells: list[str] = []
        means: list[float | None] = []
        for column in group.columns:
            figures = list(compared.by_seed(name, group, column).values())
            means.append(spread(figures).mean if figures else None)
            fewer = f" ({len(figures)} of {len(runs)})" if len(figures) < len(runs) else ""
            cells.append(f"{spread(figures)}{fewer}" if figures else "missing")
        lines.append([f"{name}, {len(runs)} seed{'s' if len(runs) > 1 else ''}", *cells])
        published, row = group.paper(runs[0]), paper_row(runs[0])
        if published is not None and row is not None:
            theirs = [published[column] for column in group.columns]
            gaps = [None if m is None or f is None else m - f for m, f in zip(means, theirs, strict=True)]
            lines.append([f"  paper: {row.name}", *("-" if f is None else f"{f:.2f}" for f in theirs)])
            lines.append(["  ours - paper", *("-" if gap is None else f"{gap:+.2f}" for gap in gaps)])
    return lines


def _differences(compared: Comparisons, group: Group) -> Table:
    """Each configuration against its baselines in the group's headline, over seeds; empty without any."""
    found = [
        (name, baseline, difference)
        for name, baseline in compared.pairs()
        if (difference := compared.difference(name, baseline, group, group.headline)) is not None
    ]
    tested = [difference.p for _, _, difference in found if difference.p is not None]
    adjusted = iter(stats.false_discovery_control(tested) if tested else [])
    lines = [["", "baseline", "common seeds", group.headline, "95 % over seeds", "p", "p, all rows"]]
    for name, baseline, d in found:
        if d.low is None or d.high is None or d.p is None:
            verdict = [ONE_SEED, "-", "-"]
        else:
            sampled = "" if d.exact else " (sampled)"
            verdict = [f"{d.low:+.2f} to {d.high:+.2f}", f"{d.p:.3f}{sampled}", f"{next(adjusted):.3f}"]
        lines.append([name, baseline, str(d.seeds), f"{d.mean:+.2f}", *verdict])
    return lines if found else []


def _pair_intervals(compared: Comparisons, group: Group) -> Table:
    """Each configuration against its baselines task by task, over sentence pairs; empty where none are stored."""
    tasks = [task for task in group.columns if any(task in run.pairs for run in compared.runs)]
    lines = []
    for name, baseline in compared.pairs():
        intervals = [compared.interval_over_pairs(name, baseline, task) for task in tasks]
        if any(intervals):
            cells = ("-" if ends is None else f"{ends[0]:+.2f} to {ends[1]:+.2f}" for ends in intervals)
            lines.append([name, baseline, *cells])
    return [["", "baseline", *tasks], *lines] if lines else []


def csv_table(compared: Comparisons) -> str:
    """Every figure and every comparison, one in a row, by :data:`COLUMNS`."""
    out = io.StringIO()
    writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for group in groups_of(compared.runs):
        for name in compared.configurations:
            for column in group.columns:
                for row in _rows_of(compared, group, name, column):
                    writer.writerow({key: f"{v:.4f}" if isinstance(v, float) else v for key, v in row.items()})
    return out.getvalue().removesuffix("\n")


def _rows_of(compared: Comparisons, group: Group, name: str, column: str) -> list[dict[str, object]]:
    figures = list(compared.by_seed(name, group, column).values())
    if not figures:
        return []
    over = spread(figures)
    paper = (group.paper(compared.configurations[name][0]) or {}).get(column)
    common: dict[str, object] = {
        "group": group.key, "configuration": name, "task": column, "seeds": over.seeds, "mean": over.mean,
        "deviation": over.deviation, "paper": paper,
        "difference_from_paper": None if paper is None else over.mean - paper,
        "note": ONE_SEED if over.seeds == 1 else "",
    }  # fmt: skip
    rows = []
    for baseline in compared.baselines_of(name):
        d = compared.difference(name, baseline, group, column)
        if d is not None:
            ends = compared.interval_over_pairs(name, baseline, column) or (None, None)
            rows.append(
                common | {
                    "baseline": baseline, "common_seeds": d.seeds, "difference": d.mean, "low": d.low,
                    "high": d.high, "p": d.p, "exact": d.exact if d.p is not None else None, "pairs_low": ends[0],
                    "pairs_high": ends[1], "note": ONE_SEED if d.seeds == 1 else "",
                }
            )  # fmt: skip
    return rows or [common]


def render(compared: Comparisons, notes: Sequence[str], style: str) -> str:
    """All tables and the notes below them, as ``text``, ``markdown`` or ``latex``."""
    heading = {"markdown": "## {}\n\n", "latex": "% {}\n", "text": "{}\n\n"}[style]
    note = {"markdown": "- {}", "latex": "% {}", "text": "{}"}[style]
    tables = [heading.format(title) + text_table.lay_out(lines, style) for title, lines in sections(compared)]
    return "\n\n".join([*tables, "\n".join(note.format(line) for line in notes)])
