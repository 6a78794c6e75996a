"""Tables of a sweep: mean and deviation over seeds, the paper's figures, and tests against constant temperatures.

    dystress report sweep/
    dystress report sweep/ --format latex > tables.tex
    dystress report sweep/ --format csv                        # every figure in one table
    dystress report out_a/ out_b/ --baseline out_b             # single runs
    dystress report out_a/ out_b/ --format html > compare.html # with curves, settings and similarities

Differences are paired by seed. Without --baseline a configuration is compared with the constant 0.05 (SimCSE) and the
constant that equals its tau_max, where the folders hold these, else with every constant in them.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from dystress_text.cli.command_line import OneLineParser, exit_code
from dystress_text.errors import UserError
from dystress_text.report.notes import notes_of
from dystress_text.report.runs import read_text_runs
from dystress_text.report.tables import FORMATS, Comparisons, csv_table, render
from dystress_text.report.text_page import page_of


def make_parser() -> OneLineParser:
    """The program's options."""
    parser = OneLineParser("dystress report", __doc__)
    add = parser.add_argument
    add("folders", nargs="+", type=Path, metavar="FOLDER", help="a sweep's folder, or a run's")
    add("--format", choices=FORMATS, default="text", help="of the tables (default text); html is a page")
    add("--baseline", nargs="+", default=[], metavar="NAME", help="configurations to compare the others with")
    add(
        "--resamples",
        type=int,
        default=500,
        help="of the bootstrap over pairs, the slow step (default 500; 0 for none)",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""

    def work() -> bool:
        options = make_parser().parse_args(argv)
        if options.resamples < 0:
            raise UserError(f"--resamples: must be at least 0, got {options.resamples}")
        runs, unfinished = read_text_runs(options.folders)
        if not runs:
            raise UserError(f"no finished run: {', '.join(unfinished)}")
        text = _report(Comparisons(runs, unfinished, options.baseline, options.resamples), options.format)
        try:
            print(text, flush=True)
        except BrokenPipeError:  # the reader, such as head, has enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True

    return exit_code("dystress report", work)


def _report(compared: Comparisons, style: str) -> str:
    if style == "html":
        return page_of(compared)
    return csv_table(compared) if style == "csv" else render(compared, notes_of(compared), style)


if __name__ == "__main__":
    sys.exit(main())
