"""The paper's figures, from this package's own temperatures or from runs of images; needs the plots extra.

dystress figures --list
dystress figures profiles --output profiles.pdf            # .png, .svg or .pdf
dystress figures accuracy-geometry out_*/                  # from evaluated runs of images
dystress figures all --output figures/                     # all that need no run
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from dystress_text.cli.command_line import OneLineParser, exit_code
from dystress_text.cli.extras import require
from dystress_text.errors import ParameterError, UserError, reason_of

ENDINGS = (".png", ".svg", ".pdf")
NEED_NO_RUN = {
    "default": "the default temperature and its logit beside others, as in the README",
    "profiles": "every temperature function over the similarity",
    "ranges": "the cosine and the shifted profile at several ranges",
    "shifts": "shifted and one-sided profiles",
    "ode": "solutions of the paper's equation over c, delta and K",
    "logit": "s / tau(s) and its slope, with the temperature in and out of the gradient",
}
OUTCOMES = "accuracy-geometry"
FIGURES = NEED_NO_RUN | {OUTCOMES: "accuracy against uniformity and tolerance of evaluated runs of images"}


def make_parser() -> OneLineParser:
    """The program's options."""
    parser = OneLineParser("dystress figures", __doc__)
    add = parser.add_argument
    add("name", nargs="?", metavar="NAME", help=f"{', '.join(FIGURES)}, or all")
    add("runs", nargs="*", type=Path, metavar="RUN", help=f"runs, or folders of runs, for {OUTCOMES}")
    add("--accuracy", choices=("knn", "linear"), default="knn", help="of runs (default knn)")
    add("--output", type=Path, help="the picture (default NAME.png); with all, the folder (default figures/)")
    add("--list", action="store_true", help="print the names and what each shows")
    return parser


def draw(name: str, file: Path, runs: Sequence[Path] = (), accuracy: str = "knn") -> None:
    """Draw a figure of :data:`FIGURES` into a file; what does not fit is a UserError.

    Args:
        name: of the figure.
        file: the picture; its ending, one of :data:`ENDINGS`, says the format.
        runs: folders of runs, for :data:`OUTCOMES`.
        accuracy: of them, ``knn`` or ``linear``.
    """
    if name not in FIGURES:
        raise UserError(f"name a figure: {', '.join(FIGURES)}, or all; got {name!r}")
    if (name == OUTCOMES) != bool(runs):
        raise UserError(f"{name} {'needs' if name == OUTCOMES else 'takes no'} folders of runs")
    if file.suffix.lower() not in ENDINGS:
        raise ParameterError("output", f"{str(file)!r} must end in one of {', '.join(ENDINGS)}")
    require("plots", "a figure")
    from dystress_text.report import drawings, outcomes, plots  # an extra: the rest of the package does not need it

    figure = outcomes.draw_outcomes(runs, accuracy) if runs else drawings.make(name)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        plots.save(figure, file)
    except OSError as error:
        raise ParameterError("output", f"cannot write {str(file)!r}: {reason_of(error)}") from error


def main(argv: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""

    def work() -> bool:
        options = make_parser().parse_intermixed_args(argv)
        if options.list:
            print("\n".join(f"{name:21} {about}" for name, about in FIGURES.items()))
            return True
        files = {str(options.name): options.output or Path(f"{options.name}.png")}
        if options.name == "all":
            files = {name: (options.output or Path("figures")) / f"{name}.png" for name in NEED_NO_RUN}
        for name, file in files.items():
            draw(name, file, options.runs, options.accuracy)
            print(file)
        return True

    return exit_code("dystress figures", work)


if __name__ == "__main__":
    sys.exit(main())
