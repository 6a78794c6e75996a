"""Folders of images, without the hidden files of systems."""

from __future__ import annotations

from pathlib import Path

CLASSES = "classes.txt"  # a selection of classes: folder names, one a line
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


def is_hidden(name: str) -> bool:
    """Return whether the name is that of a hidden or system file."""
    return name.startswith(".") or name.casefold() in _SYSTEM_NAMES


def folder_names(folder: Path) -> list[str]:
    """Return the sorted names of the subfolders that are not hidden, such as classes."""
    return sorted(
        path.name for path in folder.iterdir() if path.is_dir() and not is_hidden(path.name)
    )


def image_and_other_names(folder: Path) -> tuple[list[str], list[str]]:
    """Return the sorted names of the images in a folder, and of its other visible files.

    The index of an image in its data set depends on this order.
    """
    images = []
    others = []
    for path in folder.iterdir():
        if is_hidden(path.name):
            continue
        if is_image(path):
            images.append(path.name)
        elif not path.is_dir():
            others.append(path.name)
    return sorted(images), sorted(others)
