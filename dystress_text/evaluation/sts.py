"""Score pairs of sentences: Spearman's correlation x 100, alignment and uniformity.

Source: SentEval's protocol with "all" aggregation, as SimCSE reports it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from dystress_text.errors import DataError
from dystress_text.evaluation.catalogue import StsTask
from dystress_text.evaluation.embedder import TextEncoder
from dystress_text.evaluation.lexical import LexicalBaseline
from dystress_text.evaluation.readers import StsPairs, joined
from dystress_text.losses.diagnosis import BINS
from dystress_text.losses.geometry import alignment, uniformity
from dystress_text.losses.vectors import positive_similarity, unit_vectors

Embed = Callable[[Sequence[str]], Tensor]  # sentences to vectors (n, dim)

RANDOM_PAIRS = 100_000
TIE = 5e-7  # precision of similarities of fp32 vectors, relative to the largest (1 or more)


@dataclass(frozen=True)
class StsResult:
    """Scores of an encoder on one set of pairs."""

    spearman: float  # rank correlation of cosine and gold score, x 100
    # of the pairs scored above ``positive_above`` (4 of 5 on STS); NaN if there are none
    alignment: float
    uniformity: float  # of the distinct sentences


def with_ties(similarities: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return similarities, (n,), with equal values where they differ only by rounding.

    The vector of a text differs by some 1e-7 in another batch, in another case for an uncased
    model, or in another order of tokens for a static table.
    """
    known_to = TIE * max(1.0, float(np.abs(similarities).max(initial=0)))
    tied = np.empty(len(similarities))
    first = -np.inf  # of the group that ends at the similarity before
    for i in np.argsort(similarities):
        if not similarities[i] - first <= known_to:  # true of NaN
            first = similarities[i]
        tied[i] = first
    return tied


def spearman(similarities: NDArray[np.floating], scores: NDArray[np.floating]) -> float:
    """Return Spearman's rank correlation x 100; NaN if either side is constant or has a NaN."""
    tied = with_ties(similarities)
    if len(np.unique(tied)) < 2:
        return math.nan
    return 100 * float(stats.spearmanr(tied, scores).statistic)


def score_vectors(pairs: StsPairs, vectors: Tensor) -> StsResult:
    """Score the vectors of ``pairs.sentences``, (distinct sentences, dim), on their device."""
    units = unit_vectors(vectors)
    first, second = _vectors_of_pairs(pairs, units)
    positive = np.flatnonzero(pairs.scores > pairs.positive_above)
    aligned = math.nan
    if len(positive):
        aligned = float(alignment(first[positive], second[positive]))
    cosines = positive_similarity(first, second).cpu().numpy()
    return StsResult(spearman(cosines, pairs.scores), aligned, float(uniformity(units)))


def similarity_histograms(pairs: StsPairs, vectors: Tensor) -> dict[str, list[int]]:
    """Count cosines in equal bins over [-1, 1], by kind of pair.

    Args:
        pairs: scored pairs.
        vectors: of ``pairs.sentences``, (distinct sentences, dim).

    Returns:
        Counts of ``alike`` (scored above ``positive_above``, 4 on STS), ``others`` (the other
        scored pairs) and ``random`` (pairs of distinct sentences, the same at each call).
    """
    units = unit_vectors(vectors)
    drawn = np.random.default_rng(0).integers(len(units), size=(2, RANDOM_PAIRS))
    first, second = drawn[:, drawn[0] != drawn[1]]
    random = positive_similarity(units[first], units[second])
    scored = positive_similarity(*_vectors_of_pairs(pairs, units))
    positive = pairs.scores > pairs.positive_above
    kinds = {"alike": scored[positive], "others": scored[~positive], "random": random}
    histograms = {}
    for kind, cosines in kinds.items():
        counts, _ = np.histogram(cosines.cpu().numpy().clip(-1, 1), BINS, (-1, 1))
        histograms[kind] = counts.tolist()
    return histograms


def evaluate_sts_task(
    task: StsTask, folder: Path, encoder: TextEncoder | LexicalBaseline
) -> dict[str, Any]:
    """Score an encoder on an STS task, with cosines in fp64.

    The idf of the lexical baseline is that of all subsets together.

    Returns:
        ``spearman`` x 100 over the pairs of all subsets together ("all"), the published figure;
        ``subsets``: that of each subset; ``mean`` and ``weighted_mean``: their means, the second
        weighted by the numbers of pairs in ``counts``.
    """
    subsets = task.read(folder)
    together = joined(subsets.values(), task.title)
    counts = [len(pairs) for pairs in subsets.values()]
    cosines = encoder.cosines(together.first, together.second)  # (pairs,)
    parts = np.split(cosines, np.cumsum(counts)[:-1])
    scores = {}
    for (name, pairs), part in zip(subsets.items(), parts, strict=True):
        scores[name] = spearman(part, pairs.scores)
    figures = list(scores.values())
    return {
        "spearman": _figure(cosines, together.scores),
        "mean": round(float(np.mean(figures)), 2),
        "weighted_mean": round(float(np.average(figures, weights=counts)), 2),
        "subsets": {name: round(score, 2) for name, score in scores.items()},
        "counts": dict(zip(subsets, counts, strict=True)),
    }


def evaluate_pairs(pairs: StsPairs, encoder: TextEncoder | LexicalBaseline) -> dict[str, Any]:
    """Score an encoder on the user's scored pairs, with cosines in fp64."""
    cosines = encoder.cosines(pairs.first, pairs.second)
    return {
        "spearman": _figure(cosines, pairs.scores),
        "count": len(pairs),
        "sha256": pairs.checksum,
    }


def _figure(cosines: NDArray[np.float64], scores: NDArray[np.float64]) -> float:
    figure = spearman(cosines, scores)
    if math.isnan(figure):
        raise DataError("all pairs have the same similarity, so there is no rank correlation")
    return round(figure, 2)


def _vectors_of_pairs(pairs: StsPairs, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Return the vectors of both sides, (pairs, dim) each, from those of ``pairs.sentences``."""
    rows = {sentence: row for row, sentence in enumerate(pairs.sentences)}
    first = [rows[sentence] for sentence in pairs.first]
    second = [rows[sentence] for sentence in pairs.second]
    return vectors[first], vectors[second]
