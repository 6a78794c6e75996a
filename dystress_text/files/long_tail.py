"""Exponential long-tailed subsets of a balanced data set, and the text files that record them.

The choice is made by SHA-256 in counter mode: the key of image i is ``sha256("SEED:i")``, and a class keeps the images
with the smallest keys. A hash is the same on every machine, so a file is checked by making the choice again. With
one seed, the subset of a smaller ratio is part of that of a larger one.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dystress_text.errors import DataError, ParameterError, reason_of
from dystress_text.files.whole import write_text

RATIO = 0.01


def long_tail_counts(n_max: int, classes: int, ratio: float = RATIO) -> list[int]:
    """Number of images of each class: ``floor(n_max * ratio ** (i / (classes - 1)))`` for class i.

    Floats make 28.999... of 100 * 0.29, so the product is first rounded to nine decimals.
    """
    if not 0 < ratio <= 1:
        raise ParameterError("ratio", f"must be above 0 and at most 1, got {ratio}")
    counts = [math.floor(round(n_max * ratio ** (i / max(1, classes - 1)), 9)) for i in range(classes)]
    if min(counts) < 1:
        raise ParameterError("ratio", f"{ratio} leaves no image of the last class: the first has only {n_max}")
    return counts


def long_tail_indices(labels: NDArray[np.integer], ratio: float = RATIO, seed: int = 0) -> NDArray[np.int64]:
    """Positions of the images that a long-tailed subset keeps, ascending; the same on every machine.

    Args:
        labels: (images,) classes 0 to C - 1. The size of the smallest class is n_max, so that every class has enough.
        ratio: images of the last class by images of the first.
        seed: of the choice.
    """
    if labels.size == 0 or labels.min() < 0 or labels.max() >= labels.size or (sizes := np.bincount(labels)).min() == 0:
        raise DataError("labels must be classes from 0 on, each with an image")
    chosen: list[int] = []
    for label, count in enumerate(long_tail_counts(int(sizes.min()), len(sizes), ratio)):
        images = np.flatnonzero(labels == label).tolist()
        chosen += sorted(images, key=lambda image: hashlib.sha256(f"{seed}:{image}".encode()).digest())[:count]
    return np.array(sorted(chosen), dtype=np.int64)


def write_long_tail(path: Path, name: str, labels: NDArray[np.integer], ratio: float, seed: int) -> NDArray[np.int64]:
    """Choose a subset and write it: a header line with the checksum of the labels, then one index per line."""
    text, indices = _as_text(name, labels, ratio, seed)
    write_text(path, text)
    return indices


def read_long_tail(path: Path, labels: NDArray[np.integer]) -> NDArray[np.int64]:
    """The subset that :func:`write_long_tail` has written for these labels.

    Raises:
        DataError: the file cannot be read, or does not hold the choice that its first line names.
    """
    try:
        found = path.read_text(encoding="ascii")
        header = dict(word.split("=") for word in found.partition("\n")[0].split()[2:])
        text, indices = _as_text(header["dataset"], labels, float(header["ratio"]), int(header["seed"]))
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"cannot read {path}: {reason_of(error)}") from error
    if found != text:
        raise DataError(f"{path} is not the choice that its first line names for these labels; prepare the data again")
    return indices


def _as_text(name: str, labels: NDArray[np.integer], ratio: float, seed: int) -> tuple[str, NDArray[np.int64]]:
    indices = long_tail_indices(labels, ratio, seed)
    checksum = hashlib.sha256(labels.astype("<i8").tobytes()).hexdigest()
    header = f"# long-tail dataset={name} ratio={float(ratio)!r} seed={seed} labels_sha256={checksum}"
    return "\n".join([header, *map(str, indices.tolist())]) + "\n", indices
