"""Result tables: plain text, Markdown, LaTeX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dystress_text.cli.text_table import lay_out
from dystress_text.evaluation.catalogue import Row, average

MISSING = "missing"


def table(rows: Mapping[str, Row], tasks: Sequence[str], whole: bool, style: str = "text") -> str:
    """A table with a column for each task and their average.

    Args:
        rows: figures by label; None where a task gave none.
        tasks: the columns, in order.
        whole: whether ``tasks`` is a whole group; otherwise the last column says of how many tasks it is the average.
        style: one of :data:`dystress_text.cli.text_table.FORMATS`.
    """
    header = ["", *tasks, "avg" if whole else f"avg of {len(tasks)}"]
    body = []
    for label, row in rows.items():
        figures = {task: row[task] for task in tasks}
        mean = average(figures)
        cells = [MISSING if figure is None else f"{figure:.2f}" for figure in figures.values()]
        body.append([label, *cells, "-" if mean is None else f"{mean:.2f}"])
    return lay_out([header, *body], style)
