"""Finding the images of a data set by its name or path, before any is decoded."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dystress_text.errors import DataError, ParameterError, reason_of
from dystress_text.files.places import data_root
from dystress_text.files.prepared_data import (
    CLASSES,
    folder_names,
    image_and_other_names,
    is_hidden,
    read_manifest,
    variant_of,
)
from vision.data import SET_NAMES
from vision.data.image_files import ImageFiles, read_labels, read_parquet
from vision.data.images import EncodedImages, NoAccuracyError
from vision.data.long_tail import RATIO, long_tail_indices

_SPLITS = {  # the first of these folders counts, or files that begin so; a word such as _set or a number may follow
    "train": ("train", "training"),
    "test": ("test", "testing", "val", "valid", "validation", "dev", "eval", "evaluation"),
}
_AFTER_A_SPLIT = re.compile(r"[\W_]*(set|split|data|images)?\d*$")


def find_images(
    name_or_path: str, split: str, data_dir: str | None = None, train_list: str | None = None
) -> EncodedImages:
    """The images of a set by its name, or of a folder of images or of parquet files; none of them
    is read.
    """
    known = name_or_path.replace("-", "_")
    name = known if known in SET_NAMES else None
    folder = _folder_of(name_or_path, name, data_root(data_dir))
    manifest = read_manifest(folder)
    if manifest is not None and manifest.folder is not None:
        chosen = folder / CLASSES
        classes = chosen.read_text("utf-8").split() if chosen.is_file() else ()
        read = _from_folder(Path(manifest.folder), split, classes)
    elif tables := _parquet_files(folder):
        read = _from_parquet(folder, tables, split)
    else:
        read = _from_folder(folder, split)
    files, labels, class_names = read
    found = EncodedImages(
        name=name or folder.resolve().name,
        files=files,
        labels=labels,
        classes=class_names,
        variant=variant_of(folder),
    )
    if len(found) == 0:
        raise DataError(f"{folder} has no images")
    if split == "train" and train_list is not None:
        found = _chosen_by_list(found, Path(train_list))
    elif split == "train" and name and name.endswith("_lt") and found.labels is not None:
        tail = found.subset(torch.from_numpy(long_tail_indices(found.labels.numpy())))
        found = tail.with_variant(f"long tail of ratio {RATIO}")
    return replace(found, files_id=found.checksum())


def _folder_of(name_or_path: str, name: str | None, root: Path) -> Path:
    """Where a known set has been prepared, or the user's folder or that of prepared data under this
    name.
    """
    if name is not None:
        folder = root / name.removesuffix("_lt").replace("_", "-")
        problem = (
            f"{folder.name} has not been prepared ({folder} does not exist). Run dystress prepare {folder.name}, or "
            "name a folder with your own images"
        )
    else:
        folder = path if (path := Path(name_or_path)).is_dir() else root / name_or_path
        known = ", ".join((*SET_NAMES, "shapes"))
        problem = f"{name_or_path!r} is neither a folder nor a known data set; known are {known}"
    if not folder.is_dir():
        raise ParameterError("dataset", problem)
    return folder


def _chosen_by_list(found: EncodedImages, file: Path) -> EncodedImages:
    """The images that a list chooses; the variant says how many a class has, which a list in
    another order changes.
    """
    rows = _positions(found, file) if file.suffix == ".npy" else _named(found, file)
    chosen = found.subset(sorted(set(rows)))
    sizes = (
        []
        if chosen.labels is None
        else torch.bincount(chosen.labels, minlength=len(found.classes)).tolist()
    )
    a_class = f", {min(sizes):,} to {max(sizes):,} a class" if sizes else ""
    return chosen.with_variant(f"listed in {file.name}, {len(chosen):,} images{a_class}")


def _positions(found: EncodedImages, file: Path) -> list[int]:
    """A NumPy array of positions, from 0, as Kukleva et al. have them."""
    try:
        rows = np.load(file, mmap_mode="r", allow_pickle=False)
    except (OSError, EOFError, ValueError) as error:
        raise ParameterError(
            "train_list", f"{str(file)!r} cannot be read as a NumPy array: {reason_of(error)}"
        ) from error
    whole = isinstance(rows, np.ndarray) and rows.ndim == 1 and rows.dtype.kind in "iu"
    if not whole or len(rows) == 0 or rows.min() < 0 or rows.max() >= len(found):
        said = f"{str(file)!r} must hold one row of whole numbers, positions from 0 to {len(found) - 1:,}"
        raise ParameterError("train_list", said)
    return [int(row) for row in rows]


def _named(found: EncodedImages, file: Path) -> list[int]:
    """A path a line, within the training images' folder or the one around it."""
    paths = found.files.contents
    if not isinstance(paths, list):
        raise ParameterError(
            "train_list",
            f"{found.name} is of parquet files; an array of positions, FILE.npy, chooses there",
        )
    try:
        lines = file.read_text("utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise ParameterError(
            "train_list", f"{str(file)!r} cannot be read: {reason_of(error)}"
        ) from error
    # published lists have a number of the class after each path, in an order of their own
    names = [re.sub(r"\s+\d+$", "", line.strip()) for line in lines if line.strip()]
    folder = paths[0].parents[1 if found.classes else 0]
    row_of = {path: row for row, path in enumerate(paths)}
    rows = [row_of.get(folder / name, row_of.get(folder.parent / name)) for name in names]
    missing = [name for name, row in zip(names, rows, strict=True) if row is None]
    if missing or not names:
        problem = (
            f"{len(missing):,} files that {folder} does not have; the first: {missing[0]}"
            if missing
            else "none"
        )
        raise ParameterError("train_list", f"files that {str(file)!r} names: {problem}")
    return [row for row in rows if row is not None]


def _parquet_files(folder: Path) -> list[Path]:
    found = sorted(folder.rglob("*.parquet"))
    return [path for path in found if not any(map(is_hidden, path.relative_to(folder).parts))]


def _labelled(splits: Sequence[str], has_labels: Callable[[str], bool]) -> str:
    """The first of the splits that may be meant which has labels, else the first; a line says if it
    is another: published test splits often have none.
    """
    chosen = next((split for split in splits if has_labels(split)), splits[0])
    if chosen != splits[0]:
        warnings.warn(
            f"{splits[0]} has no labels, so {chosen} is taken as the test split", stacklevel=4
        )
    return chosen


def _from_parquet(
    folder: Path, tables: Sequence[Path], split: str
) -> tuple[ImageFiles, Tensor | None, tuple[str, ...]]:
    splits: dict[str, list[Path]] = {}  # by the first file
    for word in _SPLITS[split]:
        if files := [path for path in tables if path.name.casefold().startswith(word)]:
            splits[files[0].name] = files
    if not splits:
        raise NoAccuracyError(
            "dataset",
            f"{str(folder)!r} has no parquet files of the {split} split ({split}-*.parquet)",
        )
    chosen = next(iter(splits))
    if split == "test":
        chosen = _labelled([*splits], lambda name: read_labels(splits[name])[0] is not None)
    files = splits[chosen]
    if len({path.parent for path in files}) > 1:  # configurations may share their images
        folders = ", ".join(sorted({str(path.parent) for path in files}))
        raise ParameterError("dataset", f"name one of the folders with parquet files: {folders}")
    return read_parquet(files), *read_labels(files)


def _from_folder(
    root: Path, split: str, classes: Sequence[str] = ()
) -> tuple[ImageFiles, Tensor | None, tuple[str, ...]]:
    """Class folders, or images without classes. ``classes`` selects and orders the class folders."""
    folder = _split_folder(root, split)
    found = folder_names(folder)
    if not classes and found:
        # the training split numbers the classes, so that a test split without one of them agrees
        # with it
        numbered = next((root / name for _, name in _named_for(root, "train")), folder)
        classes = folder_names(numbered)
        if unknown := {*found} - {*classes}:
            raise DataError(f"{folder / min(unknown)}: a class that {numbered} does not have")
    images, others = image_and_other_names(folder)
    if images and found:
        raise DataError(
            f"{folder} has images next to class folders, such as {images[0]}; move them into a class"
        )
    files = [folder / name for name in images]
    passed_over = [folder / name for name in others]
    labels: list[int] = []
    for label, name in enumerate(classes if found else ()):
        place = folder / name
        images, others = image_and_other_names(place) if place.is_dir() else ([], [])
        if not images and (place.is_dir() or split == "train"):
            but = f" of a known ending, such as .jpg; it has {others[0]}" if others else ""
            raise DataError(f"{place} is a class without images{but}")
        files += [place / name for name in images]
        passed_over += [place / name for name in others]
        labels += [label] * len(images)
    if passed_over:
        warnings.warn(
            f"{len(passed_over):,} files in {folder} are passed over, as their endings are not those "
            f"of images; the first: {passed_over[0]}",
            stacklevel=3,
        )
    known = tuple(classes) if found else ()
    return ImageFiles(files, np.arange(len(files))), torch.tensor(labels) if found else None, known


def _split_folder(root: Path, split: str) -> Path:
    """``root/train`` and the like. A folder without such folders is a training split as a whole."""
    found, tests = _named_for(root, split), _named_for(root, "test")
    if len({rank for rank, _ in found[:2]}) < len(found[:2]):
        raise DataError(
            f"{root} has both {found[0][1]} and {found[1][1]}; keep one for the {split} split"
        )
    if not found:
        if split == "train" and not tests:
            return root
        has = "none of them"
        if tests:
            has = f"{tests[0][1]} alone; move the other images, or class folders, into train"
        wanted = " or ".join(_SPLITS[split])
        raise NoAccuracyError(
            "dataset", f"{str(root)!r} has no {split} split (a folder {wanted}); it has {has}"
        )
    chosen = found[0][1]
    if split == "test":
        chosen = _labelled(
            [name for _, name in found], lambda name: bool(folder_names(root / name))
        )
    splits = {name for each in _SPLITS for _, name in _named_for(root, each)}
    if others := [name for name in folder_names(root) if name not in splits]:
        warnings.warn(
            f"{len(others):,} folders beside {root / chosen} are passed over; the first: "
            f"{others[0]}. If {chosen} is a class, give the folder another name",
            stacklevel=4,
        )
    return root / chosen


def _named_for(root: Path, split: str) -> list[tuple[int, str]]:
    """The folders that are a split's by their name in any case, the preferred one first, and their
    ranks.
    """
    words = {name: _AFTER_A_SPLIT.sub("", name.casefold()) for name in folder_names(root)}
    return sorted(
        (_SPLITS[split].index(word), name) for name, word in words.items() if word in _SPLITS[split]
    )
