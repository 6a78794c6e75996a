"""Cosines of random sentence pairs, for records, cards and pages of runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_SENTENCES = 2_000  # 2 million pairs, enough for a share of 1 in 10,000
SHARES = (0.5, 0.1, 0.01, 0.001, 0.0001)
HEADER = ("share of random pairs", "similarity reached")


def random_pairs(vectors: NDArray[np.floating[Any]]) -> dict[str, Any] | None:
    """Return high quantiles of the cosine over all pairs of distinct sentences.

    Args:
        vectors: embeddings, (n, dim); only the first 2,000 are used.

    Returns:
        The numbers of sentences and pairs; and for each share of pairs, the cosine that this share
        exceeds, unless that is fewer than 100 pairs. None for fewer than 50 sentences.
    """
    vectors = np.asarray(vectors[:MOST_SENTENCES], dtype=np.float32)
    if len(vectors) < 50:
        return None
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True).clip(1e-12)
    once = np.triu_indices(len(units), k=1)  # each pair once, none with itself
    cosines = (units @ units.T)[once]  # (pairs,)
    by_share = {}
    for share in SHARES:
        if share * len(cosines) >= 100:
            by_share[f"{share:g}"] = round(float(np.quantile(cosines, 1 - share)), 4)
    return {"sentences": len(units), "pairs": len(cosines), "cosines": by_share}


def random_pairs_rows(quantiles: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """Return table rows below :data:`HEADER`, from the result of :func:`random_pairs`."""
    if quantiles is None:
        return []
    rows = []
    for share, cosine in quantiles["cosines"].items():
        rows.append((f"1 in {1 / float(share):,.0f}", f"{cosine:.3f}"))
    return rows
