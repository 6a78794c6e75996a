"""Print tables of runs: mean and standard deviation over seeds, and paired differences.

    dystress report sweep/
    dystress report sweep/ --format latex > tables.tex
    dystress report out_a/ out_b/ --baseline out_b      # single runs
    dystress report base/ out/                          # an evaluated model and a run
    # with curves, settings and similarities
    dystress report out_a/ out_b/ --format html > compare.html

The first lines are differences with their intervals, paired by query or pair and by seed. Below
each table are the intervals of its figures. Figures on different data are not compared. --baseline
takes a configuration or a loss; default: the first configuration in the tables.
"""

from __future__ import annotations

from pathlib import Path

from dystress_text.cli import text_table
from dystress_text.cli.command_line import OneLineParser, program


def make_parser() -> OneLineParser:
    parser = OneLineParser("dystress report", __doc__)
    add = parser.add_argument
    folders = "folder of a sweep, a run or an evaluated model; or a file of results (.jsonl)"
    add("folders", nargs="+", type=Path, metavar="FOLDER", help=folders)
    formats = (*text_table.FORMATS, "html")
    add(
        "--format",
        choices=formats,
        default="text",
        help="format of the tables (default text); html is a page",
    )
    add(
        "--baseline",
        metavar="NAME",
        help="configuration to compare the others with; default the first in the tables",
    )
    return parser


@program("dystress report")
def main(argv: list[str]) -> None:
    options = make_parser().parse_args(argv)
    # imported here because torch would slow down --help
    from dystress_text.analysis.compared_models import read_compared_models
    from dystress_text.analysis.tables import render, text_page
    from dystress_text.finetuning.presets import PRESETS

    compared = read_compared_models(options.folders, options.baseline, PRESETS)
    if options.format == "html":
        print(text_page(compared))
    else:
        print(render(compared, options.format))
