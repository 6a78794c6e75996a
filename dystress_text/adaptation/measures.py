"""What a model answers: a value for each item of each measure, so that two models can be compared item by item.

A measure's figure is the mean of its values. A probe gives three: the reciprocal rank of the right answer; its log
rank, -log2(rank), which tells smaller changes where right answers stand far down; and the alignment with it. Products
are in fp64 and in blocks of rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dystress_text.adaptation.probes import Probe, Probes
from dystress_text.core.rows import positive_similarity, unit_vectors
from dystress_text.evaluation.embedder import refusing_useless
from dystress_text.evaluation.sts import Embed

LOG_RANK, ALIGNMENT, UNIFORMITY, COSINE = "log rank", "alignment", "uniformity", "random cosine"
EQUAL = 1e-6  # cosines of fp32 vectors that differ by less are equal

_ENTRIES = 2**22  # of a block of products

Float64 = NDArray[np.float64]
Integers = NDArray[np.int64]
Better = Literal["higher", "lower", "neither"]


@dataclass(frozen=True)
class Values:
    """A measure of a model.

    Attributes:
        values: of each item, (n,); their mean is the figure.
        units: of each item; items of one unit depend on each other, (n,).
        better: which figures are better.
    """

    values: Float64
    units: Integers
    better: Better

    @property
    def figure(self) -> float:
        """The mean."""
        return float(self.values.mean())


@dataclass(frozen=True)
class Measured:
    """All measures of a model.

    Attributes:
        values: by measure, the same names and items for every model that got the same probes.
        general: cosines of the general pairs, (p,).
    """

    values: Mapping[str, Values]
    general: Float64


def measure(probes: Probes, embed: Embed) -> Measured:
    """Ask a model.

    Args:
        probes: the questions.
        embed: sentences to vectors (n, dim); called once.

    Raises:
        UserError: the model gives NaN or infinite vectors, or one vector for everything.
    """
    texts = probes.texts
    units = unit_vectors(refusing_useless(embed)(texts).double())  # (texts, dim)
    row = {text: i for i, text in enumerate(texts)}

    def of(sentences: tuple[str, ...]) -> Tensor:
        return units[torch.tensor([row[sentence] for sentence in sentences], dtype=torch.int64)]

    found: dict[str, Values] = {}
    for probe in probes.all:
        found |= _answers(probe, of(probe.queries), of(probe.gallery))
    uniform, cosine = geometry(of(probes.sentences))
    found[UNIFORMITY] = Values(uniform, probes.units, "lower")
    found[COSINE] = Values(cosine, probes.units, "neither")
    first, second = (of(tuple(pair[side] for pair in probes.pairs)) for side in (0, 1))
    return Measured(found, positive_similarity(first, second).numpy())


def _answers(probe: Probe, queries: Tensor, gallery: Tensor) -> dict[str, Values]:
    """Reciprocal ranks, log ranks and alignment of a probe, whose texts have these unit vectors."""
    rank = ranks(queries, gallery, probe.right, probe.own)
    distance = (queries - gallery[torch.from_numpy(probe.right.max(axis=1))]).square().sum(dim=1).numpy()
    return {
        probe.name: Values(1 / rank, probe.units, "higher"),
        f"{probe.name} {LOG_RANK}": Values(-np.log2(rank), probe.units, "higher"),
        f"{probe.name} {ALIGNMENT}": Values(distance, probe.units, "neither"),
    }


def ranks(queries: Tensor, gallery: Tensor, right: Integers, own: Integers) -> Float64:
    """The rank of the nearest right answer of each query, from 1; of equally near ones the middle of their ranks.

    Args:
        queries: unit vectors, (q, dim).
        gallery: unit vectors, (g, dim).
        right: numbers in the gallery, (q, k), -1 for none, at least one in each row.
        own: numbers in the gallery that do not count, (q,), -1 for none.

    Returns:
        (q,). Right answers beside the nearest one do not count against it.
    """
    found = np.empty(len(queries))
    size = max(1, _ENTRIES // len(gallery))
    for start in range(0, len(queries), size):
        rows = slice(start, start + size)
        cosines = (queries[rows] @ gallery.T).numpy()  # (b, g)
        each = np.arange(len(cosines))
        of_right = np.where(right[rows] >= 0, cosines[each[:, None], right[rows]], -np.inf)  # (b, k)
        best = of_right.max(axis=1)
        for left_out in (own[rows], *right[rows].T):
            there = left_out >= 0
            cosines[each[there], left_out[there]] = -np.inf
        closer = (cosines > best[:, None] + EQUAL).sum(axis=1)
        equal = (cosines >= best[:, None] - EQUAL).sum(axis=1) - closer
        found[rows] = 1 + closer + equal / 2
    return found


def geometry(units: Tensor) -> tuple[Float64, Float64]:
    """Uniformity and the mean absolute cosine of all pairs i != j, as values of the sentences, (n,) each.

    Both are means T over pairs. A sentence's value is T + 2 (h - T), where h is the mean over its own pairs. The mean
    of the values is T, and their spread gives T's error: a drawn sentence stands on both sides of pairs (the first term
    of Hoeffding's decomposition). Uniformity, log T, gets log T + 2 (h - T) / T.

    Args:
        units: unit vectors, (n, dim), at least two.
    """
    n = len(units)
    near, cosine = np.empty(n), np.empty(n)
    size = max(1, _ENTRIES // n)
    for start in range(0, n, size):
        rows = slice(start, start + size)
        cosines = units[rows] @ units.T  # (b, n)
        own = torch.arange(start, start + len(cosines))
        potential = torch.exp(4 * cosines.clamp(max=1) - 4)  # exp(-2 d^2) with d^2 = 2 - 2 cos
        potential[own - start, own] = 0
        cosines[own - start, own] = 0
        near[rows] = potential.sum(dim=1).numpy() / (n - 1)
        cosine[rows] = cosines.abs().sum(dim=1).numpy() / (n - 1)
    mean = near.mean()
    return np.log(mean) + 2 * (near - mean) / mean, cosine.mean() + 2 * (cosine - cosine.mean())
