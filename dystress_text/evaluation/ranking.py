"""Rank documents by one or two kinds of scores; ties keep the order of the corpus."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

ROUNDING = 5e-7  # texts of equal tokens differ by less, in batches of their own
WEIGHT = 0.5  # of BM25 beside a model, fixed in advance and on no collection


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


def with_bm25(scores: NDArray[np.floating], bm25: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return the sum of the z-scores of a query's scores and, by ``WEIGHT``, of its BM25 scores.

    The sum lacks the constant of the means, so that :func:`ranked` finds the same ties. Scores that
    are equal but for rounding do not count.

    Args:
        scores: of a model, (documents,).
        bm25: of the same documents.
    """
    total = np.zeros(len(scores))
    for each, weight in ((scores, 1.0), (bm25, WEIGHT)):
        deviation = each.std()
        if deviation > ROUNDING * np.abs(each).max():
            total += weight / deviation * each
    return total
