"""The paper's figures from this package's own temperatures, and the curves of training runs; needs the plots extra."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dystress_text.cli.extras import require
from dystress_text.errors import UserError

ENDINGS = (".png", ".svg", ".pdf")
FIGURES = {
    "profiles": "every temperature function over the similarity",
    "ranges": "the cosine and the shifted profile at several ranges",
    "shifts": "shifted and one-sided profiles",
    "ode": "solutions of the paper's equation over c, delta and K",
    "logit": "s / tau(s) and its slope, with the temperature in and out of the gradient",
    "gradient-field": "pull on a positive and push on negatives over both similarities",
    "training": "loss, STS-B dev, alignment and uniformity over the steps of runs",
    "accuracy-geometry": "accuracy against uniformity and tolerance (text: alignment) of evaluated runs",
    "accuracy-temperature": "accuracy of evaluated runs over the temperature",
    "geometry-temperature": "accuracy, uniformity and tolerance (text: alignment) over the temperature",
    "accuracy-rate": "accuracy of evaluated runs over the learning rate",
}
ACCURACIES = ("knn", "linear")
OF_RUNS = ("training", "accuracy-geometry", "accuracy-temperature", "geometry-temperature", "accuracy-rate")


def draw(name: str, file: Path, runs: Sequence[Path] = (), accuracy: str | None = None) -> None:
    """Draw a figure of :data:`FIGURES` into a file.

    Args:
        name: of the figure.
        file: the picture; its ending, one of :data:`ENDINGS`, says the format.
        runs: folders of runs, only for :data:`OF_RUNS`.
        accuracy: of runs of images, one of :data:`ACCURACIES`; None for the first.

    Raises:
        UserError: matplotlib is missing, the name or the ending is unknown, a folder is not a run, or the file
            cannot be written.
    """
    if name not in FIGURES:
        raise UserError(f"unknown figure {name!r}; known are {', '.join(FIGURES)}, all")
    if (name in OF_RUNS) != bool(runs):
        need = f"needs folders of runs: {name} RUN [RUN ...]" if name in OF_RUNS else "takes no folders of runs"
        raise UserError(f"{name} {need}")
    of_outcomes = name in OF_RUNS and name != "training"
    if accuracy is not None and not of_outcomes:
        raise UserError(f"--accuracy: {name} has none")
    if file.suffix.lower() not in ENDINGS:
        raise UserError(f"--output: {str(file)!r} must end in one of {', '.join(ENDINGS)}")
    require("plots", "a figure")
    from dystress_text.report import drawings, outcome_drawings  # an extra: the rest of the package does not need it

    figure = outcome_drawings.make(name, runs, accuracy) if of_outcomes else drawings.make(name, runs)
    try:
        drawings.save(figure, file)
    except OSError as error:
        raise UserError(f"--output: cannot write {str(file)!r}: {error.strerror or error}") from error


def draw_all(folder: Path) -> list[Path]:
    """Draw all figures that need no run as PNG into a folder, and return the files; a missing folder is made.

    Raises:
        UserError: as for :func:`draw`, or the folder cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--output: cannot make the folder {str(folder)!r}: {error.strerror or error}") from error
    files = {name: folder / f"{name}.png" for name in FIGURES if name not in OF_RUNS}
    for name, file in files.items():
        draw(name, file)
    return list(files.values())
