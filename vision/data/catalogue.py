"""The image sets that can be prepared: their sizes, sources and terms of use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dystress_text.preparation.data_sets import DataSet


@dataclass(frozen=True, kw_only=True)
class ImageData(DataSet):
    """An image set that can be prepared."""

    classes: int  # their number
    counts: Mapping[str, int]  # images by split, by the splits' names on disk
    encoding: str = ""  # of its images, as Pillow names it


_CIFAR = {"train": 50_000, "test": 10_000}
_NOT_STATED = "no licence stated; cite Krizhevsky 2009"
_IMAGENET = "ImageNet's terms: non-commercial research"
_SETS = (
    ImageData(
        name="cifar10",
        description="60,000 images of 32 x 32 in 10 classes",
        terms=_NOT_STATED,
        repository="uoft-cs/cifar10",
        files=("plain_text/train-*.parquet", "plain_text/test-*.parquet"),
        classes=10,
        counts=_CIFAR,
        encoding="PNG",
    ),
    ImageData(
        name="cifar100",
        description="60,000 images of 32 x 32 in 100 classes",
        terms=_NOT_STATED,
        repository="uoft-cs/cifar100",
        files=("cifar100/train-*.parquet", "cifar100/test-*.parquet"),
        classes=100,
        counts=_CIFAR,
        encoding="PNG",
    ),
    ImageData(
        name="tiny-imagenet",
        description="110,000 images of 64 x 64 in 200 classes",
        terms=_IMAGENET,
        repository="zh-plus/tiny-imagenet",
        files=("data/train-*.parquet", "data/valid-*.parquet"),
        classes=200,
        counts={"train": 100_000, "test": 10_000},
        encoding="JPEG",
    ),
    ImageData(
        name="imagenet1k",
        description="ImageNet's 1,281,167 + 50,000 images in 1,000 classes, in a folder that the "
        "user has (--from)",
        terms=_IMAGENET,
        classes=1000,
        counts={"train": 1_281_167, "val": 50_000},
    ),
    ImageData(
        name="imagenet100",
        description="100 of ImageNet's classes, named by --classes FILE (the paper uses CMC's)",
        terms=_IMAGENET,
        classes=100,
        counts={},
    ),
)
CATALOG = {entry.name: entry for entry in _SETS}
