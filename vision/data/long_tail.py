"""Exponential long-tailed subsets of a balanced data set.

The choice is made by SHA-256 in counter mode: the key of image i is ``sha256("0:i")``, 0 being the
seed, and a class keeps the images with the smallest keys. A hash is the same on every machine.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
from numpy.typing import NDArray

from dystress_text.errors import DataError

RATIO = 0.01  # images of the last class by images of the first; the paper's


def long_tail_counts(n_max: int, classes: int) -> list[int]:
    """Return the number of images of each class: ``floor(n_max * RATIO ** (i / (classes - 1)))``.

    In floating point 29 may come out as 28.999..., so the product is rounded to nine decimals
    first.

    Args:
        n_max: images of the first class.
        classes: number of classes.

    Raises:
        DataError: the last class would be empty.
    """
    last = max(1, classes - 1)
    counts = [math.floor(round(n_max * RATIO ** (i / last), 9)) for i in range(classes)]
    if min(counts) < 1:
        reason = f"leaves no image of the last class: the first has only {n_max}"
        raise DataError(f"a long tail of ratio {RATIO} {reason}")
    return counts


def long_tail_indices(labels: NDArray[np.integer]) -> NDArray[np.int64]:
    """Return the ascending indices of the images that a long-tailed subset keeps.

    The size of the smallest class is n_max, so that every class has enough.

    Args:
        labels: (images,), from 0.
    """
    sizes = np.bincount(labels)
    chosen: list[int] = []
    for label, count in enumerate(long_tail_counts(int(sizes.min()), len(sizes))):
        images = np.flatnonzero(labels == label).tolist()
        chosen += sorted(images, key=_key)[:count]
    return np.array(sorted(chosen), dtype=np.int64)


def _key(image: int) -> bytes:
    return hashlib.sha256(f"0:{image}".encode()).digest()
