"""Folders of images, without the hidden files of systems and the output of training."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from dystress_text.io.lock import LOCK
from dystress_text.training.run_folder import RECORD
from vision.data import SET_NAMES, SHAPES

# names of splits, as datasets knows them; the first that a set has is read
SPLITS = {
    "train": ("train", "training"),
    "test": ("test", "testing", "val", "valid", "validation", "eval", "evaluation", "dev"),
}
SPLIT_NAMES = {name for names in SPLITS.values() for name in names}
# hidden files of file browsers, network disks and archives without a leading dot
_SYSTEM_NAMES = {
    "__macosx", "icon\r", "thumbs.db", "ehthumbs.db", "desktop.ini", "lost+found", "@eadir",
    "$recycle.bin", "system volume information", "#recycle", "__pycache__",
}  # fmt: skip
_IMAGES = {
    ".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp",
}  # fmt: skip


def folder_names(folder: Path) -> list[str]:
    """Return the sorted names of the subfolders that are read, such as classes."""
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and _is_read(path))


def names_of_split(
    names: Iterable[str], split: str, word_of: Callable[[str], str] = str.casefold
) -> list[str]:
    """Return the names whose word is one of a split, the preferred one first."""
    known = SPLITS[split]
    alike = [name for name in names if word_of(name) in known]
    return sorted(alike, key=lambda name: known.index(word_of(name)))


def split_word(name: str) -> str:
    """Return the first word of a name that is a split's, such as train in ``own-train2017``."""
    return next(filter(SPLIT_NAMES.__contains__, re.split("[^a-z]", name.casefold())), "")


def is_divided(names: Iterable[str], word_of: Callable[[str], str] = str.casefold) -> bool:
    """Return whether there are names of each split."""
    return all(names_of_split(names, split, word_of) for split in SPLITS)


def files_in(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the sorted images in a folder itself, and its other visible files."""
    files = [path for path in sorted(folder.iterdir()) if not path.is_dir()]
    others = [path for path in files if not (_is_image(path) or _is_hidden(path.name))]
    return [*filter(_is_image, files)], others


def files_below(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the sorted images in a folder and its subfolders, and the other visible files.

    The index of an image in its data set depends on this order.
    """
    images: list[Path] = []
    others: list[Path] = []
    for path in sorted(folder.iterdir()):
        if _is_image(path):
            images.append(path)
        elif path.is_dir() and _is_read(path):
            below = files_below(path)
            images += below[0]
            others += below[1]
        elif not path.is_dir() and not _is_hidden(path.name):
            others.append(path)
    return images, others


def is_known(dataset: str) -> bool:
    """Return whether this is the name of a set."""
    return dataset.replace("-", "_") in {*SET_NAMES, SHAPES}


def absolute_paths(options: Mapping[str, Any]) -> dict[str, str]:
    """Return those of ``dataset``, ``data_dir`` and ``train_list`` that are paths, as absolute."""
    paths = {name: options[name] for name in ("data_dir", "train_list") if options[name]}
    dataset = options["dataset"]
    if not is_known(dataset) and Path(dataset).is_dir():
        paths["dataset"] = dataset
    return {name: os.path.abspath(path) for name, path in paths.items()}


def _is_read(folder: Path) -> bool:
    """Return whether a folder is visible, and neither a run of training nor around itself."""
    is_run = any((folder / name).is_file() for name in (RECORD, LOCK))
    is_loop = folder.parent.resolve().is_relative_to(folder.resolve())
    return not (is_run or is_loop or _is_hidden(folder.name))


def _is_image(path: Path) -> bool:
    return path.suffix.lower() in _IMAGES and not _is_hidden(path.name)


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name.casefold() in _SYSTEM_NAMES
