"""Measures on pairs of sentences: Spearman's correlation x 100, alignment and uniformity.

The protocol is SentEval's with "all" aggregation, as in SimCSE's paper.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from sentence_transformers import SimilarityFunction
from torch import Tensor

from dystress_text.evaluation.text_sets import StsPairs
from dystress_text.losses.geometry import alignment, uniformity

Embed = Callable[[Sequence[str]], Tensor]  # sentences to vectors (n, dim)


def pair_similarities(first: Tensor, second: Tensor, name: str = "cosine") -> NDArray[np.float64]:
    """Return the similarity of each pair of vectors, (pairs,), computed in fp64.

    Args:
        first: (pairs, dim).
        second: (pairs, dim).
        name: the name of a similarity function of sentence-transformers.
    """
    similarity = SimilarityFunction.to_similarity_pairwise_fn(name)
    return similarity(first.cpu().double(), second.cpu().double()).numpy()


def spearman(similarities: NDArray[np.floating], scores: NDArray[np.floating]) -> float:
    """Return Spearman's rank correlation x 100 of similarities and scores, (pairs,) each.

    Similarities are rounded first, as those of fp32 vectors differ by some 1e-7 of their size
    between batches.

    Returns:
        NaN if either side is constant or has a NaN.
    """
    size = np.abs(similarities).max() or 1.0
    rounded = (similarities / size).round(6)
    if len(np.unique(rounded)) < 2 or len(np.unique(scores)) < 2:
        return math.nan
    return 100 * float(stats.spearmanr(rounded, scores).statistic)


def subset_figures(
    similarities: NDArray[np.floating], subsets: Mapping[str, StsPairs]
) -> dict[str, Any]:
    """Measure Spearman's correlation x 100 on each subset.

    Args:
        similarities: similarities of the pairs of all subsets, one subset after another, (pairs,).
        subsets: the pairs of each subset, by name.

    Returns:
        ``subsets``, the figures by name; ``mean``; and ``weighted_mean``, with the number of pairs
        as weight.
    """
    sizes = [len(pairs) for pairs in subsets.values()]
    parts = np.split(similarities, np.cumsum(sizes)[:-1])
    figures = []
    for pairs, part in zip(subsets.values(), parts, strict=True):
        figures.append(spearman(part, pairs.scores))
    return {
        "mean": np.mean(figures),
        "weighted_mean": np.average(figures, weights=sizes),
        "subsets": dict(zip(subsets, figures, strict=True)),
    }


def score_vectors(pairs: StsPairs, vectors: Tensor, similarity: str = "cosine") -> dict[str, float]:
    """Measure embeddings of ``pairs.sentences``, (distinct sentences, dim), on their device.

    Args:
        pairs: scored pairs.
        vectors: the embeddings; they are normalised for alignment and uniformity.
        similarity: the similarity function of sentence-transformers for Spearman's correlation.

    Returns:
        ``spearman`` x 100, ``alignment`` of the pairs scored above ``positive_above`` (NaN if there
        are none), and ``uniformity`` of the distinct sentences.
    """
    first, second = vectors_of_pairs(pairs, vectors)
    positive = np.flatnonzero(pairs.scores > pairs.positive_above)
    return {
        "spearman": spearman(pair_similarities(first, second, similarity), pairs.scores),
        "alignment": float(alignment(first[positive], second[positive])),
        "uniformity": float(uniformity(vectors)),
    }


def vectors_of_pairs(pairs: StsPairs, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Return the vectors of first and second sentences, (pairs, dim) each."""
    rows = {sentence: row for row, sentence in enumerate(pairs.sentences)}
    first = [rows[sentence] for sentence in pairs.first]
    second = [rows[sentence] for sentence in pairs.second]
    return vectors[first], vectors[second]
