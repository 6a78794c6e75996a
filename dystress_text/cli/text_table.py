"""Tables of texts in three styles: plain text, Markdown, LaTeX."""

from __future__ import annotations

from collections.abc import Sequence

FORMATS = ("text", "markdown", "latex")


def lay_out(lines: Sequence[Sequence[str]], style: str = "text") -> str:
    """A table: its header, then its rows; the first column stands left, the others right.

    Args:
        lines: cells, as many in each line.
        style: one of :data:`FORMATS`.
    """
    if style == "latex":
        return _latex(lines)
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    aligned = [
        [line[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True))]
        for line in lines
    ]
    if style == "markdown":
        rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
        return "\n".join("| " + " | ".join(line) + " |" for line in [aligned[0], rule, *aligned[1:]])
    return "\n".join("  ".join(line) for line in aligned)


def _latex(lines: Sequence[Sequence[str]]) -> str:
    escape = str.maketrans(
        {"_": r"\_", "%": r"\%", "&": r"\&", "#": r"\#", "$": r"\$", "±": r"$\pm$", "\\": r"\textbackslash{}"}
    )
    rows = [" & ".join(cell.translate(escape) for cell in line) + r" \\" for line in lines]
    return "\n".join(
        [rf"\begin{{tabular}}{{l{'r' * (len(lines[0]) - 1)}}}", r"\toprule", rows[0], r"\midrule", *rows[1:],
         r"\bottomrule", r"\end{tabular}"]
    )  # fmt: skip
