"""Result tables: plain text, Markdown, LaTeX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

FORMATS = ("text", "markdown", "latex")
MISSING = "missing"

Row = dict[str, float | None]  # figures by task; None where a task gave none


def average(row: Row) -> float | None:
    """Mean of the rounded figures, as the published averages are made; None if one is missing."""
    figures = [figure for figure in row.values() if figure is not None]
    return round(sum(figures) / len(figures), 2) if figures and len(figures) == len(row) else None


def table(rows: Mapping[str, Row], tasks: Sequence[str], whole: bool, style: str = "text") -> str:
    """A table with a column for each task and their average.

    Args:
        rows: figures by label.
        tasks: the columns, in order.
        whole: whether ``tasks`` is a whole group; otherwise the last column says of how many tasks it is the average.
        style: one of :data:`FORMATS`.
    """
    header = ["", *tasks, "avg" if whole else f"avg of {len(tasks)}"]
    body = []
    for label, row in rows.items():
        figures = {task: row[task] for task in tasks}
        mean = average(figures)
        cells = [MISSING if figure is None else f"{figure:.2f}" for figure in figures.values()]
        body.append([label, *cells, "-" if mean is None else f"{mean:.2f}"])
    lines = [header, *body]
    if style == "latex":
        return _latex(lines)
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    aligned = [
        [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        for line in lines
    ]
    if style == "markdown":
        rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
        return "\n".join("| " + " | ".join(line) + " |" for line in [aligned[0], rule, *aligned[1:]])
    return "\n".join("  ".join(line) for line in aligned)


def _latex(lines: Sequence[Sequence[str]]) -> str:
    escape = str.maketrans({"_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "$": r"\$", "\\": r"\textbackslash{}"})
    rows = [" & ".join(cell.translate(escape) for cell in line) + r" \\" for line in lines]
    return "\n".join(
        [rf"\begin{{tabular}}{{l{'r' * (len(lines[0]) - 1)}}}", r"\toprule", rows[0], r"\midrule", *rows[1:],
         r"\bottomrule", r"\end{tabular}"]
    )  # fmt: skip
