"""How alike the sentences of a scored set are, by kind of pair: what a temperature that follows similarity acts on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dystress_text.core.diagnosis import BINS
from dystress_text.core.rows import positive_similarity, unit_vectors
from dystress_text.evaluation.sts import StsPairs, sides

RANDOM_PAIRS = 100_000


@dataclass(frozen=True)
class PairSimilarities:
    """Cosines by kind of pair.

    Attributes:
        alike: pairs scored above the set's ``positive_above``, 4 on STS.
        others: the other scored pairs.
        random: pairs of distinct sentences drawn at random.
    """

    alike: NDArray[np.floating]
    others: NDArray[np.floating]
    random: NDArray[np.floating]

    def histograms(self) -> dict[str, list[int]]:
        """Counts in equal bins over [-1, 1], by kind."""
        kinds = vars(self).items()
        return {kind: np.histogram(values.clip(-1, 1), BINS, (-1, 1))[0].tolist() for kind, values in kinds}


def pair_similarities(pairs: StsPairs, vectors: Tensor) -> PairSimilarities:
    """Cosines of the scored pairs and of random ones, the same ones at each call.

    Args:
        pairs: the set.
        vectors: of ``pairs.sentences``, (distinct sentences, dim).
    """
    units = unit_vectors(vectors)
    first, second = np.random.default_rng(0).integers(len(units), size=(2, RANDOM_PAIRS))
    distinct = first != second
    drawn = units[first[distinct]], units[second[distinct]]
    of_scored, of_drawn = (positive_similarity(a, b).cpu().numpy() for a, b in (sides(pairs, units), drawn))
    positive = pairs.scores > pairs.positive_above
    return PairSimilarities(of_scored[positive], of_scored[~positive], of_drawn)
