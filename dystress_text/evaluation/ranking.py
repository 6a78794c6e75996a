"""Rank documents by their scores; ties keep the order of the corpus."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ROUNDING = 5e-7  # texts of equal tokens differ by less, in batches of their own


def ranked(scores: NDArray[np.floating], most: int) -> list[int]:
    """Return the indices of the highest scores (documents,), at most ``most``, highest first.

    Neighbours that differ by at most ``ROUNDING`` times the largest score are ties, which are in
    the order of their indices.
    """
    rounding = ROUNDING * np.abs(scores).max()
    worse = max(0, len(scores) - most)
    lowest = np.partition(scores, worse)[worse]
    candidates = np.flatnonzero(scores >= lowest - rounding)
    order = candidates[np.argsort(-scores[candidates], kind="stable")]
    steps = -np.diff(scores[order], prepend=scores.max()) > rounding
    ranking: list[int] = order[np.lexsort((order, steps.cumsum()))][:most].tolist()
    return ranking
