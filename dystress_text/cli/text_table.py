"""Tables of texts in three styles: plain text, Markdown, LaTeX."""

from __future__ import annotations

from collections.abc import Sequence

from tabulate import tabulate

FORMATS = ("text", "markdown", "latex")
_INDENT = "\ue000\ue000"  # stands for two spaces, which tabulate would strip
_TABULATE = {"text": "plain", "markdown": "pipe", "latex": "latex_booktabs"}


def lay_out(lines: Sequence[Sequence[str]], style: str = "text") -> str:
    """A table whose first column is aligned left, the others right; the first line is the header."""
    header, *rows = [[cell.replace("  ", _INDENT) for cell in line] for line in lines]
    laid_out: str = tabulate(
        rows, header, _TABULATE[style], disable_numparse=True,
        colalign=("left", *["right"] * (len(header) - 1)),
    )  # fmt: skip
    laid_out = laid_out.replace(_INDENT, "  ")
    return laid_out.replace("±", r"$\pm$") if style == "latex" else laid_out
