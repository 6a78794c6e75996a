"""Format tables as plain text, Markdown, LaTeX or HTML."""

from __future__ import annotations

from collections.abc import Sequence

from tabulate import tabulate

FORMATS = ("text", "markdown", "latex")
_INDENT = "\ue000\ue000"  # replaces two spaces, which tabulate would strip
_TABULATE = {"text": "plain", "markdown": "pipe", "latex": "latex_booktabs", "html": "html"}


def lay_out(lines: Sequence[Sequence[str]], style: str = "text") -> str:
    """Return a table whose header is the first line; only the first column is left-aligned."""
    indented = [[cell.replace("  ", _INDENT) for cell in line] for line in lines]
    align = ["left", *("right" for _ in lines[0][1:])]
    table: str = tabulate(
        indented[1:], indented[0], _TABULATE[style], disable_numparse=True, colalign=align
    )
    table = table.replace(_INDENT, "  ")
    if style == "latex":
        table = table.replace("±", r"$\pm$")
    return table
