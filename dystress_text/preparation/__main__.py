"""Get data sets ready where the programs look for them.

    python data/prepare.py list                                   # what there is, and what is ready
    python data/prepare.py wiki1m senteval                        # from the hub
    python data/prepare.py senteval wiki1m cifar10 --from FOLDER  # from copies on this machine
    python data/prepare.py verify wiki1m                          # compare with the checksums of the preparation
    python data/prepare.py path wiki1m
    python data/prepare.py corpus FILES... --output corpus.txt    # one's own text, a sentence a line

Data go to ``data/prepared``; DYSTRESS_DATA or --data_dir moves them. data/README.md says what each set is and under
which terms it may be used.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from dystress_text.cli.command_line import OneLineParser, exit_code
from dystress_text.errors import DataError, UserError
from dystress_text.files.places import data_root
from dystress_text.files.prepared_data import Manifest, read_manifest
from dystress_text.preparation.catalog import CATALOG
from dystress_text.preparation.corpus_builder import CorpusBuildSettings, build_corpus
from dystress_text.preparation.prepare import Request, prepare, verify

COMMANDS = ("list", "verify", "path", "corpus")


def make_parser() -> argparse.ArgumentParser:
    """The program's options."""
    parser = OneLineParser("prepare.py", __doc__)
    add = parser.add_argument
    add("what", nargs="+", metavar="NAME", help=f"data sets ({', '.join(CATALOG)}), or a command before names or files")
    add("--from", dest="source", type=Path, help="a local file or folder instead of the hub")
    add("--variant", help="what the data are, if they are knowingly not the published ones; every result then says so")
    add("--classes", type=Path, help="imagenet100: a file with one class (folder name) a line")
    add("--ratio", type=float, default=0.01, help="long-tailed sets: smallest to largest class (default 0.01)")
    add("--seed", type=int, default=0, help="long-tailed sets: of the choice (default 0)")
    add("--again", action="store_true", help="prepare what is ready once more")
    add("--data_dir", help="where prepared data lie; default $DYSTRESS_DATA, else data/prepared")
    add("--output", type=Path, help="corpus: the file to write")
    add("--min_words", type=int, default=6, help="corpus: words of the shortest sentence (default 6)")
    add("--max_words", type=int, default=80, help="corpus: words of the longest sentence (default 80)")
    add("--workers", type=int, default=0, help="corpus: processes; 0 for one a core (default 0)")
    add("--overwrite", action="store_true", help="corpus: replace the output file")
    return parser


def run(options: argparse.Namespace) -> bool:
    """Do what was asked for; False if something that was asked for is not as it should be."""
    command, *names = options.what
    root = data_root(options.data_dir)
    if command == "corpus":
        return _corpus(options, [Path(name) for name in names])
    if command not in COMMANDS:
        command, names = "prepare", options.what
    if command == "list" or not names:
        if names:
            raise UserError("list takes no names")
        if command != "list":
            raise UserError(f"{command}: name a data set; known are {', '.join(CATALOG)}")
        _list(root)
        return True
    for name in names:
        if name not in CATALOG:
            raise UserError(f"no data set {name!r}; known are {', '.join(CATALOG)}; commands are {', '.join(COMMANDS)}")
    request = Request(
        root, options.source, options.variant, options.classes, options.ratio, options.seed, options.again
    )
    work: dict[str, Callable[[str], bool]] = {
        "path": lambda name: _path(name, root),
        "verify": lambda name: _verify(name, root),
        "prepare": lambda name: _prepare(name, request),
    }
    successes = [work[command](name) for name in names]  # all of them, also after one that failed
    return all(successes)


def _prepare(name: str, request: Request) -> bool:
    try:
        manifest = prepare(name, request)
    except DataError as error:
        print(f"prepare.py: error: {error}", file=sys.stderr, flush=True)
        return False
    print(f"{name}: {_state(manifest)}, in {request.root / CATALOG[name].folder}")
    print(f"  terms: {CATALOG[name].terms}", flush=True)
    return True


def _state(manifest: Manifest) -> str:
    counts = ", ".join(f"{split} {count:,}" for split, count in manifest.counts.items())
    state = "ready" + (f" ({counts})" if counts else "")
    if manifest.not_ready:
        state += f" but for {', '.join(manifest.not_ready)}"
    if manifest.variant:
        state += f"; variant: {manifest.variant}"
    return state


def _list(root: Path) -> None:
    for entry in CATALOG.values():
        manifest = read_manifest(root / entry.folder)
        state = _state(manifest) if manifest is not None else f"not prepared ({entry.size})"
        print(f"{entry.name:15} {entry.about}\n{'':15} {state}")


def _path(name: str, root: Path) -> bool:
    folder = root / CATALOG[name].folder
    if read_manifest(folder) is None:
        raise DataError(f"{name} has not been prepared in {str(folder)!r}")
    print(folder)
    return True


def _verify(name: str, root: Path) -> bool:
    problems = verify(name, root)
    print(f"{name}: {'as prepared' if not problems else f'{len(problems)} problems'}")
    for problem in problems:
        print(f"  {problem}")
    return not problems


def _corpus(options: argparse.Namespace, files: list[Path]) -> bool:
    if not files or options.output is None:
        raise UserError("corpus: name the text files and --output FILE")
    workers = options.workers or os.cpu_count() or 1
    settings = CorpusBuildSettings(options.min_words, options.max_words, workers, options.overwrite)
    report = build_corpus(files, options.output, settings, progress=True)
    print("\n".join([f"{options.output}:", *report.summary()]))
    return True


def main(argv: Sequence[str] | None = None) -> int:
    """The program; returns its exit code."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an orderly end, which leaves nothing half-ready
    interrupted = "interrupted; what was not finished has left nothing behind"
    return exit_code("prepare.py", lambda: run(make_parser().parse_args(argv)), interrupted)


if __name__ == "__main__":
    sys.exit(main())
