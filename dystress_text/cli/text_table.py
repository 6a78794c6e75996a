"""Tables of texts in three styles: plain text, Markdown, LaTeX."""

from __future__ import annotations

from collections.abc import Sequence

from tabulate import tabulate

FORMATS = ("text", "markdown", "latex")
_TABULATE = {"text": "plain", "markdown": "pipe", "latex": "latex_booktabs"}


def lay_out(lines: Sequence[Sequence[str]], style: str = "text") -> str:
    """A table whose first column is aligned left, the others right; the first line is the header."""
    header, *rows = lines
    laid_out: str = tabulate(
        rows, header, _TABULATE[style], disable_numparse=True, preserve_whitespace=True,
        colalign=("left", *["right"] * (len(header) - 1)),
    )  # fmt: skip
    return laid_out.replace("±", r"$\pm$") if style == "latex" else laid_out
