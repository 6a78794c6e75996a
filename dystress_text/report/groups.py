"""Groups of figures that stand in one table, with the paper's figures for them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from dystress_text.evaluation.catalogue import GROUPS, TASKS, Row, average
from dystress_text.report.runs import RunFigures, temperature_values
from dystress_text.simcse.objective import TEXT
from dystress_text.simcse.paper import ROWS, PaperRow
from dystress_text.training.build_loss import build_objective
from dystress_text.training.settings import LossSettings


@dataclass(frozen=True)
class Group:
    """Figures that stand in one table.

    Attributes:
        key: of :attr:`dystress_text.report.runs.RunFigures.figures`.
        title: of the table.
        columns: in order; the last may be the average.
        headline: the column that comparisons are about.
    """

    key: str
    title: str
    columns: tuple[str, ...]
    headline: str

    def row(self, run: RunFigures) -> Row:
        """The run's figures, None where there is none."""
        return self._averaged({column: run.figures.get(self.key, {}).get(column) for column in self.columns})

    def paper(self, run: RunFigures) -> Row | None:
        """The paper's figures for the run's objective and temperature, averaged over the same tasks."""
        suite, _, kind = self.key.partition("/")
        published = paper_row(run)
        if suite != "senteval" or published is None:
            return None
        figures = published.figures(kind)
        return self._averaged({column: figures.get(column) for column in self.columns})

    def _averaged(self, row: Row) -> Row:
        if self.headline.startswith("avg"):
            row[self.headline] = average({column: row[column] for column in self.columns if column != self.headline})
        return row


def groups_of(runs: Sequence[RunFigures]) -> list[Group]:
    """The tables that these runs have figures for."""
    found = []
    for key in dict.fromkeys(key for run in runs for key in run.figures):
        names = list(dict.fromkeys(name for run in runs for name in run.figures.get(key, {})))
        suite, _, kind = key.partition("/")
        if not kind:
            if names:
                found.append(Group(key, "Development set, by the model that was kept", tuple(names), names[0]))
            continue
        names.sort(key=lambda name: TASKS[kind].index(name) if name in TASKS[kind] else len(TASKS[kind]))
        whole = suite != "senteval" or tuple(names) == TASKS[kind]
        mean = "avg" if whole else f"avg of {len(names)}"
        title = GROUPS[kind] + ("" if suite == "senteval" else f", {suite} suite")
        found.append(Group(key, title, (*names, mean), mean))
    return found


def paper_row(run: RunFigures) -> PaperRow | None:
    """The row of the paper's table with the run's objective and temperature."""
    if not run.record["settings"].get("detach_temperature"):
        return None
    row = _paper_rows().get((run.record["objective"], run.temperature.key))
    return row if row is None or row.loss.get("rows") == run.options["rows"] else None


@cache
def _paper_rows() -> dict[tuple[str, Any], PaperRow]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the logit of some rows falls
        built = [(build_objective(LossSettings(**row.loss), TEXT), row) for row in ROWS]
    return {(type(o).__name__, temperature_values(repr(o.temperature)).key): row for o, row in built}
