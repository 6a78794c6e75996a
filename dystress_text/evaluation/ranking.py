"""Rank documents by one or two scores each; ties keep the order of the corpus."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ROUNDING = 5e-7  # texts of equal tokens differ by less, in batches of their own
WEIGHT = 0.5  # of BM25 beside a model, fixed in advance and on no collection


def ranked(scores: NDArray[np.floating], most: int) -> list[int]:
    """Return the indices of the highest scores (documents,), at most ``most``, highest first.

    Neighbours in the ranking that differ by at most ``ROUNDING`` times the largest score are ties,
    and are ordered by index.
    """
    rounding = ROUNDING * np.abs(scores).max()
    worse = max(0, len(scores) - most)
    lowest = np.partition(scores, worse)[worse]
    candidates = np.flatnonzero(scores >= lowest - rounding)
    order = candidates[np.argsort(-scores[candidates], kind="stable")]
    steps = -np.diff(scores[order], prepend=scores.max()) > rounding
    ranking: list[int] = order[np.lexsort((order, steps.cumsum()))][:most].tolist()
    return ranking


def with_bm25(scores: NDArray[np.floating], bm25: NDArray[np.floating]) -> NDArray[np.float64]:
    """Add the z-scores of a model's scores and, with the weight ``WEIGHT``, of the BM25 scores.

    Means are not subtracted, so that :func:`ranked` finds the same ties. Scores that are all equal,
    but for rounding, are left out.

    Args:
        scores: a query's scores by a model, (documents,).
        bm25: the BM25 scores of the same documents.
    """
    total = np.zeros(len(scores))
    for each, weight in ((scores, 1.0), (bm25, WEIGHT)):
        deviation = each.std()
        if deviation > ROUNDING * np.abs(each).max():
            total += weight / deviation * each
    return total
