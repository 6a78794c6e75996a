"""Prepare image sets: from parquet files in the hub's layout, or ImageNet from a folder."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dystress_text.cli.progress import progress_bar
from dystress_text.errors import DataError, reason_of
from dystress_text.io.prepared_data import CLASSES, Manifest, read_manifest
from dystress_text.preparation.data_sets import Request
from dystress_text.preparation.prepare import files_of
from vision.data.catalogue import ImageData
from vision.data.folders import read_folder
from vision.data.parquet_files import columns_of

_ENCODINGS = {b"\x89PN": "PNG", b"\xff\xd8\xff": "JPEG"}


def build(entry: ImageData, request: Request, staging: Path) -> Manifest:
    """Check a set, and copy it or record where the user keeps it; return its manifest.

    Args:
        entry: the set.
        request: the options, such as where its files come from.
        staging: folder for the copy.

    Raises:
        DataError: the files are not those of the set, and the user names no variant.
    """
    if entry.name == "imagenet1k":
        return _image_folder(entry, request)
    if entry.name == "imagenet100":
        return _class_list(entry, request, staging)
    return _parquet(entry, files_of(entry, request), request, staging)


def _parquet(entry: ImageData, paths: list[Path], request: Request, staging: Path) -> Manifest:
    """Copy parquet files, and check that they hold the images of the set."""
    source = str(request.source or entry.repository)
    counts = dict.fromkeys(entry.counts, 0)
    labels: Counter[int] = Counter()
    encodings: set[str] = set()
    for path in progress_bar(paths, desc=entry.name, unit=" files"):
        split = "train" if path.name.startswith("train") else "test"
        try:
            image, label = columns_of(pq.read_schema(path))
            table = pq.read_table(path, columns=[image, label])
            labels.update(table[label].to_pylist())
            files = pc.struct_field(table[image], "bytes")
            for beginning in pc.binary_slice(files, 0, 3).unique().to_pylist():
                encodings.add(_ENCODINGS[beginning])
            counts[split] += len(table)
        except (pa.ArrowException, KeyError, TypeError, ValueError, OSError) as error:
            raise DataError(
                f"{entry.name}: {path} is damaged or has an unexpected layout: {reason_of(error)}"
            ) from error
        shutil.copyfile(path, staging / path.name)
    classes = str(len(labels))
    if len(set(labels.values())) > 1:  # no published set is unbalanced
        classes += " unequal"
    _compare(entry, request, source, counts, classes)
    variant = request.variant
    if variant is None and encodings != {entry.encoding}:
        variant = f"{' and '.join(sorted(encodings))} copy"
    return Manifest(entry.name, source, variant, counts=counts)


def _image_folder(entry: ImageData, request: Request) -> Manifest:
    """Record the folder with ``train/CLASS/*`` and ``val/CLASS/*`` of ImageNet."""
    source = request.source
    if source is None or not (source / "train").is_dir() or not (source / "val").is_dir():
        raise DataError(
            f"{entry.name}: `from` FOLDER must name the folder that holds train/ and val/"
        )
    train = read_folder(source, "train")
    val = read_folder(source, "test")
    if train.classes != val.classes:
        raise DataError(
            f"{entry.name}: train/ and val/ of {str(source)!r} do not have the same classes; "
            "data/README.md says how to sort images that are in no class folder"
        )
    counts = {"train": len(train), "val": len(val)}
    _compare(entry, request, source, counts, str(len(train.classes)))
    folder = str(source.resolve())
    return Manifest(entry.name, str(source), request.variant, counts=counts, folder=folder)


def _class_list(entry: ImageData, request: Request, staging: Path) -> Manifest:
    """Write the names of the selected class folders of the prepared ImageNet, one a line."""
    base = read_manifest(request.root / "imagenet1k")
    classes = request.classes
    if base is None or base.folder is None:
        raise DataError("imagenet1k must be prepared first: vision/prepare.py imagenet1k")
    if classes is None:
        wanted = f"`classes` FILE must name {entry.classes} classes (folder names), one a line"
        raise DataError(f"{entry.name}: {wanted}")
    images = Path(base.folder)
    names = [*dict.fromkeys(classes.read_text(encoding="utf-8", errors="replace").split())]
    for name in names:
        if not (images / "train" / name).is_dir():
            reason = f"{classes} names {name!r}, which is not a class of {images}"
            raise DataError(f"{entry.name}: {reason}")
    request.compare(entry.name, classes, f"{len(names)} classes", f"{entry.classes} classes")
    (staging / CLASSES).write_text("".join(f"{name}\n" for name in names), "utf-8")
    variant = request.variant or base.variant
    counts = {
        "train": len(read_folder(images, "train", names)),
        "val": len(read_folder(images, "test", names)),
    }
    return Manifest(entry.name, str(classes), variant, counts=counts, folder=base.folder)


def _compare(
    entry: ImageData, request: Request, source: object, counts: dict[str, int], classes: str
) -> None:
    """Refuse images or classes that differ from the published ones, unless a variant is named."""
    counted = f"{counts} images in {classes} classes"
    expected = f"{entry.counts} images in {entry.classes} classes"
    request.compare(entry.name, source, counted, expected)
