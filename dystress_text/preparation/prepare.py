"""Download a data set, verify it, and move it into place.

A data set is built in a hidden folder and moved when it is verified, so an interruption leaves
nothing half-ready. A lock keeps two programs from preparing one data set at the same time.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from huggingface_hub import snapshot_download

from dystress_text.errors import DataError, reason_of
from dystress_text.io.atomic import atomic_folder, recover
from dystress_text.io.hub import hub_reachable
from dystress_text.io.lock import LOCK, locked
from dystress_text.io.prepared_data import CLASSES, Manifest, read_manifest, write_manifest
from dystress_text.preparation.data_sets import DataSet, Request


def prepare(name: str, request: Request, build: Callable[[Path], Manifest]) -> Manifest:
    """Prepare a data set, unless it is ready.

    Args:
        name: the name of the data set and of its folder.
        request: the options of the program.
        build: a function that puts the verified files into a folder.

    Raises:
        DataError: the set cannot be downloaded or written, is not the published one, or is ready
            and was made with other options.
    """
    final = request.root / name
    try:
        request.root.mkdir(parents=True, exist_ok=True)
        with locked(request.root / f".{name}{LOCK}"):
            for left in request.root.glob(f".{name}.*.writing"):  # by a killed process
                shutil.rmtree(left)
            recover(final)
            manifest = read_manifest(final)
            if manifest is not None and not (manifest.not_ready or request.source or request.again):
                _check_options(request, manifest, final)
                return manifest
            with atomic_folder(final) as staging:
                manifest = build(staging)
                write_manifest(staging, manifest)
            return manifest
    except OSError as error:
        reason = f"{error.strerror or error} ({error.filename or request.root})"
        raise DataError(f"{name}: {reason}") from error


def _check_options(request: Request, manifest: Manifest, folder: Path) -> None:
    """Reject options that a ready set was not made with."""
    changed = [] if request.variant in (None, manifest.variant) else [f"variant {request.variant}"]
    if request.classes is not None:
        words = request.classes.read_text(encoding="utf-8", errors="replace").split()
        if [*dict.fromkeys(words)] != (folder / CLASSES).read_text(encoding="utf-8").split():
            changed.append(f"the classes of {request.classes}")
    if changed:
        made = f"{manifest.name} is ready, made from {manifest.source}"
        variant = "" if manifest.variant is None else f", variant {manifest.variant}"
        again = f"`again` makes it with {' and '.join(changed)}"
        raise DataError(f"{made}{variant}; {again}")


def files_of(entry: DataSet, request: Request) -> list[Path]:
    """Return the files of a data set, from the user or from the hub.

    Raises:
        DataError: there are no files.
    """
    source = request.source
    if source is None:
        source = _from_hub(entry)
    elif source.is_file():
        return [source]
    below = [f"{entry.name}*/**/{Path(pattern).name}" for pattern in entry.files]
    for patterns in (entry.files, below):
        found = [sorted(source.glob(pattern)) for pattern in patterns]
        if all(found):
            return [path for paths in found for path in paths]
    looked_for = f"{entry.files[0]}, {below[0]}"
    raise DataError(f"{entry.name}: not in {str(source)!r}; looked for {looked_for}")


def _from_hub(entry: DataSet) -> Path:
    """Return the folder of the files in huggingface_hub's cache; resume a download."""
    assert entry.repository is not None
    if not hub_reachable():
        raise DataError(
            f"{entry.name}: the hub cannot be reached; `from` FOLDER takes a copy on this machine"
        )
    patterns = list(entry.files)
    try:
        return Path(
            snapshot_download(entry.repository, repo_type="dataset", allow_patterns=patterns)
        )
    except Exception as error:  # of network, hub or file system
        reason = f"{entry.repository} cannot be fetched: {reason_of(error)}"
        raise DataError(f"{entry.name}: {reason}") from error
