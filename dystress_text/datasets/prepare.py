"""Getting a data set ready: fetch, check, move into place.

A set is built in a hidden folder and takes its place when all of it has been verified, so that an
interruption leaves nothing half-ready. A second preparation of a set at the same time is refused.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from huggingface_hub import snapshot_download

from dystress_text.datasets.data_sets import DataSet, Request
from dystress_text.errors import DataError, reason_of
from dystress_text.io.atomic import atomic_folder, recover, sha256_of
from dystress_text.io.hub import hub_reachable
from dystress_text.io.lock import LOCK, locked
from dystress_text.io.prepared_data import Manifest, read_manifest, write_manifest


def prepare(name: str, request: Request, build: Callable[[Path], Manifest]) -> Manifest:
    """Get a set ready, unless it is; a DataError says why it cannot be had, is another one or
    cannot be written. ``build`` puts it into a folder.
    """
    final = request.root / name
    try:
        request.root.mkdir(parents=True, exist_ok=True)
        with locked(request.root / f".{name}{LOCK}"):
            for left in request.root.glob(f".{name}.*.writing"):  # by a process that was killed
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
    """Return the set's files, where the user has them or from the hub."""
    return _from_hub(entry) if request.source is None else _from_local(entry, request.source)


def _from_hub(entry: DataSet) -> list[Path]:
    """The set's files in huggingface_hub's cache, fetched where they are not there; an interrupted
    fetch goes on.
    """
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
    except Exception as error:  # whatever the network, the hub or the file system says
        raise DataError(
            f"{entry.name}: {entry.repository} cannot be fetched: {reason_of(error)}"
        ) from error
    paths = [path for pattern in entry.files for path in sorted(folder.glob(pattern))]
    if not paths:
        raise DataError(f"{entry.name}: the hub's {entry.repository} has no file {entry.files[0]}")
    for path in paths:
        stored = path.resolve()  # the cache names a large file by its SHA-256, as the hub states it
        if len(stored.name) == 64 and sha256_of(stored) != stored.name:
            stored.unlink()  # or the next try would find it again
            raise DataError(
                f"{entry.name}: {path.name} is not what the hub says that it is (sha256); try again"
            )
    return paths


def _from_local(entry: DataSet, source: Path) -> list[Path]:
    """The set's files at a place that the user names: the file, or a folder with the hub's names or
    the set's.
    """
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
