"""Tables of a sweep: mean and deviation over seeds, the paper's figures, and tests against constant temperatures."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from scipy import stats

from dystress_text.cli.text_table import lay_out
from dystress_text.errors import UserError
from dystress_text.report.comparison import Difference, over_pairs, paired, spread
from dystress_text.report.run_figures import Group, RunFigures, differing_otherwise, groups_of
from dystress_text.simcse.presets import PRESETS

FORMATS = ("text", "markdown", "latex", "csv", "html")
ONE_SEED = "one seed: no interval"
COLUMNS = (
    "group", "configuration", "task", "seeds", "mean", "deviation", "paper", "difference_from_paper", "baseline",
    "common_seeds", "difference", "low", "high", "p", "exact", "pairs_low", "pairs_high", "note",
)  # fmt: skip


@dataclass(frozen=True)
class Report:
    """What is to be printed.

    Attributes:
        runs: finished ones.
        unfinished: names of the others.
        baselines: configurations named by the user; empty for the ones that fit.
        resamples: of the bootstrap over pairs; 0 for none.
    """

    runs: Sequence[RunFigures]
    unfinished: Sequence[str]
    baselines: Sequence[str]
    resamples: int

    @cached_property
    def configurations(self) -> dict[str, list[RunFigures]]:
        """The runs by configuration, the paper's rows in its order first."""
        order = list(PRESETS)
        names = sorted({run.configuration for run in self.runs})
        names.sort(key=lambda name: order.index(name) if name in order else len(order))
        return {name: [run for run in self.runs if run.configuration == name] for name in names}

    def baselines_of(self, name: str) -> list[str]:
        """The configurations that one is held against.

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
        fitting = [other for other, tau in constants.items() if tau in (0.05, one.parameter("tau_max"))]
        if one.constant == 0.05:
            return []
        return [other for other in fitting or constants if other != name]

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

    def means(self, group: Group) -> list[list[str]]:
        """Mean and deviation of each figure, the paper's, and the difference."""
        lines = [["", *group.columns]]
        for name, runs in self.configurations.items():
            cells, means = [], []
            for column in group.columns:
                figures = list(self.by_seed(name, group, column).values())
                means.append(spread(figures).mean if figures else None)
                fewer = f" ({len(figures)} of {len(runs)})" if 0 < len(figures) < len(runs) else ""
                cells.append(f"{spread(figures)}{fewer}" if figures else "missing")
            lines.append([f"{name}, {len(runs)} seed{'s' if len(runs) > 1 else ''}", *cells])
            paper = group.paper(runs[0])
            if paper is not None and runs[0].paper_row is not None:
                theirs = [paper[column] for column in group.columns]
                lines.append(
                    [f"  paper: {runs[0].paper_row.name}", *("-" if f is None else f"{f:.2f}" for f in theirs)]
                )
                gaps = [None if m is None or f is None else m - f for m, f in zip(means, theirs, strict=True)]
                lines.append(["  ours - paper", *("-" if gap is None else f"{gap:+.2f}" for gap in gaps)])
        return lines

    def comparisons(self, group: Group) -> list[list[str]]:
        """Each configuration against its baselines in the group's headline, over seeds; empty without any."""
        found = [
            (name, baseline, difference)
            for name in self.configurations
            for baseline in self.baselines_of(name)
            if (difference := self.difference(name, baseline, group, group.headline)) is not None
        ]
        tested = [difference.p for _, _, difference in found if difference.p is not None]
        adjusted = iter(stats.false_discovery_control(tested) if tested else [])
        lines = [["", "baseline", "common seeds", group.headline, "95 % over seeds", "p", "p, all rows"]]
        for name, baseline, d in found:
            if d.low is None or d.high is None or d.p is None:
                verdict = [ONE_SEED, "-", "-"]
            else:
                verdict = [
                    f"{d.low:+.2f} to {d.high:+.2f}",
                    f"{d.p:.3f}{'' if d.exact else ' (sampled)'}",
                    f"{next(adjusted):.3f}",
                ]
            lines.append([name, baseline, str(d.seeds), f"{d.mean:+.2f}", *verdict])
        return lines if found else []

    def pair_intervals(self, group: Group) -> list[list[str]]:
        """Each configuration against its baselines task by task, over sentence pairs; empty where none are stored."""
        tasks = [task for task in group.columns if any(task in run.pairs for run in self.runs)]
        lines = []
        for name in self.configurations:
            for baseline in self.baselines_of(name):
                cells = []
                for task in tasks:
                    ends = self.interval_over_pairs(name, baseline, task)
                    cells.append("-" if ends is None else f"{ends[0]:+.2f} to {ends[1]:+.2f}")
                if set(cells) - {"-"}:
                    lines.append([name, baseline, *cells])
        return [["", "baseline", *tasks], *lines] if lines else []

    def notes(self) -> list[str]:
        """What a reader of the tables must know."""
        notes = [f"Setup: {setup(self.runs[0])}."]
        away = not_the_papers(self.runs)
        if away:
            notes.append(
                f"Not the paper's setup ({', '.join(away)}): the lines 'ours - paper' say nothing about its claims."
            )
        otherwise = differing_otherwise(self.runs)
        if otherwise:
            notes.append(f"Not the temperature alone differs between the configurations: {', '.join(otherwise)} too.")
        variants = sorted({variant for run in self.runs for variant in run.variants})
        notes += [f"Not the published data but a variant: {variant}." for variant in variants]
        single = [name for name, runs in self.configurations.items() if len(runs) == 1]
        if single:
            notes.append(f"One seed: no interval, and no claim about a temperature: {', '.join(single)}.")
        least = min(len(runs) for runs in self.configurations.values())
        if least > 1:
            notes.append(
                f"± is the standard deviation over seeds; p is the two-sided sign-flip test's, which is at least "
                f"{2 / 2**least:.3g} with {least} seeds; 'all rows' is it after Benjamini and Hochberg over the table."
            )
        if self.resamples and any(run.pairs for run in self.runs):
            notes.append("Intervals over sentence pairs take the models as they are: they hold for no other seed.")
        if not any(self.baselines_of(name) for name in self.configurations):
            notes.append(
                "No constant-temperature baseline beside these runs: nothing is tested; --baseline names another."
            )
        left = [run.folder.name for run in self.runs if len(run.figures) == 1]
        if left:
            notes.append(f"Not evaluated: {', '.join(left)}.")
        if self.unfinished:
            notes.append(f"Not finished and left out: {', '.join(self.unfinished)}.")
        return notes

    def sections(self, but: str | None = None) -> list[tuple[str, list[list[str]]]]:
        """Titles and tables, but for a group's."""
        found = []
        for group in groups_of(self.runs):
            if group.key == but:
                continue
            found.append((group.title, self.means(group)))
            comparisons = self.comparisons(group)
            if comparisons:
                found.append((f"{group.title}: differences over seeds", comparisons))
            pairs = self.pair_intervals(group) if group.key.endswith("sts") and self.resamples else []
            if pairs:
                found.append((f"{group.title}: 95 % intervals of the differences over sentence pairs", pairs))
        return found

    def rows(self) -> list[dict[str, object]]:
        """Every figure and comparison, one in a row, by :data:`COLUMNS`."""
        return [
            row
            for group in groups_of(self.runs)
            for name in self.configurations
            for column in group.columns
            for row in self._rows_of(group, name, column)
        ]

    def _rows_of(self, group: Group, name: str, column: str) -> list[dict[str, object]]:
        figures = list(self.by_seed(name, group, column).values())
        if not figures:
            return []
        over = spread(figures)
        paper = (group.paper(self.configurations[name][0]) or {}).get(column)
        common: dict[str, object] = {
            "group": group.key, "configuration": name, "task": column, "seeds": over.seeds, "mean": over.mean,
            "deviation": over.deviation, "paper": paper,
            "difference_from_paper": None if paper is None else over.mean - paper,
            "note": ONE_SEED if over.seeds == 1 else "",
        }  # fmt: skip
        rows = []
        for baseline in self.baselines_of(name):
            d = self.difference(name, baseline, group, column)
            if d is not None:
                ends = self.interval_over_pairs(name, baseline, column) or (None, None)
                rows.append(
                    common | {
                        "baseline": baseline, "common_seeds": d.seeds, "difference": d.mean, "low": d.low,
                        "high": d.high, "p": d.p, "exact": d.exact if d.p is not None else None, "pairs_low": ends[0],
                        "pairs_high": ends[1], "note": ONE_SEED if d.seeds == 1 else "",
                    }
                )  # fmt: skip
        return rows or [common]


def setup(run: RunFigures) -> str:
    """What was trained on what, in a line."""
    settings, corpus = run.record["settings"], run.record["corpus"]
    return (
        f"{Path(settings['model_name_or_path']).name}, {settings['pooler_type']}, {run.record['steps']:,} steps of "
        f"{settings['train_batch_size']}, learning rate {settings['learning_rate']:g}, {corpus['sentences']:,} "
        f"sentences (sha256 {corpus['sha256'][:12]}), {run.record['device']}"
    )


def not_the_papers(runs: Sequence[RunFigures]) -> list[str]:
    """The settings, apart from the temperature's, that are not those of the paper's text runs."""
    paper = {**PRESETS["paper"].settings, "max_steps": -1, "max_train_samples": None, "train_file": None}
    paper |= {"supervised": False, "bidirectional": False, "do_mlm": False, "lora_rank": None}
    del paper["eval_steps"], paper["objective"]
    away = [name for name, value in paper.items() if any(run.settings.get(name) != value for run in runs)]
    return away + ["mlp_only_train"] * any(run.settings["mlp_only_train"] is False for run in runs)


def render(report: Report, style: str) -> str:
    """The whole report in one of :data:`FORMATS`.

    Raises:
        UserError: html without the ``plots`` extra, or a run whose log cannot be read.
    """
    if style == "csv":
        out = io.StringIO()
        writer = csv.DictWriter(out, COLUMNS, lineterminator="\n")
        writer.writeheader()
        for row in report.rows():
            writer.writerow({key: f"{v:.4f}" if isinstance(v, float) else v for key, v in row.items()})
        return out.getvalue().removesuffix("\n")
    if style == "html":
        from dystress_text.report.page import page_of  # which takes its tables from here

        return page_of(report)
    heading = {"markdown": "## {}\n\n", "latex": "% {}\n", "text": "{}\n\n"}[style]
    note = {"markdown": "- {}", "latex": "% {}", "text": "{}"}[style]
    parts = [heading.format(title) + lay_out(lines, style) for title, lines in report.sections()]
    return "\n\n".join([*parts, "\n".join(note.format(line) for line in report.notes())])
