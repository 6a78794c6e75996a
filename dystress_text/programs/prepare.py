"""Get texts ready where the programs look for them.

    dystress prepare list                           # what there is, and what is ready
    dystress prepare wiki1m senteval                # from the hub
    dystress prepare senteval wiki1m --from FOLDER  # from copies on this machine

Data go to ``data/prepared`` of a checkout, else to ``~/.local/share/dystress-text``; DYSTRESS_DATA
or --data_dir moves them. ``dystress prepare list`` says what each set is, and a set's preparation
under which terms it may be used. A part that the source does not have is named and left out; the
exit code stays 0. It is 1 for a set that cannot be had. ``python data/prepare.py`` is the same in a
checkout, where ``python vision/prepare.py`` gets image sets ready.
"""

from __future__ import annotations

from pathlib import Path

from dystress_text.cli.command_line import OneLineParser, program
from dystress_text.datasets import command
from dystress_text.datasets.data_sets import CATALOG, DataSet, Request
from dystress_text.io.prepared_data import Manifest


def make_parser() -> OneLineParser:
    """The program's options."""
    return command.make_parser("dystress prepare", __doc__, CATALOG)


@program("dystress prepare")
def main(argv: list[str]) -> bool:
    """The program; whether everything that was asked for is as it should be."""
    return command.run("dystress prepare", make_parser().parse_args(argv), CATALOG, _build)


def _build(entry: DataSet, request: Request, staging: Path) -> Manifest:
    from dystress_text.datasets.texts import build  # here: help and the list come at once

    return build(entry, request, staging)
