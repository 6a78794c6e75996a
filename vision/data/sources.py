"""Finding the images of a data set by its name or path, before any is decoded."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from dystress_text.errors import DataError, ParameterError
from dystress_text.io.paths import data_root
from dystress_text.io.prepared_data import read_manifest, variant_of
from vision.data import SET_NAMES
from vision.data.folders import CLASSES, folder_names, image_and_other_names, is_hidden
from vision.data.image_files import ImageFiles, read_labels, read_parquet
from vision.data.images import EncodedImages, NoAccuracyError
from vision.data.long_tail import RATIO, long_tail_indices
from vision.data.train_list import listed

# names of a split's folder, in any case, or of its parquet files up to here; the first is preferred
_SPLITS = {"train": ("train",), "test": ("test", "val", "valid", "validation")}
_Split = tuple[ImageFiles, Tensor | None, tuple[str, ...]]  # images, labels, names of the classes


def find_images(
    name_or_path: str, split: str, data_dir: str | None = None, train_list: str | None = None
) -> EncodedImages:
    """Find the images of a split without reading any.

    Args:
        name_or_path: a known set, or a folder of images or of parquet files.
        split: ``train`` or ``test``.
        data_dir: folder of prepared data.
        train_list: file that chooses the training images.
    """
    known = name_or_path.replace("-", "_")
    name = known if known in SET_NAMES else None
    root = data_root(data_dir)
    folder = _folder_of(name_or_path, name, root)
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
        found = listed(found, Path(train_list))
    elif split == "train" and labels is not None and known.endswith("_lt") and name is not None:
        tail = found.subset(torch.from_numpy(long_tail_indices(labels.numpy())))
        found = tail.with_variant(f"long tail of ratio {RATIO}")
    return replace(found, files_id=found.checksum())


def _folder_of(name_or_path: str, name: str | None, root: Path) -> Path:
    """Return the folder of a known set, or the user's own, or one of prepared data."""
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
        known = ", ".join(SET_NAMES)
        problem = (
            f"{name_or_path!r} is neither a folder nor a known data set; known are {known}, shapes"
        )
    if not folder.is_dir():
        raise ParameterError("dataset", problem)
    return folder


def _read(folder: Path, split: str) -> _Split:
    """Return a split of a folder, or of the folder that prepared data point to."""
    manifest = read_manifest(folder)
    if manifest is not None and manifest.folder is not None:
        classes: list[str] = []
        listed = folder / CLASSES
        if listed.is_file():
            classes = listed.read_text("utf-8").split()
        return _from_folder(Path(manifest.folder), split, classes)
    tables = []
    for path in sorted(folder.rglob("*.parquet")):
        parts = path.relative_to(folder).parts
        if not any(is_hidden(part) for part in parts):
            tables.append(path)
    if tables:
        return _from_parquet(folder, tables, split)
    return _from_folder(folder, split)


def _with_labels(splits: Sequence[str], has_labels: Callable[[str], bool]) -> str:
    """Return the first of the test splits that has labels, else the first.

    Published test splits often have no labels.
    """
    first = splits[0]
    for name in splits:
        if has_labels(name):
            if name != first:
                note = f"{first} has no labels, so {name} is the test split"
                warnings.warn(note, stacklevel=5)
            return name
    return first


def _from_parquet(folder: Path, tables: Sequence[Path], split: str) -> _Split:
    splits: dict[str, list[Path]] = {}  # by the first file
    for name in _SPLITS[split]:
        files = [path for path in tables if path.name.casefold().startswith(name)]
        if files:
            splits[files[0].name] = files
    if not splits:
        wanted = f"parquet files of the {split} split ({split}-*.parquet)"
        raise NoAccuracyError("dataset", f"{str(folder)!r} has no {wanted}")

    def has_labels(name: str) -> bool:
        labels, _ = read_labels(splits[name])
        return labels is not None

    chosen = next(iter(splits))
    if split == "test":
        chosen = _with_labels(list(splits), has_labels)
    files = splits[chosen]
    folders = sorted({str(path.parent) for path in files})
    if len(folders) > 1:  # configurations may share their images
        reason = f"name one of the folders with parquet files: {', '.join(folders)}"
        raise ParameterError("dataset", reason)
    labels, classes = read_labels(files)
    return read_parquet(files), labels, classes


def _from_folder(root: Path, split: str, chosen: Sequence[str] = ()) -> _Split:
    """Return the images of class folders, all or the chosen ones, or images without classes."""
    folder = _split_folder(root, split)
    classes: Sequence[str] = folder_names(folder)
    if classes and chosen:
        classes = chosen
    files: list[Path] = []
    ignored: list[Path] = []
    labels: list[int] = []
    sources = [folder / name for name in classes] or [folder]
    for label, source in enumerate(sources):
        images: list[str] = []
        others: list[str] = []
        if source.is_dir():
            images, others = image_and_other_names(source)
        elif split == "test":
            continue  # it may lack chosen classes
        if classes and not images:
            problem = f"{source} is a class without images"
            if others:
                problem += f" of a known ending, such as .jpg; it has {others[0]}"
            raise DataError(problem)
        files += [source / name for name in images]
        ignored += [source / name for name in others]
        labels += [label] * len(images)
    strays, _ = image_and_other_names(folder)
    if classes and strays:
        raise DataError(f"{folder} has images next to class folders; move them into a class")
    if ignored:
        warnings.warn(
            f"{len(ignored):,} files in {folder} are ignored: their endings are not those of "
            f"images. The first: {ignored[0]}",
            stacklevel=4,
        )
    found = ImageFiles(files, np.arange(len(files)), str(folder))
    if not classes:
        return found, None, ()
    return found, torch.tensor(labels), tuple(classes)


def _split_folder(root: Path, split: str) -> Path:
    """Return ``root/train`` and the like; without such folders the root is the training split."""
    found = _split_names(root, split)
    tests = _split_names(root, "test")
    if not found and not tests and split == "train":
        return root
    if not found:
        problem = f"{str(root)!r} has no {split} split (a folder {' or '.join(_SPLITS[split])})"
        if tests:
            problem += f"; it has only {tests[0]}; move the other images or class folders to train"
        raise NoAccuracyError("dataset", problem)
    if split == "test":
        return root / _with_labels(found, lambda name: bool(folder_names(root / name)))
    return root / found[0]


def _split_names(root: Path, split: str) -> list[str]:
    """Return the names of a split's folders, the preferred one first."""
    known = _SPLITS[split]
    names = [name for name in folder_names(root) if name.casefold() in known]
    return sorted(names, key=lambda name: known.index(name.casefold()))
