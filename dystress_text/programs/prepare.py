"""Get data sets ready where the programs look for them.

    dystress prepare list                                   # what there is, and what is ready
    dystress prepare wiki1m senteval                        # from the hub
    dystress prepare senteval wiki1m cifar10 --from FOLDER  # from copies on this machine

Data go to ``data/prepared`` of a checkout, else to ``~/.local/share/dystress-text``; DYSTRESS_DATA
or --data_dir moves them. ``dystress prepare list`` says what each set is, and a set's preparation
under which terms it may be used. A part that the source does not have is named and left out; the
exit code stays 0. It is 1 for a set that cannot be had. ``python data/prepare.py`` is the same in a
checkout.
"""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path

from dystress_text.cli.command_line import OneLineParser, program
from dystress_text.errors import DataError, UserError
from dystress_text.files.places import data_root
from dystress_text.files.prepared_data import Manifest, read_manifest
from dystress_text.preparation.data_sets import CATALOG, Request


def make_parser() -> OneLineParser:
    """The program's options."""
    parser = OneLineParser("dystress prepare", __doc__)
    add = parser.add_argument
    add("what", nargs="+", metavar="NAME", help=f"data sets ({', '.join(CATALOG)}), or list")
    add("--from", dest="source", type=Path, help="a local file or folder instead of the hub")
    add(
        "--variant",
        help="what the data are, if they are knowingly not the published ones; every result then "
        "says so",
    )
    add("--again", action="store_true", help="prepare what is ready once more")
    add("--data_dir", help="where prepared data lie; default $DYSTRESS_DATA, else see above")
    add("--classes", type=Path, help="imagenet100: a file with one class (folder name) a line")
    return parser


@program("dystress prepare")
def main(words: list[str]) -> bool:
    """The program; whether everything that was asked for is as it should be."""
    if threading.current_thread() is threading.main_thread():
        # an orderly end, which leaves nothing half-ready
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    options = make_parser().parse_args(words)
    root = data_root(options.data_dir)
    if options.what == ["list"]:
        for entry in CATALOG.values():
            state = _state(read_manifest(root / entry.name))
            print(f"{entry.name:15} {entry.about}\n{'':15} {state}")
        return True
    for name in options.what:
        if name not in CATALOG:
            known = f"known are {', '.join(CATALOG)}; list alone shows them"
            raise UserError(f"no data set {name!r}; {known}")
    request = Request(root, options.source, options.variant, options.classes, options.again)
    done = [_prepare(request, name) for name in options.what]
    return all(done)


def _prepare(request: Request, name: str) -> bool:
    # here, so that help and the list come at once
    from dystress_text.preparation.prepare import prepare

    try:
        manifest = prepare(name, request)
    except DataError as error:
        print(f"dystress prepare: error: {error}", file=sys.stderr, flush=True)
        return False
    print(f"{name}: {_state(manifest)}, in {request.root / name}")
    print(f"  terms: {CATALOG[name].terms}", flush=True)
    return True


def _state(manifest: Manifest | None) -> str:
    if manifest is None:
        return "not prepared"
    state = "ready"
    counts = ", ".join(f"{split} {count:,}" for split, count in manifest.counts.items())
    if counts:
        state += f" ({counts})"
    missing = "; ".join(f"{part} ({reason})" for part, reason in manifest.not_ready.items())
    if missing:
        state += f" but for {missing}"
    if manifest.variant:
        state += f"; variant: {manifest.variant}"
    return state
