"""Image sets: parquet files of the hub's layout, folders that the user has, and long-tailed choices from both."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dystress_text.cli.progress import progress_bar
from dystress_text.errors import DataError, reason_of
from dystress_text.files.image_sets import CLASSES, IMAGE_SETS, TRAIN_INDICES, PublishedImages, image_names
from dystress_text.files.long_tail import write_long_tail
from dystress_text.files.prepared_data import Manifest, read_manifest
from dystress_text.preparation.data_sets import Request

_ENCODINGS = {b"\x89PN": "PNG", b"\xff\xd8\xff": "JPEG"}


def parquet(spec: PublishedImages, paths: list[Path], source: str, request: Request, staging: Path) -> Manifest:
    """Copy parquet files and check that they hold the images of the set.

    Raises:
        DataError: a file is damaged, or counts or classes are not the set's and the user does not name a variant.
    """
    images: Counter[tuple[str, int]] = Counter()  # by split and class
    encodings: set[str] = set()
    for path in progress_bar(paths, desc=spec.name, unit=" files"):
        split = "train" if path.name.startswith("train") else "test"
        try:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(1000, columns=[spec.image_column, spec.label_column]):
                    images.update((split, label) for label in batch.column(spec.label_column).to_pylist())
                    pictures = batch.column(spec.image_column).to_pylist()
                    encodings.update(_ENCODINGS[picture["bytes"][:3]] for picture in pictures)
        except (pa.ArrowException, KeyError, TypeError, ValueError, OSError) as error:
            raise DataError(f"{spec.name}: {path} is damaged or of another layout: {reason_of(error)}") from error
        shutil.copyfile(path, staging / path.name)
    counts = {split: sum(n for (of, _), n in images.items() if of == split) for split in spec.counts}
    # a published set has the same number of images of each class
    published = {(s, label): n // spec.classes for s, n in spec.counts.items() for label in range(spec.classes)}
    balance = f", the same number of each of {spec.classes} classes"
    found = f"{counts} images{balance if images == published else ''}"
    request.compare(spec.name, source, found, f"{spec.counts} images{balance}")
    copy = None if encodings == {spec.encoding} else f"{' and '.join(sorted(encodings))} copy"
    return Manifest(spec.name, source, request.variant or copy, counts=counts)


def long_tail(spec: PublishedImages, request: Request, staging: Path) -> Manifest:
    """Choose a long-tailed part of a prepared set's training images and save their indices."""
    base = _base_of(spec, request.root)
    labels = np.array(_training_labels(IMAGE_SETS[base.name], request.root, base))
    indices = write_long_tail(staging / TRAIN_INDICES, spec.name, labels, request.ratio, request.seed)
    source = f"{base.name}, ratio {request.ratio:g}, seed {request.seed}"
    return Manifest(spec.name, source, base.variant, counts={"train": len(indices)})


def _training_labels(spec: PublishedImages, root: Path, manifest: Manifest) -> list[int]:
    folder = root / spec.name
    if manifest.folder is None:
        column = spec.label_column
        files = sorted(folder.glob("train*.parquet"))
        return [label for file in files for label in pq.read_table(file, columns=[column])[column].to_pylist()]
    names = (folder / CLASSES).read_text().split()
    return [place for place, name in enumerate(names) for _ in image_names(Path(manifest.folder) / "train" / name)]


def image_folder(spec: PublishedImages, request: Request) -> Manifest:
    """Note where the user has ImageNet: ``train/CLASS/*`` and ``val/CLASS/*``; nothing is copied.

    Raises:
        DataError: no such folder, other classes in val/ than in train/, or not ImageNet's number of them or of images.
    """
    source = request.source
    if source is None or not all((source / split).is_dir() for split in spec.counts):
        raise DataError(f"{spec.name}: --from FOLDER must name the folder that holds train/ and val/")
    classes = {
        split: sorted(place.name for place in (source / split).iterdir() if place.is_dir()) for split in spec.counts
    }
    if classes["train"] != classes["val"]:
        raise DataError(
            f"{spec.name}: train/ and val/ of {str(source)!r} do not have the same classes; data/README.md says how to "
            "sort images that are in no class folder"
        )
    counts = _counts(source, classes["train"])
    found = f"{counts} images in {len(classes['train'])} classes"
    request.compare(spec.name, source, found, f"{spec.counts} images in {spec.classes} classes")
    return Manifest(spec.name, str(source), request.variant, counts=counts, folder=str(source.resolve()))


def class_list(spec: PublishedImages, request: Request, staging: Path) -> Manifest:
    """Keep a list of classes (folder names, one a line) of the prepared ImageNet.

    Raises:
        DataError: no list, a class that is not there, or not the set's number of classes.
    """
    base, classes = _base_of(spec, request.root), request.classes
    images = Path(base.folder or "")
    if classes is None:
        raise DataError(f"{spec.name}: --classes FILE must name {spec.classes} classes (folder names), one a line")
    names = classes.read_text(encoding="utf-8", errors="replace").split()
    unknown = [name for name in names if not (images / "train" / name).is_dir()]
    if unknown:
        raise DataError(f"{spec.name}: {classes} names {unknown[0]!r}, which is not a class of {base.folder}")
    request.compare(spec.name, classes, f"{len(set(names))} classes", f"{spec.classes} classes")
    (staging / CLASSES).write_text("".join(f"{name}\n" for name in names))
    variant = request.variant or base.variant
    return Manifest(spec.name, str(classes), variant, counts=_counts(images, names), folder=base.folder)


def _counts(folder: Path, classes: list[str]) -> dict[str, int]:
    return {
        split: sum(len(image_names(folder / split / name)) for name in progress_bar(classes, desc=split))
        for split in ("train", "val")
    }


def _base_of(spec: PublishedImages, root: Path) -> Manifest:
    """The record of the set that this one is chosen from."""
    manifest = read_manifest(root / str(spec.chosen_from))
    if manifest is None:
        raise DataError(f"{spec.chosen_from} must be prepared first: dystress prepare {spec.chosen_from}")
    return manifest
