"""How image sets lie on disk: what the preparation of data writes and image training reads."""

from __future__ import annotations

from pathlib import Path

TRAIN_INDICES = "train-indices.txt"  # of a long-tailed choice
CLASSES = "classes.txt"  # of a choice of classes: folder names, one a line

_SUFFIXES = {".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}


def image_names(folder: Path) -> list[str]:
    """Names of the images in a class's folder, sorted: an image's place in its data set depends on this order."""
    return sorted(path.name for path in folder.iterdir() if path.suffix.lower() in _SUFFIXES)
