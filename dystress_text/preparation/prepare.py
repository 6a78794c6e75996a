"""Getting a data set ready: fetch, check, move into place.

A set is built in a hidden folder beside its place and renamed when all of it has been verified, so that an interruption
leaves nothing half-ready. A lock keeps two preparations of one set apart.
"""

from __future__ import annotations

import fcntl
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from dystress_text.errors import DataError
from dystress_text.files.prepared_data import MANIFEST, Manifest, read_manifest, write_manifest
from dystress_text.files.whole import FileRecord, sha256_of
from dystress_text.preparation import images, texts
from dystress_text.preparation.catalog import CATALOG, DataSet
from dystress_text.preparation.sources import from_hub, from_local


@dataclass(frozen=True)
class Request:
    """What the user asked for.

    Attributes:
        root: of prepared data.
        source: a local file or folder instead of the hub.
        variant: what the data are, if they are knowingly not the published ones.
        classes: a file with one class (folder name) a line.
        ratio: of the smallest to the largest class of a long-tailed set.
        seed: of the choice of a long-tailed set.
        again: prepare what is ready once more.
    """

    root: Path
    source: Path | None = None
    variant: str | None = None
    classes: Path | None = None
    ratio: float = 0.01
    seed: int = 0
    again: bool = False


def prepare(name: str, request: Request) -> Manifest:
    """Get a set ready, unless it is.

    Raises:
        DataError: it cannot be had, is not what it should be, or cannot be written.
    """
    entry = CATALOG[name]
    final = request.root / entry.folder
    try:
        request.root.mkdir(parents=True, exist_ok=True)
        with _locked(request.root / f".{entry.folder}.lock", name):
            _recover(final)
            manifest = read_manifest(final)
            if manifest is not None and _is_ready(entry, manifest) and not (request.source or request.again):
                return manifest
            with _staging(final) as staging:
                manifest = _build(entry, request, staging)
                write_manifest(staging, replace(manifest, files=_records(staging)))
                _swap(staging, final)
            done = read_manifest(final)
            assert done is not None
            return done
    except OSError as error:
        raise DataError(f"{name}: {error.strerror or error} ({error.filename or request.root})") from error


def verify(name: str, root: Path) -> list[str]:
    """What differs between a prepared set and its record; nothing if all is well.

    Raises:
        DataError: the set has not been prepared.
    """
    folder = root / CATALOG[name].folder
    manifest = read_manifest(folder)
    if manifest is None:
        raise DataError(f"{name} has not been prepared in {str(folder)!r}")
    problems = [f"{part}: {reason}" for part, reason in manifest.not_ready.items()]
    for path, record in manifest.files.items():
        file = folder / path
        if not file.is_file():
            problems.append(f"{path}: missing")
        elif file.stat().st_size != record.bytes:
            problems.append(f"{path}: {file.stat().st_size:,} bytes, {record.bytes:,} expected")
        elif sha256_of(file) != record.sha256:
            problems.append(f"{path}: its content has changed (sha256)")
    if manifest.folder is not None and not Path(manifest.folder).is_dir():
        problems.append(f"{manifest.folder}: the folder with the images is gone")
    return problems


def _is_ready(entry: DataSet, manifest: Manifest) -> bool:
    if entry.name == "stsb":
        return "STS-B" not in manifest.not_ready
    return manifest.name == entry.name and not manifest.not_ready


def _build(entry: DataSet, request: Request, staging: Path) -> Manifest:
    if entry.name.endswith("-lt"):
        return images.long_tail(entry, request.root, request.ratio, request.seed, staging)
    if entry.name == "imagenet1k":
        return images.image_folder(entry, request.source, request.variant)
    if entry.name == "imagenet100":
        return images.class_list(entry, request.root, request.classes, request.variant, staging)
    paths = from_hub(entry) if request.source is None else from_local(entry, request.source)
    source = entry.repository if request.source is None else str(request.source)
    assert source is not None
    if entry.images is not None:
        return images.parquet(entry, paths, source, request.variant, staging)
    if entry.name == "wiki1m":
        return texts.wiki1m(paths[0], source, request.variant, staging)
    return texts.senteval(entry, paths[0], source, request.variant, request.root / entry.folder, staging)


def _records(folder: Path) -> dict[str, FileRecord]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST)
    return {path.relative_to(folder).as_posix(): FileRecord(path.stat().st_size, sha256_of(path)) for path in files}


@contextmanager
def _locked(path: Path, name: str) -> Iterator[None]:
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"{name}: another process prepares it; waiting", file=sys.stderr, flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _staging(final: Path) -> Iterator[Path]:
    """A fresh folder on the same file system, gone afterwards."""
    for old in final.parent.glob(f".{final.name}.preparing-*"):  # of a process that was killed; the lock is ours
        shutil.rmtree(old)
    folder = Path(tempfile.mkdtemp(prefix=f".{final.name}.preparing-", dir=final.parent))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _swap(staging: Path, final: Path) -> None:
    before = final.with_name(f".{final.name}.before")
    if final.exists():
        final.rename(before)
    staging.rename(final)
    shutil.rmtree(before, ignore_errors=True)


def _recover(final: Path) -> None:
    """Undo a swap that was killed in the middle."""
    before = final.with_name(f".{final.name}.before")
    if before.exists() and not final.exists():
        before.rename(final)
    shutil.rmtree(before, ignore_errors=True)
