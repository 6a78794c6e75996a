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


def parquet(spec: PublishedImages, paths: list[Path], source: str, variant: str | None, staging: Path) -> Manifest:
    """Copy parquet files and check that they hold the images of the set.

    Raises:
        DataError: a file is damaged, or counts or classes are not the set's and the user does not name a variant.
    """
    encodings: Counter[str] = Counter()
    images: Counter[tuple[str, int]] = Counter()  # by split and class
    for path in progress_bar(paths, desc=spec.name, unit=" files"):
        split = "train" if path.name.startswith("train") else "test"
        try:
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(1000, columns=[spec.image_column, spec.label_column]):
                    images.update((split, label) for label in batch.column(spec.label_column).to_pylist())
                    pictures = batch.column(spec.image_column).to_pylist()
                    encodings.update(_encoding(picture["bytes"]) for picture in pictures)
        except (pa.ArrowException, KeyError, TypeError, ValueError, OSError) as error:
            raise DataError(f"{spec.name}: {path} is damaged or of another layout: {reason_of(error)}") from error
        shutil.copyfile(path, staging / path.name)
    counts = {split: sum(n for (of, _), n in images.items() if of == split) for split in spec.counts}
    # a published set has the same number of images of each class
    published = {(s, label): n // spec.classes for s, n in spec.counts.items() for label in range(spec.classes)}
    known = all(label in range(spec.classes) for _, label in images)
    if images != published and not (variant and known):
        raise DataError(
            f"{spec.name}: {source} holds {counts} images, {spec.counts} expected, the same number of each of "
            f"{spec.classes} classes; if it is knowingly another set, say so with --variant NAME"
        )
    if variant is None and set(encodings) != {spec.encoding}:
        variant = f"{' and '.join(sorted(encodings))} copy"
    return Manifest(spec.name, source, variant, counts=counts)


def _encoding(content: bytes) -> str:
    for magic, name in {b"\x89PNG": "PNG", b"\xff\xd8\xff": "JPEG"}.items():
        if content.startswith(magic):
            return name
    raise ValueError("an image that is neither PNG nor JPEG")


def long_tail(spec: PublishedImages, root: Path, ratio: float, seed: int, staging: Path) -> Manifest:
    """Choose a long-tailed part of a prepared set's training images and save their indices."""
    base_spec, base = _base_of(spec, root)
    labels = np.array(_training_labels(base_spec, root, base))
    indices = write_long_tail(staging / TRAIN_INDICES, spec.name, labels, ratio, seed)
    source = f"{base_spec.name}, ratio {ratio:g}, seed {seed}"
    return Manifest(spec.name, source, base.variant, counts={"train": len(indices)})


def _training_labels(spec: PublishedImages, root: Path, manifest: Manifest) -> list[int]:
    folder = root / spec.name
    if manifest.folder is None:
        column = spec.label_column
        files = sorted(folder.glob("train*.parquet"))
        return [label for file in files for label in pq.read_table(file, columns=[column])[column].to_pylist()]
    names = (folder / CLASSES).read_text().split()
    return [place for place, name in enumerate(names) for _ in image_names(Path(manifest.folder) / "train" / name)]


def image_folder(spec: PublishedImages, source: Path | None, variant: str | None) -> Manifest:
    """Note where the user has ImageNet: ``train/CLASS/*`` and ``val/CLASS/*``; nothing is copied.

    Raises:
        DataError: no such folder, or not ImageNet's number of classes and images.
    """
    if source is None or not all((source / split).is_dir() for split in spec.counts):
        raise DataError(f"{spec.name}: --from FOLDER must name the folder that holds train/ and val/")
    counts, classes = {}, {}
    for split in spec.counts:
        folders = sorted(path for path in (source / split).iterdir() if path.is_dir())
        classes[split] = [folder.name for folder in folders]
        counts[split] = sum(len(image_names(folder)) for folder in progress_bar(folders, desc=split, unit=" classes"))
    if not classes["val"] and (loose := len(image_names(source / "val"))):
        raise DataError(
            f"{spec.name}: {loose:,} images of {str(source / 'val')!r} are in no class folder; data/README.md says how "
            "to sort them"
        )
    if classes["train"] != classes["val"]:
        raise DataError(f"{spec.name}: train/ and val/ of {str(source)!r} do not have the same classes")
    if variant is None and (counts != spec.counts or len(classes["train"]) != spec.classes):
        raise DataError(
            f"{spec.name}: {str(source)!r} holds {counts} images in {len(classes['train'])} classes, {spec.counts} in "
            f"{spec.classes} expected; if it is knowingly another set, say so with --variant NAME"
        )
    return Manifest(spec.name, str(source), variant, counts=counts, folder=str(source.resolve()))


def class_list(spec: PublishedImages, root: Path, classes: Path | None, variant: str | None, staging: Path) -> Manifest:
    """Keep a list of classes (folder names, one a line) of the prepared ImageNet.

    Raises:
        DataError: no list, a class that is not there, or not the set's number of classes.
    """
    base_spec, base = _base_of(spec, root)
    images = Path(base.folder or "")
    if classes is None:
        raise DataError(f"{spec.name}: --classes FILE must name {spec.classes} classes (folder names), one a line")
    names = classes.read_text(encoding="utf-8", errors="replace").split()
    unknown = [name for name in names if not (images / "train" / name).is_dir()]
    if unknown:
        raise DataError(f"{spec.name}: {classes} names {unknown[0]!r}, which is not a class of {base.folder}")
    if variant is None and len(set(names)) != spec.classes:
        raise DataError(f"{spec.name}: {classes} names {len(set(names))} classes, {spec.classes} expected")
    (staging / CLASSES).write_text("".join(f"{name}\n" for name in names))
    counts = {split: sum(len(image_names(images / split / name)) for name in names) for split in base_spec.counts}
    return Manifest(spec.name, str(classes), variant or base.variant, counts=counts, folder=base.folder)


def _base_of(spec: PublishedImages, root: Path) -> tuple[PublishedImages, Manifest]:
    """The set that this one is chosen from, and its record."""
    assert spec.chosen_from is not None
    manifest = read_manifest(root / spec.chosen_from)
    if manifest is None:
        raise DataError(f"{spec.chosen_from} must be prepared first: dystress prepare {spec.chosen_from}")
    return IMAGE_SETS[spec.chosen_from], manifest
