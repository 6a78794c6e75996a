"""Choose a dozen texts of a run, and find their nearest texts, for its page."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from sentence_transformers.util import semantic_search
from torch import Tensor

SAMPLES = 12
NEAREST = 3
LONGEST = 200  # characters of a text


def nearest_texts(texts: Sequence[str], vectors: Tensor, seed: int) -> list[list[str]]:
    """Return twelve texts, or all if there are fewer, each with its three nearest texts by cosine.

    Args:
        texts: n texts.
        vectors: their embeddings, (n, dim).
        seed: decides which twelve texts are chosen.

    Returns:
        For each text, its first 200 characters and those of its nearest texts, nearest first.
    """
    random = np.random.default_rng(seed)
    chosen = random.choice(len(texts), min(SAMPLES, len(texts)), replace=False)
    found = semantic_search(vectors[chosen], vectors, top_k=NEAREST + 1)
    rows = []
    for own, hits in zip(chosen.tolist(), found, strict=True):
        others = [hit["corpus_id"] for hit in hits if hit["corpus_id"] != own]
        rows.append([texts[i][:LONGEST] for i in (own, *others[:NEAREST])])
    return rows
