"""Format tables as plain text, Markdown, LaTeX or HTML."""

from __future__ import annotations

from collections.abc import Sequence

import tabulate

TextTable = list[list[str]]  # lines of cells, the header first
FORMATS = ("text", "markdown", "latex")
_TABULATE = {"text": "plain", "markdown": "pipe", "latex": "latex_booktabs", "html": "html"}


def lay_out(lines: Sequence[Sequence[str]], style: str = "text") -> str:
    """Format lines of cells, the header first, as a table whose first column is left-aligned.

    In plain text, headers wider than 16 characters are broken into several lines.
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
    """Format a figure with two decimals; a missing one is a dash."""
    return "-" if figure is None else f"{figure:z.2f}"
