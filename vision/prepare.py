"""Prepare image sets: download or check them, and put them where the programs look.

    python vision/prepare.py list                           # what there is, and what is ready
    python vision/prepare.py cifar10                        # from the hub
    python vision/prepare.py cifar10 --from FOLDER          # from copies on this machine
    python vision/prepare.py imagenet1k --from FOLDER       # checked; nothing is copied
    python vision/prepare.py imagenet100 --classes FILE     # some of its classes

Data go to ``data/prepared``; DYSTRESS_DATA or --data_dir sets another folder. The exit code is 1
if a set is unavailable.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from dystress_text.cli.command_line import OneLineParser, exit_code
from dystress_text.errors import ParameterError
from dystress_text.io.prepared_data import Manifest
from dystress_text.preparation import command
from dystress_text.preparation.data_sets import Request
from vision.data.catalogue import CATALOG, ImageData


def make_parser() -> OneLineParser:
    """Return the command's parser, as that of ``dystress prepare`` with ``--classes``."""
    parser = command.make_parser("prepare.py", __doc__, CATALOG)
    parser.add_argument(
        "--classes",
        type=command.absolute,
        help="imagenet100: a file with one class (folder name) a line",
    )
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program and return its exit code."""

    def work() -> bool:
        options = make_parser().parse_args(argv)
        if options.classes is not None and "imagenet100" not in options.what:
            raise ParameterError("classes", "is an option of imagenet100")
        if options.source is not None and set(options.what) == {"imagenet100"}:
            raise ParameterError("from", "imagenet100 is made from imagenet1k, once that is ready")
        return command.run("prepare.py", options, CATALOG, _build)

    return exit_code("prepare.py", work)


def _build(entry: ImageData, request: Request, staging: Path) -> Manifest:
    from vision.data.prepare_images import build  # here: help and the list come at once

    return build(entry, request, staging)


if __name__ == "__main__":
    sys.exit(main())
