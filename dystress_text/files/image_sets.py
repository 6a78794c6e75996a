"""The image sets with a name: the preparation of data prepares them, image training reads them."""

from __future__ import annotations

from dataclasses import dataclass


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


def _long_tail(base: PublishedImages) -> PublishedImages:
    return PublishedImages(f"{base.name}-lt", base.classes, {}, chosen_from=base.name, long_tailed=True)


_CIFAR10 = PublishedImages("cifar10", 10, {"train": 50_000, "test": 10_000}, "img", "label", "PNG")
_CIFAR100 = PublishedImages("cifar100", 100, {"train": 50_000, "test": 10_000}, "img", "fine_label", "PNG")
_TINY = PublishedImages("tiny-imagenet", 200, {"train": 100_000, "test": 10_000}, "image", "label", "JPEG")
_IMAGENET1K = PublishedImages("imagenet1k", 1000, {"train": 1_281_167, "val": 50_000})
_IMAGENET100 = PublishedImages("imagenet100", 100, {}, chosen_from="imagenet1k")

_WHOLE = (_CIFAR10, _CIFAR100, _TINY, _IMAGENET100, _IMAGENET1K)
IMAGE_SETS = {one.name: one for one in (*_WHOLE, *map(_long_tail, (_CIFAR10, _CIFAR100, _IMAGENET100)))}


def known_images(name: str) -> PublishedImages | None:
    """The set of that name, in which ``_`` stands for ``-`` too; None for an unknown name."""
    return IMAGE_SETS.get(name.replace("_", "-"))
