"""Exponential long-tailed subsets of a balanced data set.

The choice is made by SHA-256 in counter mode: the key of image i is ``sha256("SEED:i")``, and a class keeps the images
with the smallest keys. A hash is the same on every machine. With one seed, the subset of a smaller ratio is part of
that of a larger one.
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
from numpy.typing import NDArray

from dystress_text.errors import DataError, ParameterError

RATIO = 0.01  # the paper's


def long_tail_counts(n_max: int, classes: int, ratio: float = RATIO) -> list[int]:
    """Number of images of each class: ``floor(n_max * ratio ** (i / (classes - 1)))`` for class i.

    Floats make 28.999... of 100 * 0.29, so the product is first rounded to nine decimals.
    """
    if not 0 < ratio <= 1:
        raise ParameterError("ratio", f"must be above 0 and at most 1, got {ratio}")
    counts = [math.floor(round(n_max * ratio ** (i / max(1, classes - 1)), 9)) for i in range(classes)]
    if min(counts) < 1:
        raise DataError(f"a long tail of ratio {ratio} leaves no image of the last class: the first has only {n_max}")
    return counts


def long_tail_indices(labels: NDArray[np.integer], ratio: float = RATIO, seed: int = 0) -> NDArray[np.int64]:
    """Positions of the images that a long-tailed subset keeps, ascending; the same on every machine.

    Args:
        labels: (images,) classes 0 to C - 1. The size of the smallest class is n_max, so that every class has enough.
        ratio: images of the last class by images of the first.
        seed: of the choice.
    """
    sizes = np.bincount(labels)
    chosen: list[int] = []
    for label, count in enumerate(long_tail_counts(int(sizes.min()), len(sizes), ratio)):
        images = np.flatnonzero(labels == label).tolist()
        chosen += sorted(images, key=lambda image: hashlib.sha256(f"{seed}:{image}".encode()).digest())[:count]
    return np.array(sorted(chosen), dtype=np.int64)
