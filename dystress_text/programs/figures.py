"""The paper's figures, from this package's own temperatures; needs the plots extra.

dystress figures --list
dystress figures profiles --output profiles.pdf            # .png, .svg or .pdf
dystress figures all --output figures/
"""

from __future__ import annotations

from pathlib import Path

from dystress_text.cli.command_line import OneLineParser, program
from dystress_text.cli.extras import require
from dystress_text.errors import ParameterError, UserError, reason_of

ENDINGS = (".png", ".svg", ".pdf")
FIGURES = {
    "default": "the default temperature and its logit beside others, as in the README",
    "profiles": "every temperature function over the similarity",
    "shifts": "shifted and one-sided profiles",
    "ode": "solutions of the paper's equation over c, delta and K",
    "logit": "s / tau(s) and its slope, with the temperature in and out of the gradient",
}


def make_parser() -> OneLineParser:
    """The program's options."""
    parser = OneLineParser("dystress figures", __doc__)
    add = parser.add_argument
    add("name", nargs="?", metavar="NAME", help=f"{', '.join(FIGURES)}, or all")
    add(
        "--output",
        type=Path,
        help="the picture (default NAME.png); with all, the folder (default figures/)",
    )
    add("--list", action="store_true", help="print the names and what each shows")
    return parser


@program("dystress figures")
def main(words: list[str]) -> None:
    """The program."""
    options = make_parser().parse_args(words)
    if options.list:
        print("\n".join(f"{name:10} {about}" for name, about in FIGURES.items()))
        return
    files = {str(options.name): options.output or Path(f"{options.name}.png")}
    if options.name == "all":
        files = {name: (options.output or Path("figures")) / f"{name}.png" for name in FIGURES}
    for name, file in files.items():
        draw(name, file)
        print(file)


def draw(name: str, file: Path) -> None:
    """Draw a figure into a file, whose ending says the format."""
    if name not in FIGURES:
        raise UserError(f"name a figure: {', '.join(FIGURES)}, or all; got {name!r}")
    if file.suffix.lower() not in ENDINGS:
        raise ParameterError("output", f"{str(file)!r} must end in one of {', '.join(ENDINGS)}")
    require("plots", "a figure")
    from dystress_text.laboratory import drawings
    from dystress_text.report import plots  # an extra: the rest of the package does not need it

    figure = drawings.make(name)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        plots.save(figure, file)
    except OSError as error:
        raise ParameterError("output", f"cannot write {str(file)!r}: {reason_of(error)}") from error
