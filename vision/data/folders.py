"""Folders of images, without the hidden files of systems and the output of training."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from dystress_text.io.lock import LOCK
from dystress_text.training.run_folder import RECORD
from vision.data import SET_NAMES, SHAPES

# names of splits, as datasets knows them; the first that a set has is read
SPLITS = {
    "train": ("train", "training"),
    "test": ("test", "testing", "val", "valid", "validation", "eval", "evaluation", "dev"),
}
# hidden files of file browsers, network disks and archives without a leading dot
_SYSTEM_NAMES = {
    "__macosx", "icon\r", "thumbs.db", "ehthumbs.db", "desktop.ini", "lost+found", "@eadir",
    "$recycle.bin", "system volume information", "#recycle", "__pycache__",
}  # fmt: skip
_IMAGES = {
    ".bmp", ".gif", ".jfif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp",
}  # fmt: skip


def is_image(file: Path) -> bool:
    """Return whether the name of a file ends like that of an image."""
    return file.suffix.lower() in _IMAGES


def folder_names(folder: Path) -> list[str]:
    """Return the sorted names of the subfolders that are read, such as classes."""
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and _is_read(path))


def image_names(folder: Path) -> list[str]:
    """Return the sorted names of the images in a folder itself."""
    return sorted(path.name for path in folder.iterdir() if is_image(path) and _is_read(path))


def files_below(folder: Path) -> tuple[list[Path], list[Path]]:
    """Return the sorted images in a folder and its subfolders, and the other visible files.

    The index of an image in its data set depends on this order.
    """
    images: list[Path] = []
    others: list[Path] = []
    seen = set()
    for parent, folders, names in os.walk(folder, onerror=_fail, followlinks=True):
        real = os.path.realpath(parent)
        if real in seen:  # a link to a folder that contains it
            folders.clear()
            continue
        seen.add(real)
        folders[:] = [name for name in folders if _is_read(Path(parent, name))]
        for name in names:
            if not _is_hidden(name):
                path = Path(parent, name)
                files = images if is_image(path) else others
                files.append(path)
    return sorted(images), sorted(others)


def is_known(dataset: str) -> bool:
    """Return whether this is the name of a set."""
    return dataset.replace("-", "_") in {*SET_NAMES, SHAPES}


def absolute_paths(options: Mapping[str, Any]) -> dict[str, str]:
    """Return those of ``dataset``, ``data_dir`` and ``train_list`` that are paths, as absolute."""
    paths = {name: options[name] for name in ("data_dir", "train_list") if options[name]}
    dataset = options["dataset"]
    if not is_known(dataset) and Path(dataset).is_dir():
        paths["dataset"] = dataset
    return {name: str(Path(path).absolute()) for name, path in paths.items()}


def holds_run(folder: Path) -> bool:
    """Return whether training writes into a subfolder, or has."""
    return any(any(folder.rglob(name)) for name in (RECORD, LOCK))


def _is_read(path: Path) -> bool:
    is_run = any((path / name).is_file() for name in (RECORD, LOCK))
    return not is_run and not _is_hidden(path.name)


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name.casefold() in _SYSTEM_NAMES


def _fail(error: OSError) -> NoReturn:
    raise error
