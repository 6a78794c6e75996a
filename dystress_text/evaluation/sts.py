"""Semantic textual similarity: Spearman's correlation x 100 of cosine and gold score, alignment,
uniformity.

Source: SentEval's protocol with "all" aggregation, as SimCSE reports it.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from dystress_text.core.diagnosis import BINS
from dystress_text.core.geometry import alignment, uniformity
from dystress_text.core.vectors import positive_similarity, unit_vectors
from dystress_text.errors import DataError
from dystress_text.evaluation.catalogue import StsTask
from dystress_text.evaluation.readers import StsPairs
from dystress_text.evaluation.words import Words

Embed = Callable[[Sequence[str]], Tensor]  # sentences to vectors (n, dim)

RANDOM_PAIRS = 100_000
TIE = 5e-7  # similarities of fp32 vectors are known to this, in units of the largest, 1 at least


@dataclass(frozen=True)
class StsResult:
    """Scores of an encoder on one set of pairs."""

    spearman: float  # rank correlation of cosine and gold score, x 100
    alignment: (
        float  # of the pairs scored above ``positive_above`` (4 of 5 on STS); NaN if there are none
    )
    uniformity: float  # of the distinct sentences


def with_ties(similarities: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return similarities, (n,), of which those that differ by rounding alone are equal.

    A text in another batch, in another case for an uncased model, or in another order of tokens for
    a static table has a vector that differs by some 1e-7.
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
    """Spearman's rank correlation, x 100; NaN where either is constant or holds a NaN."""
    tied = with_ties(similarities)
    if len(np.unique(tied)) < 2:
        return math.nan
    return 100 * float(stats.spearmanr(tied, scores).statistic)


def score_vectors(pairs: StsPairs, vectors: Tensor) -> StsResult:
    """Score the vectors of ``pairs.sentences``, (distinct sentences, dim), on their device; only
    figures leave it.
    """
    units = unit_vectors(vectors)
    first, second = _vectors_of_pairs(pairs, units)
    positive = torch.from_numpy(np.flatnonzero(pairs.scores > pairs.positive_above)).to(
        vectors.device
    )
    aligned = (
        alignment(first[positive], second[positive]) if len(positive) else torch.tensor(torch.nan)
    )
    cosines = positive_similarity(first, second).cpu().numpy()
    return StsResult(spearman(cosines, pairs.scores), float(aligned), float(uniformity(units)))


def similarity_histograms(pairs: StsPairs, vectors: Tensor) -> dict[str, list[int]]:
    """Counts of cosines in equal bins over [-1, 1], by kind of pair: what a temperature of the
    similarity acts on.

    The kinds are ``alike`` (scored above the set's ``positive_above``, 4 on STS), ``others`` (the
    other scored pairs) and ``random`` (pairs of distinct sentences, the same at each call).
    ``vectors`` are as in :func:`score_vectors`.
    """
    units = unit_vectors(vectors)
    first, second = np.random.default_rng(0).integers(len(units), size=(2, RANDOM_PAIRS))
    distinct = first != second
    drawn = units[first[distinct]], units[second[distinct]]
    of_scored, of_drawn = (
        positive_similarity(a, b).cpu().numpy() for a, b in (_vectors_of_pairs(pairs, units), drawn)
    )
    positive = pairs.scores > pairs.positive_above
    kinds = {"alike": of_scored[positive], "others": of_scored[~positive], "random": of_drawn}
    return {
        kind: np.histogram(values.clip(-1, 1), BINS, (-1, 1))[0].tolist()
        for kind, values in kinds.items()
    }


def evaluate_sts_task(task: StsTask, folder: Path, embed: Embed | Words) -> dict[str, Any]:
    """Score an encoder on a task, with cosines in fp64: Spearman's correlation of cosine and gold
    score, x 100.

    ``spearman`` is over the pairs of all subsets together ("all"), the published figure; ``mean``
    and ``weighted_mean`` are of the figures in ``subsets``, by the numbers of pairs in ``counts``.
    """
    read = task.read(folder)
    cosines = _cosines(list(read.values()), embed)
    subsets = {
        n: np.stack([x, read[n].scores]) for n, x in zip(read, cosines, strict=True)
    }  # (2, pairs) each
    together = _figure(*np.concatenate(list(subsets.values()), axis=1))
    scores = {name: spearman(*both) for name, both in subsets.items()}
    counts = {name: both.shape[1] for name, both in subsets.items()}
    return {
        "spearman": together,
        "mean": round(float(np.mean(list(scores.values()))), 2),
        "weighted_mean": round(
            float(np.average(list(scores.values()), weights=list(counts.values()))), 2
        ),
        "subsets": {name: round(score, 2) for name, score in scores.items()},
        "counts": counts,
    }


def evaluate_pairs(pairs: StsPairs, embed: Embed | Words) -> dict[str, Any]:
    """Score an encoder on pairs of the user's own, as :func:`evaluate_sts_task` does on a task."""
    (cosines,) = _cosines([pairs], embed)
    data = hashlib.sha256(
        repr((pairs.first, pairs.second, pairs.scores.tolist())).encode()
    ).hexdigest()
    return {
        "spearman": _figure(cosines, pairs.scores),
        "count": len(pairs),
        "sha256": data,
    }


def _figure(cosines: NDArray[np.float64], scores: NDArray[np.float64]) -> float:
    figure = spearman(cosines, scores)
    if math.isnan(figure):
        raise DataError("all pairs have the same similarity, so there is no rank correlation")
    return round(figure, 2)


def _cosines(subsets: Sequence[StsPairs], embed: Embed | Words) -> list[NDArray[np.float64]]:
    """The cosines of the pairs of each subset, (pairs,); for words the idf is that of all subsets
    together.
    """
    if isinstance(embed, Words):
        first, second = (
            [text for pairs in subsets for text in getattr(pairs, s)] for s in ("first", "second")
        )
        cosines = embed.cosines(first, second)
        return np.split(cosines, np.cumsum([len(pairs) for pairs in subsets])[:-1])
    both = (
        [unit_vectors(embed(texts).double()) for texts in (pairs.first, pairs.second)]
        for pairs in subsets
    )
    return [positive_similarity(first, second).cpu().numpy() for first, second in both]


def _vectors_of_pairs(pairs: StsPairs, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """The vectors of both sentences of each pair, (pairs, dim), from those of ``pairs.sentences``."""
    row = {sentence: i for i, sentence in enumerate(pairs.sentences)}
    first, second = (
        torch.tensor([row[s] for s in side], device=vectors.device)
        for side in (pairs.first, pairs.second)
    )
    return vectors[first], vectors[second]
