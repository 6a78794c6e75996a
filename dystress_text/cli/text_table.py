"""Format tables as plain text, Markdown, LaTeX or HTML."""

from __future__ import annotations

from collections.abc import Sequence

import tabulate

FORMATS = ("text", "markdown", "latex")
_TABULATE = {"text": "plain", "markdown": "pipe", "latex": "latex_booktabs", "html": "html"}


def lay_out(lines: Sequence[Sequence[str]], style: str = "text") -> str:
    """Format lines of cells as a table with a header, its first column left-aligned.

    In plain text a header that is wider than the cells below it is broken into several lines.
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
