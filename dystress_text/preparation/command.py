"""The command line of the programs that prepare data sets of text and of images."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from dystress_text.cli.command_line import OneLineParser, error_line
from dystress_text.errors import DataError
from dystress_text.io.paths import data_root
from dystress_text.io.prepared_data import Manifest, read_manifest
from dystress_text.preparation.data_sets import DataSet, Request

Entry = TypeVar("Entry", bound=DataSet)


def make_parser(
    program: str, description: str | None, known: Mapping[str, DataSet]
) -> OneLineParser:
    """Return the parser of a program that prepares the ``known`` data sets."""
    parser = OneLineParser(program, description)
    add = parser.add_argument
    names = [*known, "list"]
    add("what", nargs="+", metavar="NAME", choices=names, help=f"data sets: {', '.join(names)}")
    add("--from", dest="source", type=absolute, help="a local file or folder instead of the hub")
    add(
        "--variant",
        help="name of the variant, if the data are not the published ones; results record it",
    )
    add("--again", action="store_true", help="prepare sets again that are ready")
    add("--data_dir", help="folder of prepared data; default $DYSTRESS_DATA, else see above")
    return parser


def absolute(path: str) -> Path:
    """Return an absolute path, as the manifest must hold in any working directory."""
    return Path(path).expanduser().absolute()


def run(
    program: str,
    options: Namespace,
    known: Mapping[str, Entry],
    build: Callable[[Entry, Request, Path], Manifest],
) -> bool:
    """Prepare the data sets that the options name, or list all; return whether all are ready."""
    given = vars(options)
    root = data_root(given.pop("data_dir"))
    names = given.pop("what")
    if "list" in names:
        for entry in known.values():
            print(f"{entry.name:15} {entry.description}")
            print(f"{'':15} {_state(read_manifest(root / entry.name))}")
        return True
    request = Request(root, **given)
    done = [_prepare(program, known[name], request, build) for name in names]
    return all(done)


def _prepare(
    program: str,
    entry: Entry,
    request: Request,
    build: Callable[[Entry, Request, Path], Manifest],
) -> bool:
    from dystress_text.preparation.prepare import prepare  # here: help and the list come at once

    try:
        manifest = prepare(entry.name, request, lambda staging: build(entry, request, staging))
    except DataError as error:
        print(f"{program}: error: {error_line(error)}", file=sys.stderr, flush=True)
        return False
    print(f"{entry.name}: {_state(manifest)}, in {request.root / entry.name}")
    print(f"  terms: {entry.terms}", flush=True)
    return True


def _state(manifest: Manifest | None) -> str:
    """Return a description such as ``ready but for STS12 (no file)``."""
    if manifest is None:
        return "not prepared"
    counts = ", ".join(f"{split} {count:,}" for split, count in manifest.counts.items())
    state = f"ready ({counts})" if counts else "ready"
    if manifest.not_ready:
        missing = [f"{part} ({reason})" for part, reason in manifest.not_ready.items()]
        state += f" but for {'; '.join(missing)}"
    if manifest.variant:
        state += f"; variant: {manifest.variant}"
    return f"{state}; made from {manifest.source}"
