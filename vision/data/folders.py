"""Folders of images: which files are images, and which subfolders are splits or classes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from dystress_text.errors import DataError, ParameterError
from dystress_text.io.lock import LOCK
from dystress_text.training.run_folder import RECORD
from vision.data.images import EncodedImages, ImageFiles
from vision.data.splits import choose_split, exact_splits, is_divided, names_of_split, split_word

# hidden files of file browsers, network disks and archives without a leading dot
_SYSTEM_NAMES = {
    "__macosx", "icon\r", "thumbs.db", "ehthumbs.db", "desktop.ini", "lost+found", "@eadir",
    "$recycle.bin", "system volume information", "#recycle", "__pycache__",
}  # fmt: skip
_IMAGES = {
    ".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp",
}  # fmt: skip
# how further splits begin, as STL-10 and SVHN have them
_UNLABELLED = ("unlabel", "unsupervised", "extra")


def list_files(folder: Path, recursive: bool = True) -> tuple[list[Path], list[Path]]:
    """Return the images in a folder, and its other visible files, sorted by path.

    The row of an image in its data set depends on this order.
    """
    images: list[Path] = []
    others: list[Path] = []
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        path = folder / entry.name
        # DirEntry.is_dir raises for a link to itself; a stat of every file would be slow
        is_folder = path.is_dir() if entry.is_symlink() else entry.is_dir()
        if is_folder:
            if recursive and _is_read(path):
                images_below, others_below = list_files(path)
                images += images_below
                others += others_below
        elif path.suffix.lower() in _IMAGES and not _is_hidden(path.name):
            images.append(path)
        elif not _is_hidden(path.name):
            others.append(path)
    return images, others


def read_folder(root: Path, split: str, wanted: Sequence[str] = ()) -> EncodedImages:
    """List the images of a split, with its subfolders as classes.

    Images next to subfolders have no class; with such images, all are read without labels.

    Args:
        root: the folder of the set; if it is not divided, all of it is the training split.
        split: ``train`` or ``test``.
        wanted: the classes to read, by default all. A test split may lack some.
    """
    folder, notes = _find_split(root, split)
    classes = _subfolders(folder)
    images, ignored = list_files(folder, recursive=False)
    if classes and wanted:
        classes = [name for name in wanted if split == "train" or name in classes]
    elif classes and images:
        beside = f"images next to folders, such as {images[0].name}"
        notes += (f"{folder} has {beside}: no classes, and all images are read without labels",)
        classes = []
    files: list[Path] = []
    labels: list[int] = []
    if not classes:
        files, ignored = list_files(folder)
    for label, name in enumerate(classes):
        if is_divided(exact_splits(_subfolders(folder / name))):
            reason = "is itself divided into splits; name that folder, or move its splits away"
            raise ParameterError("dataset", f"{folder / name} {reason}")
        of_class, others = list_files(folder / name)
        if not of_class:
            known = "no images of a known ending, such as .jpg,"
            raise DataError(f"{folder / name} has {known} and {len(others):,} other files")
        files += of_class
        ignored += others
        labels += [label] * len(of_class)
    if ignored:
        reason = "their endings are not those of images"
        first = f"The first: {ignored[0]}"
        notes += (f"{len(ignored):,} files in {folder} are ignored: {reason}. {first}",)
    return EncodedImages(
        name="",
        files=ImageFiles(files, np.arange(len(files)), str(folder)),
        labels=torch.tensor(labels) if classes else None,
        classes=tuple(classes),
        notes=notes,
    )


def _find_split(root: Path, split: str) -> tuple[Path, tuple[str, ...]]:
    """Return the folder of a split, and notes; an undivided root is the training split.

    Folders are splits only if every other folder with images is one, too, since a class may be
    called train. Longer names, such as train_images, are splits only if all folders have them.
    """

    def with_images(names: Sequence[str]) -> list[str]:
        return [name for name in names if list_files(root / name)[0]]

    names = _subfolders(root)
    splits = with_images(exact_splits(names))
    if not splits and all(map(split_word, names)) and is_divided(names):
        splits = names
    others = [name for name in names if name not in splits]
    classes: list[str] = []
    if splits:
        labelled = [name for name in others if not name.casefold().startswith(_UNLABELLED)]
        classes = with_images(labelled)
    nested = any(_subfolders(root / name) for name in splits)
    notes: tuple[str, ...] = ()
    if classes and not nested:
        notes = (f"{root / splits[0]} is not read as a split, because of {classes[0]}",)
        splits = []
    elif classes and not is_divided(splits):
        reason = f"{root / splits[0]} may be a split, or a class like {classes[0]}"
        raise ParameterError("dataset", f"{reason}; rename it, or move the others away")
    if not splits and split == "train":
        return root, notes
    images, _ = list_files(root, recursive=False)
    unread = [*(root / name for name in others), *images[:1]]
    of_split = names_of_split(splits, split)
    name, notes = choose_split(
        root, of_split, split, lambda name: bool(_subfolders(root / name)), unread
    )
    return root / name, notes


def _subfolders(folder: Path) -> list[str]:
    """Return the names of the visible subfolders, sorted."""
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and _is_read(path))


def _is_read(folder: Path) -> bool:
    """Return whether a folder is visible, and neither a training run nor a link to a parent."""
    is_run = any((folder / name).is_file() for name in (RECORD, LOCK))
    is_loop = folder.parent.resolve().is_relative_to(folder.resolve())
    return not (is_run or is_loop or _is_hidden(folder.name))


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name.casefold() in _SYSTEM_NAMES
