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
from dystress_text.io.paths import data_root
from dystress_text.io.prepared_data import (
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

# folders of a split, in any case, or beginnings of its parquet files; the first one counts
_SPLITS = {"train": ("train",), "test": ("test", "val", "valid", "validation")}
_Split = tuple[ImageFiles, Tensor | None, tuple[str, ...]]  # images, labels, names of the classes


def find_images(
    name_or_path: str, split: str, data_dir: str | None = None, train_list: str | None = None
) -> EncodedImages:
    """Return the images of a set by its name, or of a folder of images or of parquet files; none of
    them is read.
    """
    known = name_or_path.replace("-", "_")
    name = known if known in SET_NAMES else None
    folder = _folder_of(name_or_path, name, data_root(data_dir))
    files, labels, classes = _read(folder, split)
    found = EncodedImages(
        name=name or folder.resolve().name,
        files=files,
        labels=labels,
        classes=classes,
        variant=variant_of(folder),
    )
    if len(found) == 0:
        raise DataError(f"{folder} has no images")
    if split == "train" and train_list is not None:
        found = _listed(found, Path(train_list))
    elif split == "train" and labels is not None and known.endswith("_lt") and name is not None:
        tail = found.subset(torch.from_numpy(long_tail_indices(labels.numpy())))
        found = tail.with_variant(f"long tail of ratio {RATIO}")
    return replace(found, files_id=found.checksum())


def _folder_of(name_or_path: str, name: str | None, root: Path) -> Path:
    """Return where a known set has been prepared, or the user's folder or that of prepared data
    under this name.
    """
    if name is not None:
        folder = root / name.removesuffix("_lt").replace("_", "-")
        problem = (
            f"{folder.name} has not been prepared ({folder} does not exist). Run python "
            f"vision/prepare.py {folder.name}, or name a folder with your own images"
        )
    else:
        folder = Path(name_or_path)
        if not folder.is_dir():
            folder = root / name_or_path
        known = ", ".join((*SET_NAMES, "shapes"))
        problem = f"{name_or_path!r} is neither a folder nor a known data set; known are {known}"
    if not folder.is_dir():
        raise ParameterError("dataset", problem)
    return folder


def _listed(found: EncodedImages, file: Path) -> EncodedImages:
    """Return the images that a list chooses; the variant says how many a class has, which a list in
    another order changes.
    """
    try:
        rows = _positions(file, len(found)) if file.suffix == ".npy" else _named(file, found)
    except (OSError, EOFError, ValueError) as error:
        reason = f"{str(file)!r} cannot be read: {reason_of(error)}"
        raise ParameterError("train_list", reason) from error
    chosen = found.subset(sorted(set(rows)))
    variant = f"listed in {file.name}, {len(chosen):,} images"
    if chosen.labels is not None:
        sizes = torch.bincount(chosen.labels, minlength=len(found.classes))
        variant += f", {sizes.min():,} to {sizes.max():,} a class"
    return chosen.with_variant(variant)


def _positions(file: Path, count: int) -> list[int]:
    """Read a NumPy array of positions, from 0, as Kukleva et al. have them."""
    rows = np.load(file, mmap_mode="r", allow_pickle=False)
    whole = isinstance(rows, np.ndarray) and rows.ndim == 1 and rows.dtype.kind in "iu"
    if not whole or len(rows) == 0 or rows.min() < 0 or rows.max() >= count:
        raise ValueError(
            f"it must hold one row of whole numbers, positions from 0 to {count - 1:,}"
        )
    positions: list[int] = rows.tolist()
    return positions


def _named(file: Path, found: EncodedImages) -> list[int]:
    """Read a path a line, within the training images' folder or the one around it."""
    paths = found.files.contents
    if not isinstance(paths, list):
        raise ValueError(
            f"{found.name} is of parquet files; FILE.npy, an array of positions, chooses"
        )
    # published lists have a number of the class after each path, in an order of their own
    lines = (line.strip() for line in file.read_text("utf-8").splitlines())
    names = [re.sub(r"\s+\d+$", "", line) for line in lines if line]
    folder = paths[0].parents[1 if found.classes else 0]
    row_of = {path: row for row, path in enumerate(paths)}
    rows = [row_of.get(folder / name, row_of.get(folder.parent / name)) for name in names]
    missing = [name for name, row in zip(names, rows, strict=True) if row is None]
    if missing:
        raise ValueError(
            f"{len(missing):,} files that {folder} does not have, such as {missing[0]}"
        )
    if not names:
        raise ValueError("it names no file")
    return [row for row in rows if row is not None]


def _read(folder: Path, split: str) -> _Split:
    """Return a split of a folder, or of the one that a folder of prepared data points to."""
    manifest = read_manifest(folder)
    if manifest is not None and manifest.folder is not None:
        chosen = folder / CLASSES
        classes = chosen.read_text("utf-8").split() if chosen.is_file() else []
        return _from_folder(Path(manifest.folder), split, classes)
    tables = [
        path
        for path in sorted(folder.rglob("*.parquet"))
        if not any(map(is_hidden, path.relative_to(folder).parts))
    ]
    return _from_parquet(folder, tables, split) if tables else _from_folder(folder, split)


def _with_labels(splits: Sequence[str], has_labels: Callable[[str], bool]) -> str:
    """Return the first of the test splits that has labels, else the first; a line says if it is
    another: published test splits often have none.
    """
    chosen = next(filter(has_labels, splits), splits[0])
    if chosen != splits[0]:
        said = f"{splits[0]} has no labels, so {chosen} is taken as the test split"
        warnings.warn(said, stacklevel=5)
    return chosen


def _from_parquet(folder: Path, tables: Sequence[Path], split: str) -> _Split:
    splits: dict[str, list[Path]] = {}  # by the first file
    for word in _SPLITS[split]:
        files = [path for path in tables if path.name.casefold().startswith(word)]
        if files:
            splits[files[0].name] = files
    if not splits:
        wanted = f"parquet files of the {split} split ({split}-*.parquet)"
        raise NoAccuracyError("dataset", f"{str(folder)!r} has no {wanted}")
    chosen = next(iter(splits))
    if split == "test":
        chosen = _with_labels([*splits], lambda name: read_labels(splits[name])[0] is not None)
    files = splits[chosen]
    folders = sorted({str(path.parent) for path in files})
    if len(folders) > 1:  # configurations may share their images
        reason = f"name one of the folders with parquet files: {', '.join(folders)}"
        raise ParameterError("dataset", reason)
    return read_parquet(files), *read_labels(files)


def _from_folder(root: Path, split: str, classes: Sequence[str] = ()) -> _Split:
    """Return class folders, or images without classes. ``classes`` selects and orders the class
    folders.
    """
    folder = _split_folder(root, split)
    found = folder_names(folder)
    if not found:
        classes = ()
    elif not classes:
        # the training split numbers the classes, also of a test split without one of them
        trained = _split_names(root, "train")
        numbered = root / trained[0] if trained else folder
        classes = folder_names(numbered)
        unknown = {*found} - {*classes}
        if unknown:
            raise DataError(f"{folder / min(unknown)}: a class that {numbered} does not have")
    files: list[Path] = []
    passed_over: list[Path] = []
    labels: list[int] = []
    places = [folder / name for name in classes] or [folder]
    for label, place in enumerate(places):
        images, others = image_and_other_names(place) if place.is_dir() else ([], [])
        if classes and not images and (place.is_dir() or split == "train"):
            but = f" of a known ending, such as .jpg; it has {others[0]}" if others else ""
            raise DataError(f"{place} is a class without images{but}")
        files += [place / name for name in images]
        passed_over += [place / name for name in others]
        labels += [label] * len(images)
    contents = ImageFiles(files, np.arange(len(files)))
    if classes:
        images, others = image_and_other_names(folder)
        if images:
            reason = f"images next to class folders, such as {images[0]}; move them into a class"
            raise DataError(f"{folder} has {reason}")
        passed_over += [folder / name for name in others]
    if passed_over:
        warnings.warn(
            f"{len(passed_over):,} files in {folder} are passed over, as their endings are not "
            f"those of images; the first: {passed_over[0]}",
            stacklevel=4,
        )
    return contents, torch.tensor(labels) if classes else None, tuple(classes)


def _split_folder(root: Path, split: str) -> Path:
    """Return ``root/train`` and the like. A folder without such folders is a training split as a
    whole.
    """
    found = _split_names(root, split)
    tests = _split_names(root, "test")
    if not found and not tests and split == "train":
        return root
    if not found:
        problem = f"{str(root)!r} has no {split} split (a folder {' or '.join(_SPLITS[split])})"
        if tests:
            problem += (
                f"; it has {tests[0]} alone; move the other images, or class folders, into train"
            )
        raise NoAccuracyError("dataset", problem)
    if len({name.casefold() for name in found}) < len(found):
        raise DataError(f"{root} has both {' and '.join(found)}; keep one for the {split} split")
    chosen = found[0]
    if split == "test":
        chosen = _with_labels(found, lambda name: bool(folder_names(root / name)))
    others = {*folder_names(root)} - {*tests, *_split_names(root, "train")}
    if others:
        warnings.warn(
            f"{len(others):,} folders next to {root / chosen} are passed over; the first: "
            f"{min(others)}. If {chosen} is a class, give the folder another name",
            stacklevel=5,
        )
    return root / chosen


def _split_names(root: Path, split: str) -> list[str]:
    """Return the names of the folders that are a split's, the preferred one first."""
    words = _SPLITS[split]
    names = [name for name in folder_names(root) if name.casefold() in words]
    return sorted(names, key=lambda name: words.index(name.casefold()))
