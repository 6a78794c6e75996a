"""Image sets: those with a name, and their layout on disk; their preparation writes them, image training reads them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

TRAIN_INDICES = "train-indices.txt"  # of a long-tailed choice
CLASSES = "classes.txt"  # of a choice of classes: folder names, one a line
_SUFFIXES = {".bmp", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}


@dataclass(frozen=True)
class PublishedImages:
    """A published image set, or a choice from one.

    Attributes:
        name: of the set and of its folder below the root of prepared data; options take ``_`` for ``-`` too.
        classes: their number.
        counts: images by split, by the splits' names on disk, the training split first; empty for a choice.
        image_column: of the parquet files; this and the next two are empty for a set in class folders.
        label_column: of the parquet files.
        encoding: of the images, as Pillow names it.
        chosen_from: the set that this is a choice from; None if it is not a choice.
        long_tailed: whether the choice is one of training images, fewer for each class, instead of one of classes.
    """

    name: str
    classes: int
    counts: dict[str, int]
    image_column: str = ""
    label_column: str = ""
    encoding: str = ""
    chosen_from: str | None = None
    long_tailed: bool = False


_BALANCED = (
    PublishedImages("cifar10", 10, {"train": 50_000, "test": 10_000}, "img", "label", "PNG"),
    PublishedImages("cifar100", 100, {"train": 50_000, "test": 10_000}, "img", "fine_label", "PNG"),
    PublishedImages("tiny-imagenet", 200, {"train": 100_000, "test": 10_000}, "image", "label", "JPEG"),
    PublishedImages("imagenet100", 100, {}, chosen_from="imagenet1k"),
    PublishedImages("imagenet1k", 1000, {"train": 1_281_167, "val": 50_000}),
)
_LONG_TAILED = (
    PublishedImages(f"{one.name}-lt", one.classes, {}, chosen_from=one.name, long_tailed=True)
    for one in _BALANCED
    if one.name in ("cifar10", "cifar100", "imagenet100")
)
IMAGE_SETS = {one.name: one for one in (*_BALANCED, *_LONG_TAILED)}


def known_images(name: str) -> PublishedImages | None:
    """The set of that name, in which ``_`` stands for ``-`` too; None for an unknown name."""
    return IMAGE_SETS.get(name.replace("_", "-"))


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
