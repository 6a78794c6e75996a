"""Getting a data set ready: fetch, check, move into place.

A set is built in a hidden folder and takes its place when all of it has been verified, so that an interruption leaves
nothing half-ready. A lock keeps two preparations of one set apart.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from filelock import FileLock

from dystress_text.errors import DataError
from dystress_text.files.prepared_data import Manifest, read_manifest, write_manifest
from dystress_text.files.whole import record_of, records_of, recover, whole_folder
from dystress_text.preparation import images, texts
from dystress_text.preparation.class_folders import LABELLED_SETS, class_folders
from dystress_text.preparation.data_sets import CATALOG, DataSet
from dystress_text.preparation.sources import from_hub, from_local


@dataclass(frozen=True)
class Request:
    """What the user asked for: the program's options, and the folder of prepared data."""

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
        with FileLock(request.root / f".{entry.folder}.lock"):
            recover(final)
            for left in request.root.glob(f".{entry.folder}.*.writing"):  # by a process that was killed
                shutil.rmtree(left)
            manifest = read_manifest(final)
            if manifest is not None and _is_ready(entry, manifest) and not (request.source or request.again):
                return manifest
            with whole_folder(final) as staging:
                manifest = _build(entry, request, staging)
                manifest = replace(manifest, files=records_of(staging))
                write_manifest(staging, manifest)
            return manifest
    except OSError as error:
        raise DataError(f"{name}: {error.strerror or error} ({error.filename or request.root})") from error


def manifest_of(name: str, root: Path) -> Manifest:
    """The record of a prepared set; a DataError if there is none."""
    folder = root / CATALOG[name].folder
    manifest = read_manifest(folder)
    if manifest is None:
        raise DataError(f"{name} has not been prepared in {str(folder)!r}")
    return manifest


def verify(name: str, root: Path) -> list[str]:
    """What differs between a prepared set and its record; nothing if all is well."""
    folder, manifest = root / CATALOG[name].folder, manifest_of(name, root)
    problems = [f"{part}: {reason}" for part, reason in manifest.not_ready.items()]
    for path, record in manifest.files.items():
        if not (folder / path).is_file():
            problems.append(f"{path}: missing")
        elif record_of(folder / path) != record:
            problems.append(f"{path}: its content has changed")
    if manifest.folder is not None and not Path(manifest.folder).is_dir():
        problems.append(f"{manifest.folder}: the folder with the images is gone")
    return problems


def _is_ready(entry: DataSet, manifest: Manifest) -> bool:
    if entry.name == "stsb":
        return "STS-B" not in manifest.not_ready
    return manifest.name == entry.name and not manifest.not_ready


def _build(entry: DataSet, request: Request, staging: Path) -> Manifest:
    spec = entry.images
    if spec is not None and spec.long_tailed:
        return images.long_tail(spec, request.root, request.ratio, request.seed, staging)
    if spec is not None and spec.chosen_from is not None:
        return images.class_list(spec, request.root, request.classes, request.variant, staging)
    if spec is not None and entry.repository is None:
        return images.image_folder(spec, request.source, request.variant)
    if entry.name in LABELLED_SETS:
        return class_folders(entry.name, request.source, request.variant, staging)
    paths = from_hub(entry) if request.source is None else from_local(entry, request.source)
    source = str(request.source or entry.repository)
    if spec is not None:
        return images.parquet(spec, paths, source, request.variant, staging)
    if entry.name == "wiki1m":
        return texts.wiki1m(paths[0], source, request.variant, staging)
    return texts.senteval(entry, paths[0], source, request.variant, request.root / entry.folder, staging)
