"""Download and verify text data sets for the programs.

    dystress prepare list                           # the sets, and which are ready
    dystress prepare wiki1m senteval                # from the hub
    dystress prepare senteval wiki1m --from FOLDER  # from copies on this machine

The folder is ``data/prepared`` in a checkout, else ``~/.local/share/dystress-text``; DYSTRESS_DATA
or --data_dir sets another. Preparing a set prints its terms of use. Parts that the source lacks are
listed and skipped; the exit code is 1 if a whole set cannot be prepared. In a checkout ``python
data/prepare.py`` is the same program, and ``python vision/prepare.py`` prepares image sets.
"""

from __future__ import annotations

from pathlib import Path

from dystress_text.cli.command_line import OneLineParser, program
from dystress_text.io.prepared_data import Manifest
from dystress_text.preparation import command
from dystress_text.preparation.data_sets import CATALOG, DataSet, Request


def make_parser() -> OneLineParser:
    return command.make_parser("dystress prepare", __doc__, CATALOG)


@program("dystress prepare")
def main(argv: list[str]) -> bool:
    """Prepare data sets; return whether all are ready."""
    return command.run("dystress prepare", make_parser().parse_args(argv), CATALOG, _build)


def _build(entry: DataSet, request: Request, staging: Path) -> Manifest:
    from dystress_text.preparation.texts import (
        build,  # here, so that help and the list come at once
    )

    return build(entry, request, staging)
