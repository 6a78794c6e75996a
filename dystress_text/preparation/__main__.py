"""Get data sets ready where the programs look for them.

    dystress prepare list                                   # what there is, and what is ready
    dystress prepare wiki1m senteval                        # from the hub
    dystress prepare senteval wiki1m cifar10 --from FOLDER  # from copies on this machine
    dystress prepare mhist --from FOLDER                    # labelled images, from the unpacked download
    dystress prepare verify wiki1m                          # compare with the checksums of the preparation
    dystress prepare path wiki1m
    dystress prepare corpus FILES... --output corpus.txt    # your own text, one sentence a line

Data go to ``data/prepared`` of a checkout, else to ``~/.local/share/dystress-text``; DYSTRESS_DATA or --data_dir moves
them. ``dystress prepare list`` says what each set is, and a set's preparation under which terms it may be used.
``python data/prepare.py`` is the same in a checkout.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from dystress_text.cli.command_line import OneLineParser, exit_code
from dystress_text.files.places import data_root
from dystress_text.preparation import commands
from dystress_text.preparation.corpus_builder import CorpusBuildSettings
from dystress_text.preparation.data_sets import CATALOG
from dystress_text.preparation.prepare import Request


def make_parser() -> argparse.ArgumentParser:
    """The program's options."""
    parser = OneLineParser("dystress prepare", __doc__)
    add = parser.add_argument
    add("what", nargs="+", metavar="NAME", help=f"data sets ({', '.join(CATALOG)}), or a command before names or files")
    add("--from", dest="source", type=Path, help="a local file or folder instead of the hub")
    add("--variant", help="what the data are, if they are knowingly not the published ones; every result then says so")
    add("--again", action="store_true", help="prepare what is ready once more")
    add("--data_dir", help="where prepared data lie; default $DYSTRESS_DATA, else see above")
    add = parser.add_argument_group("images").add_argument
    add("--classes", type=Path, help="imagenet100: a file with one class (folder name) a line")
    add("--ratio", type=float, default=0.01, help="long-tailed sets: smallest to largest class (default 0.01)")
    add("--seed", type=int, default=0, help="long-tailed sets: of the choice (default 0)")
    add = parser.add_argument_group("corpus").add_argument
    add("--output", type=Path, help="the file to write")
    add("--min_words", type=int, default=6, help="words of the shortest sentence (default 6)")
    add("--max_words", type=int, default=80, help="words of the longest sentence (default 80)")
    add("--workers", type=int, default=0, help="processes; 0 for one a core (default 0)")
    add("--overwrite", action="store_true", help="replace the output file")
    return parser


def run(options: argparse.Namespace) -> bool:
    """Do what was asked for; False if something that was asked for is not as it should be."""
    command, *names = options.what
    root = data_root(options.data_dir)
    if command == "corpus":
        workers = options.workers or os.cpu_count() or 1
        settings = CorpusBuildSettings(options.min_words, options.max_words, workers, options.overwrite)
        return commands.corpus([Path(name) for name in names], options.output, settings)
    if command == "list":
        return commands.list_sets(names, root)
    if command == "path":
        return commands.path(names, root)
    if command == "verify":
        return commands.verify(names, root)
    request = Request(
        root, options.source, options.variant, options.classes, options.ratio, options.seed, options.again
    )
    return commands.prepare(options.what, request)


def main(argv: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an orderly end, which leaves nothing half-ready
    interrupted = "interrupted; what was not finished has left nothing behind"
    return exit_code("dystress prepare", lambda: run(make_parser().parse_args(argv)), interrupted)


if __name__ == "__main__":
    sys.exit(main())
