"""Format tables as plain text, Markdown, LaTeX or HTML."""

from __future__ import annotations

from collections.abc import Sequence

import tabulate

FORMATS = ("text", "markdown", "latex")
_TABULATE = {"text": "plain", "markdown": "pipe", "latex": "latex_booktabs", "html": "html"}


def lay_out(lines: Sequence[Sequence[str]], style: str = "text") -> str:
    """Return a table whose header is the first line; only the first column is left-aligned.

    Long headers are broken in plain text, so that the table is not wider than its cells need.
    """
    widths = [16] * len(lines[0]) if style == "text" else None
    align = ["left", *("right" for _ in lines[0][1:])]
    table: str = tabulate.tabulate(
        lines[1:],
        lines[0],
        _TABULATE[style],
        disable_numparse=True,
        colalign=align,
        maxheadercolwidths=widths,
    )
    if style == "latex":
        table = table.replace("±", r"$\pm$")
    return table


def cell(figure: float | None) -> str:
    """Return a figure with two decimals; a dash for a missing one."""
    return "-" if figure is None else f"{figure:.2f}"
