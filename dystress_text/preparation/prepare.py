"""Getting a data set ready: fetch, check, move into place.

A set is built in a hidden folder and takes its place when all of it has been verified, so that an
interruption leaves nothing half-ready. A second preparation of a set at the same time is refused.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from huggingface_hub import snapshot_download

from dystress_text.errors import DataError, reason_of
from dystress_text.files.hub import hub_reachable
from dystress_text.files.lock import LOCK, locked
from dystress_text.files.prepared_data import Manifest, read_manifest, write_manifest
from dystress_text.files.whole import recover, sha256_of, whole_folder
from dystress_text.preparation import images, texts
from dystress_text.preparation.data_sets import CATALOG, DataSet, Request


def prepare(name: str, request: Request) -> Manifest:
    """Get a set ready, unless it is.

    Raises:
        DataError: it cannot be had, is another one or cannot be written.
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
            with whole_folder(final) as staging:
                manifest = _build(CATALOG[name], request, staging)
                paths = sorted(path for path in staging.rglob("*") if path.is_file())
                sums = {path.relative_to(staging).as_posix(): sha256_of(path) for path in paths}
                manifest = replace(manifest, files=sums)
                write_manifest(staging, manifest)
            return manifest
    except OSError as error:
        reason = f"{error.strerror or error} ({error.filename or request.root})"
        raise DataError(f"{name}: {reason}") from error


def _build(entry: DataSet, request: Request, staging: Path) -> Manifest:
    if entry.name == "imagenet1k":
        return images.image_folder(entry, request)
    if entry.name == "imagenet100":
        return images.class_list(entry, request, staging)
    if request.source is None:
        source = str(entry.repository)
        paths = _from_hub(entry)
    else:
        source = str(request.source)
        paths = _from_local(entry, request.source)
    if entry.name == "wiki1m":
        return texts.wiki1m(paths[0], source, request, staging)
    if entry.name == "senteval":
        return texts.senteval(paths[0], source, request, staging)
    return images.parquet(entry, paths, source, request, staging)


def _from_hub(entry: DataSet) -> list[Path]:
    """Return the set's files in huggingface_hub's cache, fetched where they are not there.

    An interrupted fetch goes on.
    """
    if not hub_reachable():
        reason = "the hub cannot be reached; --from FOLDER takes a copy on this machine"
        raise DataError(f"{entry.name}: {reason}")
    assert entry.repository is not None
    try:
        fetched = snapshot_download(
            entry.repository, repo_type="dataset", allow_patterns=list(entry.files)
        )
    except Exception as error:  # whatever the network, the hub or the file system says
        reason = f"{entry.repository} cannot be fetched: {reason_of(error)}"
        raise DataError(f"{entry.name}: {reason}") from error
    paths = [path for pattern in entry.files for path in sorted(Path(fetched).glob(pattern))]
    if not paths:
        raise DataError(f"{entry.name}: the hub's {entry.repository} has no file {entry.files[0]}")
    for path in paths:
        stored = path.resolve()  # the cache names a large file by its SHA-256, as the hub states it
        if len(stored.name) == 64 and sha256_of(stored) != stored.name:
            stored.unlink()  # or the next try would find it again
            reason = f"{path.name} is not what the hub says that it is (sha256); try again"
            raise DataError(f"{entry.name}: {reason}")
    return paths


def _from_local(entry: DataSet, source: Path) -> list[Path]:
    """Return the set's files at a place that the user names.

    It is the file, or a folder with the hub's names or the set's.
    """
    if source.is_file() or source.is_fifo():
        return [source]
    if entry.name == "senteval":
        tasks = texts.folder_of_tasks(source)
        if tasks is not None:
            return [tasks]
    below = [f"{entry.name}*/**/{Path(pattern).name}" for pattern in entry.files]
    for patterns in (entry.files, below, [f"{entry.name}*.t*"]):
        found = [sorted(source.glob(pattern)) for pattern in patterns]
        if all(found):
            return [path for paths in found for path in paths]
    looked = f"{entry.files[0]}, {below[0]}"
    raise DataError(f"{entry.name}: not in {str(source)!r}; looked for {looked}")
