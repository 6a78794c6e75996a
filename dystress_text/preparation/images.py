"""Image sets: parquet files of the hub's layout, and ImageNet in a folder that the user has."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dystress_text.cli.progress import progress_bar
from dystress_text.errors import DataError, reason_of
from dystress_text.files.prepared_data import (
    CLASSES,
    Manifest,
    folder_names,
    image_and_other_names,
    read_manifest,
)
from dystress_text.preparation.data_sets import DataSet, Request

_ENCODINGS = {b"\x89PN": "PNG", b"\xff\xd8\xff": "JPEG"}


def parquet(
    entry: DataSet, paths: list[Path], source: str, request: Request, staging: Path
) -> Manifest:
    """Copy parquet files that hold the images of the set, or of a variant that the user names."""
    classes: dict[str, Counter[int]] = {split: Counter() for split in entry.counts}
    encodings: set[str] = set()
    image_column, label_column = entry.columns
    for path in progress_bar(paths, desc=entry.name, unit=" files"):
        split = "train" if path.name.startswith("train") else "test"
        try:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(1000, columns=list(entry.columns)):
                    classes[split].update(batch.column(label_column).to_pylist())
                    for picture in batch.column(image_column).to_pylist():
                        encodings.add(_ENCODINGS[picture["bytes"][:3]])
        except (pa.ArrowException, KeyError, TypeError, ValueError, OSError) as error:
            reason = f"{path} is damaged or of another layout: {reason_of(error)}"
            raise DataError(f"{entry.name}: {reason}") from error
        shutil.copyfile(path, staging / path.name)
    counts = {split: images.total() for split, images in classes.items()}
    # a published set has the same number of images of each class
    balanced = all(
        images == dict.fromkeys(range(entry.classes), entry.counts[split] // entry.classes)
        for split, images in classes.items()
    )
    balance = f", the same number of each of {entry.classes} classes"
    found = f"{counts} images"
    if balanced:
        found += balance
    request.compare(entry.name, source, found, f"{entry.counts} images{balance}")
    variant = request.variant
    if variant is None and encodings != {entry.encoding}:
        variant = f"{' and '.join(sorted(encodings))} copy"
    return Manifest(entry.name, source, variant, counts=counts)


def image_folder(entry: DataSet, request: Request) -> Manifest:
    """Note where the user has ImageNet, ``train/CLASS/*`` and ``val/CLASS/*``; copy nothing."""
    source = request.source
    if source is None or not all((source / split).is_dir() for split in entry.counts):
        reason = "--from FOLDER must name the folder that holds train/ and val/"
        raise DataError(f"{entry.name}: {reason}")
    classes, others = (folder_names(source / split) for split in entry.counts)
    if classes != others:
        raise DataError(
            f"{entry.name}: train/ and val/ of {str(source)!r} do not have the same classes; "
            "data/README.md says how to sort images that are in no class folder"
        )
    counts = _counts(source, classes)
    found = f"{counts} images in {len(classes)} classes"
    request.compare(entry.name, source, found, f"{entry.counts} images in {entry.classes} classes")
    folder = str(source.resolve())
    return Manifest(entry.name, str(source), request.variant, counts=counts, folder=folder)


def class_list(entry: DataSet, request: Request, staging: Path) -> Manifest:
    """Keep a list of classes (folder names, one a line) of the prepared ImageNet."""
    base = read_manifest(request.root / "imagenet1k")
    if base is None or base.folder is None:
        raise DataError("imagenet1k must be prepared first: dystress prepare imagenet1k")
    classes = request.classes
    if classes is None:
        reason = f"--classes FILE must name {entry.classes} classes (folder names), one a line"
        raise DataError(f"{entry.name}: {reason}")
    images = Path(base.folder)
    names = classes.read_text(encoding="utf-8", errors="replace").split()
    for name in names:
        if not (images / "train" / name).is_dir():
            reason = f"{classes} names {name!r}, which is not a class of {images}"
            raise DataError(f"{entry.name}: {reason}")
    request.compare(entry.name, classes, f"{len(set(names))} classes", f"{entry.classes} classes")
    (staging / CLASSES).write_text("".join(f"{name}\n" for name in names))
    return Manifest(
        entry.name,
        str(classes),
        request.variant or base.variant,
        counts=_counts(images, names),
        folder=base.folder,
    )


def _counts(folder: Path, classes: list[str]) -> dict[str, int]:
    counts = {}
    for split in ("train", "val"):
        counts[split] = 0
        for name in progress_bar(classes, desc=split):
            images, _ = image_and_other_names(folder / split / name)
            counts[split] += len(images)
    return counts
