"""Exponential long-tailed subsets of a balanced data set, and the text files that record them.

The choice is made by SHA-256 in counter mode: the key of image i is ``sha256("SEED:i")``, and a class keeps the images
with the smallest keys. A hash is the same on every machine, so a file is checked by making the choice again. With
one seed, the subset of a smaller ratio is part of that of a larger one.
"""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dystress_text.errors import DataError, UserError
from dystress_text.files.whole import write_text

RATIO = 0.01
HEADER = re.compile(
    r"# long-tail dataset=([A-Za-z0-9][A-Za-z0-9._-]*) ratio=(\S+) seed=(-?[0-9]{1,18}) labels_sha256=([0-9a-f]{64})"
)


@dataclass(frozen=True)
class LongTail:
    """A long-tailed subset.

    Attributes:
        dataset: its name, letters, digits, dots, dashes and underscores.
        ratio: images of the last class by images of the first.
        seed: of the choice.
        indices: (images,) positions in the data set, ascending.
    """

    dataset: str
    ratio: float
    seed: int
    indices: NDArray[np.int64]


def long_tail_counts(n_max: int, classes: int, ratio: float = RATIO) -> list[int]:
    """Number of images of each class: ``floor(n_max * ratio ** (i / (classes - 1)))`` for class i, exactly.

    The ratio is taken as the decimal number that it prints as. The count is computed in floats and then corrected in
    integers: k does not exceed the product if ``k ** (classes - 1) <= n_max ** (classes - 1) * ratio ** i``.

    Raises:
        UserError: the ratio is not in (0, 1], there are no classes, or the last class would be empty.
    """
    if not 0 < ratio <= 1:
        raise UserError(f"the long tail's ratio is {ratio}; it must be above 0 and at most 1")
    if classes < 1:
        raise UserError("a long tail needs at least one class")
    exact, steps = Fraction(repr(float(ratio))), max(1, classes - 1)
    if math.floor(n_max * (exact if classes > 1 else 1)) < 1:
        raise UserError(f"a long tail of ratio {ratio} leaves no image of the last class: the first has only {n_max}")
    counts = []
    for i in range(classes):
        left, right = exact.denominator**i, n_max**steps * exact.numerator**i
        count = math.floor(n_max * float(ratio) ** (i / steps))
        while (count + 1) ** steps * left <= right:
            count += 1
        while count**steps * left > right:
            count -= 1
        counts.append(count)
    return counts


def long_tail_indices(labels: NDArray[np.integer], ratio: float = RATIO, seed: int = 0) -> NDArray[np.int64]:
    """Positions of the images that a long-tailed subset keeps, ascending; the same on every machine.

    Args:
        labels: (images,) classes 0 to C - 1. The size of the smallest class is n_max, so that every class has enough.
        ratio: images of the last class by images of the first.
        seed: of the choice.

    Raises:
        UserError: a bad ratio.
        DataError: labels that are not such a vector.
    """
    if labels.ndim != 1 or labels.size == 0 or not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0:
        raise DataError("labels must be a vector of classes from 0")
    if labels.max() >= labels.size or (sizes := np.bincount(labels)).min() == 0:
        raise DataError(f"labels go to {labels.max()}, but not every class up to it has an image")
    chosen: list[int] = []
    for label, count in enumerate(long_tail_counts(int(sizes.min()), len(sizes), ratio)):
        images = np.flatnonzero(labels == label).tolist()
        chosen += sorted(images, key=lambda image: hashlib.sha256(f"{seed}:{image}".encode()).digest())[:count]
    return np.array(sorted(chosen), dtype=np.int64)


def write_long_tail(path: Path, subset: LongTail, labels: NDArray[np.integer]) -> None:
    """Write a subset as text: a header line with the checksum of the labels, then one index per line.

    Raises:
        UserError: the name has other characters, the seed is too long, or the file cannot be written.
        DataError: the indices are not the choice of that ratio and seed for these labels.
    """
    header = (
        f"# long-tail dataset={subset.dataset} ratio={float(subset.ratio)!r} seed={subset.seed} "
        f"labels_sha256={labels_checksum(labels)}"
    )
    if not HEADER.fullmatch(header):
        raise UserError(
            f"data set {subset.dataset!r}, seed {subset.seed}: a name has letters, digits, dots, dashes, underscores, "
            "a seed has at most 18 digits"
        )
    if not np.array_equal(subset.indices, long_tail_indices(labels, subset.ratio, subset.seed)):
        raise DataError(f"{path}: the indices are not those of ratio {subset.ratio} and seed {subset.seed}")
    try:
        write_text(path, _as_text(header, subset.indices))
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error


def read_long_tail(path: Path, labels: NDArray[np.integer]) -> LongTail:
    """Read a subset that ``write_long_tail`` has written for these labels.

    Raises:
        DataError: the file cannot be read, has another form, belongs to other labels, or does not hold the indices that
            its ratio and seed give.
    """
    try:
        text = path.read_text(encoding="ascii")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not an index file: byte {error.start} is not ASCII") from error
    header = text.partition("\n")[0]
    if not (matched := HEADER.fullmatch(header)):
        raise DataError(f"{path}, line 1: not the header of an index file")
    dataset, ratio, seed, checksum = matched.groups()
    if checksum != labels_checksum(labels):
        raise DataError(f"{path} was made for other labels than those of this data set")
    try:
        indices = long_tail_indices(labels, float(ratio), int(seed))
    except (ValueError, UserError) as error:
        raise DataError(f"{path}, line 1: ratio {ratio[:40]!r}: {error}") from error
    if text != _as_text(header, indices):
        raise DataError(f"{path} does not hold the indices that its first line gives; prepare the data again")
    return LongTail(dataset, float(ratio), int(seed), indices)


def labels_checksum(labels: NDArray[np.integer]) -> str:
    """sha256 of the labels as little-endian 64-bit integers, in hexadecimal digits."""
    return hashlib.sha256(labels.astype("<i8").tobytes()).hexdigest()


def _as_text(header: str, indices: NDArray[np.int64]) -> str:
    return "\n".join([header, *map(str, indices.tolist())]) + "\n"
