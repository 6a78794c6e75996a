"""The paper's figures from this package's own temperatures, and the curves of training runs; needs the plots extra.

dystress figures --list
dystress figures profiles --output profiles.pdf            # .png, .svg or .pdf
dystress figures training out_a/ out_b/ --output runs.png  # from each run's metrics.jsonl
dystress figures accuracy-geometry out_*/                  # from evaluated runs, of images or of text
dystress figures all --output figures/                     # all that need no run
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from dystress_text.cli.command_line import OneLineParser, exit_code
from dystress_text.errors import UserError
from dystress_text.report.figures import ACCURACIES, FIGURES, OF_RUNS, draw, draw_all


def make_parser() -> OneLineParser:
    """The program's options."""
    parser = OneLineParser("dystress figures", __doc__)
    add = parser.add_argument
    add("name", nargs="?", metavar="NAME", help=f"{', '.join(FIGURES)}, or all")
    add("runs", nargs="*", type=Path, metavar="RUN", help=f"runs, or folders of runs, for {', '.join(OF_RUNS)}")
    add("--accuracy", choices=ACCURACIES, help="of runs of images (default knn)")
    add("--output", type=Path, help="the picture (default NAME.png); with all, the folder (default figures/)")
    add("--list", action="store_true", help="print the names and what each shows")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""

    def work() -> bool:
        options = make_parser().parse_intermixed_args(argv)
        if options.list:
            print("\n".join(f"{name:21} {about}" for name, about in FIGURES.items()))
            return True
        if options.name is None:
            raise UserError(f"name a figure: {', '.join(FIGURES)}, or all (see --help)")
        if options.name == "all":
            if options.runs or options.accuracy:
                raise UserError("all takes no folders of runs and no --accuracy")
            files = draw_all(options.output or Path("figures"))
        else:
            files = [options.output or Path(f"{options.name}.png")]
            draw(options.name, files[0], options.runs, options.accuracy)
        print("\n".join(map(str, files)))
        return True

    return exit_code("dystress figures", work)


if __name__ == "__main__":
    sys.exit(main())
