"""Cosines that the record, card and page of a run show: of pairs, and of some of its texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sentence_transformers.util import cos_sim, semantic_search
from torch import Tensor

from dystress_text.evaluation.sts import vectors_of_pairs
from dystress_text.evaluation.text_sets import StsPairs
from dystress_text.losses.diagnosis import BINS
from dystress_text.losses.vectors import positive_similarity, unit_vectors

RANDOM_PAIRS = 100_000  # of a histogram
MOST_SENTENCES = 2_000  # 2 million pairs, enough for a share of 1 in 10,000
SHARES = (0.5, 0.1, 0.01, 0.001, 0.0001)
SAMPLES = 12
NEAREST = 3
LONGEST = 200  # characters of a text


def similarity_histograms(pairs: StsPairs, vectors: Tensor) -> dict[str, list[int]]:
    """Count cosines in equal bins over [-1, 1], by kind of pair.

    Args:
        pairs: scored pairs.
        vectors: embeddings of ``pairs.sentences``, (distinct sentences, dim).

    Returns:
        Counts of ``alike`` (scored above ``positive_above``, 4 on STS), ``others`` (the other
        scored pairs) and ``random`` (pairs of distinct sentences, the same at each call).
    """
    units = unit_vectors(vectors)
    drawn = np.random.default_rng(0).integers(len(units), size=(2, RANDOM_PAIRS))
    first, second = drawn[:, drawn[0] != drawn[1]]
    random = positive_similarity(units[first], units[second])
    scored = positive_similarity(*vectors_of_pairs(pairs, units))
    positive = pairs.scores > pairs.positive_above
    kinds = {"alike": scored[positive], "others": scored[~positive], "random": random}
    histograms = {}
    for kind, cosines in kinds.items():
        counts, _ = np.histogram(cosines.cpu().numpy().clip(-1, 1), BINS, (-1, 1))
        histograms[kind] = counts.tolist()
    return histograms


def random_pairs(vectors: NDArray[np.floating[Any]]) -> dict[str, Any] | None:
    """Return high quantiles of the cosine over all pairs of distinct sentences.

    Args:
        vectors: embeddings, (n, dim); only the first 2,000 are used.

    Returns:
        The numbers of ``sentences`` and ``pairs``, and ``cosines``: for each share of at least 100
        pairs, the value that this share exceeds. None for fewer than 50 sentences.
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


def random_pairs_table(quantiles: Mapping[str, Any] | None) -> list[list[str]]:
    """Return a table, header first, for a result of :func:`random_pairs`."""
    rows = [["share of random pairs", "similarity reached"]]
    for share, cosine in (quantiles or {"cosines": {}})["cosines"].items():
        rows.append([f"1 in {1 / float(share):,.0f}", f"{cosine:z.3f}"])
    return rows


def nearest_texts(texts: Sequence[str], vectors: Tensor, seed: int) -> list[list[str]]:
    """Return twelve texts, or all if there are fewer, each with its three nearest texts by cosine.

    Args:
        texts: n texts.
        vectors: their embeddings, (n, dim).
        seed: draws the twelve texts.

    Returns:
        For each text, its first 200 characters and those of its nearest texts, nearest first.
    """
    random = np.random.default_rng(seed)
    drawn = random.choice(len(texts), min(SAMPLES, len(texts)), replace=False)
    hits_by_sample = semantic_search(vectors[drawn], vectors, top_k=NEAREST + 1)
    samples = []
    for own, hits in zip(drawn.tolist(), hits_by_sample, strict=True):
        others = [hit["corpus_id"] for hit in hits if hit["corpus_id"] != own]
        samples.append([texts[i][:LONGEST] for i in (own, *others[:NEAREST])])
    return samples
