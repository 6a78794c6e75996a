"""What the program's commands do and print; each returns whether all is as it should be."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from dystress_text.errors import DataError, UserError
from dystress_text.files.prepared_data import Manifest, read_manifest
from dystress_text.preparation import prepare as preparation
from dystress_text.preparation.corpus_builder import CorpusBuildSettings, build_corpus
from dystress_text.preparation.data_sets import CATALOG

COMMANDS = ("list", "verify", "path", "corpus")


def prepare(names: Sequence[str], request: preparation.Request) -> bool:
    """Get sets ready: all of them, also after one that failed.

    Raises:
        UserError: an unknown name.
    """
    successes = []
    for name in _known(names):
        try:
            manifest = preparation.prepare(name, request)
        except DataError as error:
            print(f"dystress prepare: error: {error}", file=sys.stderr, flush=True)
            successes.append(False)
            continue
        print(f"{name}: {_state(manifest)}, in {request.root / CATALOG[name].folder}")
        print(f"  terms: {CATALOG[name].terms}", flush=True)
    return all(successes)


def list_sets(names: Sequence[str], root: Path) -> bool:
    """All sets, and what is ready of them.

    Raises:
        UserError: a name, as the command takes none.
    """
    if names:
        raise UserError("list takes no names")
    for entry in CATALOG.values():
        manifest = read_manifest(root / entry.folder)
        state = _state(manifest) if manifest is not None else f"not prepared ({entry.size})"
        print(f"{entry.name:15} {entry.about}\n{'':15} {state}")
    return True


def path(names: Sequence[str], root: Path) -> bool:
    """The folders of prepared sets.

    Raises:
        UserError: no name, or an unknown one.
        DataError: a set has not been prepared.
    """
    for name in _known(names):
        preparation.manifest_of(name, root)
        print(root / CATALOG[name].folder)
    return True


def verify(names: Sequence[str], root: Path) -> bool:
    """What differs from the records of prepared sets.

    Raises:
        UserError: no name, or an unknown one.
        DataError: a set has not been prepared.
    """
    found = 0
    for name in _known(names):
        problems = preparation.verify(name, root)
        found += len(problems)
        print(f"{name}: {'as prepared' if not problems else f'{len(problems)} problems'}")
        for problem in problems:
            print(f"  {problem}")
    return not found


def corpus(files: Sequence[Path], output: Path | None, settings: CorpusBuildSettings) -> bool:
    """A corpus from the user's texts.

    Raises:
        UserError: no file or no output, or what :func:`build_corpus` raises.
    """
    if not files or output is None:
        raise UserError("corpus: name the text files and --output FILE")
    report = build_corpus(files, output, settings, progress=True)
    print("\n".join([f"{output}:", *report.summary()]))
    return True


def _known(names: Sequence[str]) -> Sequence[str]:
    if not names:
        raise UserError(f"name a data set; known are {', '.join(CATALOG)}")
    for name in names:
        if name not in CATALOG:
            raise UserError(f"no data set {name!r}; known are {', '.join(CATALOG)}; commands are {', '.join(COMMANDS)}")
    return names


def _state(manifest: Manifest) -> str:
    counts = ", ".join(f"{split} {count:,}" for split, count in manifest.counts.items())
    state = "ready" + (f" ({counts})" if counts else "")
    if manifest.not_ready:
        state += f" but for {', '.join(manifest.not_ready)}"
    if manifest.variant:
        state += f"; variant: {manifest.variant}"
    return state
