"""The layout of image sets on disk, which the preparation of data writes and image training reads."""

from __future__ import annotations

from pathlib import Path

TRAIN_INDICES = "train-indices.txt"  # of a long-tailed choice
CLASSES = "classes.txt"  # of a choice of classes: folder names, one a line

_SUFFIXES = {".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}


def image_names(folder: Path) -> list[str]:
    """Names of the images in a class's folder, sorted; an image's index in its data set depends on this order."""
    return image_and_other_names(folder)[0]


def image_and_other_names(folder: Path) -> tuple[list[str], list[str]]:
    """Names of the images, as :func:`image_names` returns them, and of the other files that are not hidden."""
    images, others = [], []
    for path in folder.iterdir():
        if path.suffix.lower() in _SUFFIXES:
            images.append(path.name)
        elif not path.name.startswith(".") and not path.is_dir():
            others.append(path.name)
    return sorted(images), sorted(others)
