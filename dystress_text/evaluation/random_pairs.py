"""Cosines of random sentence pairs, for records, cards and pages of runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sentence_transformers.util import cos_sim

MOST_SENTENCES = 2_000  # 2 million pairs, enough for a share of 1 in 10,000
SHARES = (0.5, 0.1, 0.01, 0.001, 0.0001)


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
    once = np.triu_indices(len(vectors), k=1)  # each pair once, none with itself
    cosines = cos_sim(vectors, vectors).numpy()[once]  # (pairs,)
    by_share = {}
    for share in SHARES:
        if share * len(cosines) >= 100:
            by_share[f"{share:g}"] = round(float(np.quantile(cosines, 1 - share)), 4)
    return {"sentences": len(vectors), "pairs": len(cosines), "cosines": by_share}


def random_pairs_table(found: Mapping[str, Any] | None) -> list[list[str]]:
    """Return a table, header first, for a result of :func:`random_pairs`."""
    rows = [["share of random pairs", "similarity reached"]]
    for share, cosine in (found or {"cosines": {}})["cosines"].items():
        rows.append([f"1 in {1 / float(share):,.0f}", f"{cosine:z.3f}"])
    return rows
