"""Exponential long-tailed subsets of a balanced data set, and the text files that record them.

The choice is made by SHA-256 in counter mode: the key of image i is ``sha256("SEED:i")``, and a class keeps the images
with the smallest keys. numpy promises the same stream from its generators within a version only, Python promises it
for ``random()`` but not for ``shuffle``; a hash is the same everywhere for ever. With one seed, the subset of a smaller
ratio lies within that of a larger one.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dystress_text.errors import DataError, UserError

RATIO = 0.01
HEADER = re.compile(
    r"# long-tail dataset=([A-Za-z0-9][A-Za-z0-9._-]*) ratio=(\S+) seed=(-?[0-9]{1,18}) labels_sha256=([0-9a-f]{64})"
)
INDEX = re.compile(r"0|[1-9][0-9]{0,17}")


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
    """Images of each class: ``floor(n_max * ratio ** (i / (classes - 1)))`` for class i, exactly.

    The ratio stands for the decimal number that it prints as. A float's guess of the count is corrected by integers:
    k is at most the product where ``k ** (classes - 1) <= n_max ** (classes - 1) * ratio ** i``.

    Raises:
        UserError: the ratio is not in (0, 1], there is no class, or the last class would be empty.
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
    counts = _counts_of(labels, ratio)
    chosen: list[int] = []
    for label, count in enumerate(counts):
        images = np.flatnonzero(labels == label).tolist()
        chosen += sorted(images, key=lambda image: hashlib.sha256(f"{seed}:{image}".encode()).digest())[:count]
    return np.array(sorted(chosen), dtype=np.int64)


def write_long_tail(path: Path, subset: LongTail, labels: NDArray[np.integer]) -> None:
    """Write a subset as text: a header line with the checksum of the labels, then an index a line.

    Raises:
        UserError: the name has other characters, the seed is too long, or the file cannot be written.
        DataError: the indices are not a subset of that ratio of these labels.
    """
    _check(path, subset, labels)
    header = (
        f"# long-tail dataset={subset.dataset} ratio={float(subset.ratio)!r} seed={subset.seed} "
        f"labels_sha256={labels_checksum(labels)}"
    )
    if not HEADER.fullmatch(header):
        raise UserError(
            f"data set {subset.dataset!r}, seed {subset.seed}: a name has letters, digits, dots, dashes, underscores, "
            "a seed has at most 18 digits"
        )
    staging = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        staging.write_text("\n".join([header, *map(str, subset.indices.tolist())]) + "\n", encoding="ascii")
        staging.replace(path)
    except OSError as error:
        with suppress(OSError):
            staging.unlink()
        raise UserError(f"cannot write {path}: {error.strerror}") from error


def read_long_tail(path: Path, labels: NDArray[np.integer]) -> LongTail:
    """Read a subset that ``write_long_tail`` has written for these labels.

    Raises:
        DataError: the file cannot be read, has another form, belongs to other labels, or its indices are out of range,
            not ascending, twice there, or not as many of each class as the ratio asks for.
    """
    try:
        text = path.read_text(encoding="ascii")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is no index file: byte {error.start} is not ASCII") from error
    header, *lines = text.split("\n")
    if not (matched := HEADER.fullmatch(header)):
        raise DataError(f"{path}, line 1: not the header of an index file")
    dataset, ratio, seed, checksum = matched.groups()
    if checksum != labels_checksum(labels):
        raise DataError(f"{path} was made for other labels than those of this data set")
    if lines[-1:] != [""]:
        raise DataError(f"{path} is cut short: its last line has no end")
    for number, line in enumerate(lines[:-1], 2):
        if not INDEX.fullmatch(line):
            raise DataError(f"{path}, line {number}: {line[:40]!r} is no index")
    indices = np.array([int(line) for line in lines[:-1]], dtype=np.int64)
    try:
        subset = LongTail(dataset, float(ratio), int(seed), indices)
    except ValueError as error:
        raise DataError(f"{path}, line 1: {ratio[:40]!r} is no ratio") from error
    _check(path, subset, labels)
    return subset


def labels_checksum(labels: NDArray[np.integer]) -> str:
    """sha256 of the labels as little-endian 64-bit integers, in hexadecimal digits."""
    return hashlib.sha256(labels.astype("<i8").tobytes()).hexdigest()


def _counts_of(labels: NDArray[np.integer], ratio: float) -> list[int]:
    if labels.ndim != 1 or labels.size == 0 or not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0:
        raise DataError("labels must be a vector of classes from 0")
    if labels.max() >= labels.size or (sizes := np.bincount(labels)).min() == 0:
        raise DataError(f"labels go to {labels.max()}, but not every class up to it has an image")
    return long_tail_counts(int(sizes.min()), len(sizes), ratio)


def _check(path: Path, subset: LongTail, labels: NDArray[np.integer]) -> None:
    """Hold a subset against the labels.

    Raises:
        DataError: naming the file and what is wrong first.
    """
    indices = subset.indices
    outside = indices[(indices < 0) | (indices >= len(labels))]
    if outside.size:
        raise DataError(f"{path}: index {outside[0]} is out of range, the data set has {len(labels)} images")
    steps = np.diff(indices)
    if not (steps > 0).all():
        at = int(np.argmax(steps <= 0))
        fault = "stands twice" if indices[at] == indices[at + 1] else f"comes after {indices[at]}: not ascending"
        raise DataError(f"{path}: index {indices[at + 1]} {fault}")
    try:
        expected = _counts_of(labels, subset.ratio)
    except UserError as error:
        raise DataError(f"{path}: {error}") from error
    found = np.bincount(labels[indices], minlength=len(expected)).tolist()
    for label, (has, needs) in enumerate(zip(found, expected, strict=True)):
        if has != needs:
            raise DataError(f"{path}: {has} images of class {label}, a ratio of {subset.ratio} keeps {needs}")
