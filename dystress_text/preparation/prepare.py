"""Download a data set, verify it, and move it into place.

A set is built in a hidden folder and moved when it has been verified, so that an interruption
leaves nothing half-ready. A lock prevents two preparations of one set at a time.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from huggingface_hub import snapshot_download

from dystress_text.errors import DataError, reason_of
from dystress_text.io.atomic import atomic_folder, recover, sha256_of
from dystress_text.io.hub import hub_reachable
from dystress_text.io.lock import LOCK, locked
from dystress_text.io.prepared_data import Manifest, read_manifest, write_manifest
from dystress_text.preparation.data_sets import DataSet, Request


def prepare(name: str, request: Request, build: Callable[[Path], Manifest]) -> Manifest:
    """Prepare a set, unless it is ready.

    Args:
        name: name of the set and of its folder.
        request: options of the program.
        build: puts the verified files into a folder.

    Raises:
        DataError: the set cannot be downloaded or written, or is not the published one.
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
                return manifest
            with atomic_folder(final) as staging:
                manifest = build(staging)
                paths = sorted(path for path in staging.rglob("*") if path.is_file())
                sums = {path.relative_to(staging).as_posix(): sha256_of(path) for path in paths}
                manifest = replace(manifest, files=sums)
                write_manifest(staging, manifest)
            return manifest
    except OSError as error:
        raise DataError(
            f"{name}: {error.strerror or error} ({error.filename or request.root})"
        ) from error


def files_of(entry: DataSet, request: Request) -> list[Path]:
    """Return the files of a set, local or from the hub."""
    return _from_hub(entry) if request.source is None else _from_local(entry, request.source)


def _from_hub(entry: DataSet) -> list[Path]:
    """Return the files in huggingface_hub's cache; an interrupted download is continued."""
    assert entry.repository is not None
    if not hub_reachable():
        raise DataError(
            f"{entry.name}: the hub cannot be reached; --from FOLDER takes a copy on this machine"
        )
    try:
        folder = Path(
            snapshot_download(
                entry.repository, repo_type="dataset", allow_patterns=list(entry.files)
            )
        )
    except Exception as error:  # of network, hub or file system
        raise DataError(
            f"{entry.name}: {entry.repository} cannot be fetched: {reason_of(error)}"
        ) from error
    paths = [path for pattern in entry.files for path in sorted(folder.glob(pattern))]
    if not paths:
        raise DataError(f"{entry.name}: the hub's {entry.repository} has no file {entry.files[0]}")
    for path in paths:
        stored = path.resolve()  # the cache names a large file by its SHA-256
        if len(stored.name) == 64 and sha256_of(stored) != stored.name:
            stored.unlink()  # or the next attempt would find it
            raise DataError(
                f"{entry.name}: {path.name} is not what the hub says (SHA-256); try again"
            )
    return paths


def _from_local(entry: DataSet, source: Path) -> list[Path]:
    """Return the files at a local path: one file, or a folder that has them by name."""
    if source.is_file() or source.is_fifo():
        return [source]
    below = [f"{entry.name}*/**/{Path(pattern).name}" for pattern in entry.files]
    for patterns in (entry.files, below, [f"{entry.name}*.t*"]):
        found = [sorted(source.glob(pattern)) for pattern in patterns]
        if all(found):
            return [path for paths in found for path in paths]
    raise DataError(
        f"{entry.name}: not in {str(source)!r}; looked for {entry.files[0]}, {below[0]}"
    )
