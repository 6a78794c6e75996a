"""The data sets that can be prepared: what they are, their sources, and their terms."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from dystress_text.errors import DataError


@dataclass(frozen=True)
class Request:
    """What the user asked for: the program's options, and the folder of prepared data."""

    root: Path
    source: Path | None = None
    variant: str | None = None
    classes: Path | None = None
    again: bool = False

    def compare(self, name: str, source: object, found: str, expected: str) -> None:
        """Refuse a set that is not the published one, unless the user has named a variant."""
        if self.variant is None and found != expected:
            raise DataError(
                f"{name}: {str(source)!r} holds {found}, {expected} expected; if it is knowingly "
                "another set, say so with --variant NAME"
            )


@dataclass(frozen=True)
class DataSet:
    """One of the sets."""

    name: str  # as the program calls it, and of its folder below the root of prepared data
    about: str  # what it is and what it is used for
    terms: str  # under which it may be used
    repository: str | None = None  # on the hub; None for data that only the user can have
    files: tuple[str, ...] = ()  # glob patterns of the files in the repository
    classes: int = 0  # of an image set, their number
    counts: dict[str, int] = field(default_factory=dict)  # its images, by split as named on disk
    columns: tuple[str, str] = ("", "")  # of its parquet files: images and labels
    encoding: str = ""  # of its images, as Pillow names it


_SIMCSE = "princeton-nlp/datasets-for-simcse"
_CIFAR = {"train": 50_000, "test": 10_000}
_CIFAR_TERMS = "no licence stated; cite Krizhevsky 2009"
_IMAGENET = "ImageNet's terms: non-commercial research"
_LIST = (
    DataSet(
        "wiki1m",
        "one million sentences of English Wikipedia, one a line: SimCSE's training text",
        "text CC BY-SA 3.0 (Wikipedia)",
        _SIMCSE,
        ("wiki1m_for_simcse.txt",),
    ),
    DataSet(
        "senteval",
        "the test sets of the 7 STS and 7 transfer tasks, in SentEval's downstream layout",
        "each task has its own: STS-B CC BY-SA 4.0, SICK CC BY-NC-SA 3.0, MRPC Microsoft Research "
        "terms, the others for research",
        _SIMCSE,
        ("senteval.tar",),
    ),
    DataSet(
        "cifar10",
        "60,000 images of 32 x 32 in 10 classes",
        _CIFAR_TERMS,
        "uoft-cs/cifar10",
        ("plain_text/train-*.parquet", "plain_text/test-*.parquet"),
        classes=10,
        counts=_CIFAR,
        columns=("img", "label"),
        encoding="PNG",
    ),
    DataSet(
        "cifar100",
        "60,000 images of 32 x 32 in 100 classes",
        _CIFAR_TERMS,
        "uoft-cs/cifar100",
        ("cifar100/train-*.parquet", "cifar100/test-*.parquet"),
        classes=100,
        counts=_CIFAR,
        columns=("img", "fine_label"),
        encoding="PNG",
    ),
    DataSet(
        "tiny-imagenet",
        "110,000 images of 64 x 64 in 200 classes",
        _IMAGENET,
        "zh-plus/tiny-imagenet",
        ("data/train-*.parquet", "data/valid-*.parquet"),
        classes=200,
        counts={"train": 100_000, "test": 10_000},
        columns=("image", "label"),
        encoding="JPEG",
    ),
    DataSet(
        "imagenet1k",
        "ImageNet's 1,281,167 + 50,000 images in 1,000 classes, from a folder that the user has "
        "(--from)",
        _IMAGENET,
        classes=1000,
        counts={"train": 1_281_167, "val": 50_000},
    ),
    DataSet(
        "imagenet100",
        "100 of ImageNet's classes, named by a list (--classes FILE; the paper uses CMC's)",
        _IMAGENET,
        classes=100,
    ),
)
CATALOG = {entry.name: entry for entry in _LIST}
