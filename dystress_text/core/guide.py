"""A frozen guide says which pairs of a batch are no negatives: those that it finds too alike.

After Solatorio, "GISTEmbed", 2024. Its rule compares with the guide's similarity of the anchor and its positive, so it
is for positives that are other sentences than their anchors; to a guide without dropout, two dropout views are one
sentence. For these there is a threshold, or a quantile of the batch's own similarities.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dystress_text.core.gather import Gather
from dystress_text.core.rows import Alike, Pairs, positive_similarity, unit_vectors

MOST_PAIRS = 2**18  # of a batch, whose quantile is taken


class Guide(NamedTuple):
    """What a guide says of a batch.

    Attributes:
        vectors: its unit vectors of each view, (n, any dim) each.
        threshold: a pair with a larger similarity is no negative; one number for all, (), or one a sample, (n,).
    """

    vectors: tuple[Tensor, ...]
    threshold: Tensor


@dataclass(frozen=True)
class GuideRule:
    """From which similarity on a pair is no negative; exactly one of the first three is given.

    Attributes:
        threshold: the similarity itself.
        quantile: of the guide's similarities of all anchors with the positives of other samples, in the global batch.
        margin: below the guide's similarity of the anchor and its own positive, as sentence-transformers'
            ``GISTEmbedLoss`` has it.
        relative: the margin is a share of that similarity's size (``margin_strategy="relative"``).

    Raises:
        ValueError: none or several are given, or one is out of range.
    """

    threshold: float | None = None
    quantile: float | None = None
    margin: float | None = None
    relative: bool = False

    def __post_init__(self) -> None:
        if [self.threshold, self.quantile, self.margin].count(None) != 2:
            raise ValueError("give one of threshold, quantile and margin")
        if self.threshold is not None and not -1 <= self.threshold <= 1:
            raise ValueError(f"threshold must lie in [-1, 1], got {self.threshold}")
        if self.quantile is not None and not 0 < self.quantile < 1:
            raise ValueError(f"quantile must lie in (0, 1), got {self.quantile}")

    @torch.no_grad()
    def __call__(self, vectors: Sequence[Tensor], gather: Gather) -> Guide:
        """What it says of a batch; ``vectors`` (n, any dim) of each view, anchors, positives and hard negatives."""
        with torch.autocast(device_type=vectors[0].device.type, enabled=False):
            g = _unit_vectors_once(vectors)
            if self.threshold is not None:
                return Guide(g, g[0].new_tensor(self.threshold))
            if self.quantile is not None:
                return Guide(g, torch.quantile(_of_other_samples(gather(g[0]), gather(g[1])), self.quantile))
            assert self.margin is not None
            own = positive_similarity(g[0], g[1])  # (n,)
            return Guide(g, own - self.margin * own.abs() if self.relative else own - self.margin)


def guided(pairs: Pairs, of_guide: Pairs, threshold: Tensor) -> Pairs:
    """The pairs without those that a guide finds alike.

    Args:
        pairs: of the embeddings.
        of_guide: of the guide's vectors, in the same places.
        threshold: as in :class:`Guide`.
    """
    if threshold.ndim:
        threshold = threshold.repeat(len(pairs.anchors) // len(threshold)).unsqueeze(1)  # (rows, 1)
    alike = Alike(of_guide.anchors, of_guide.candidates, threshold)
    return pairs._replace(spared=pairs.spared._replace(alike=alike))


def _unit_vectors_once(vectors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    units = {id(view): unit_vectors(view) for view in vectors}  # two views of one sentence may be one tensor
    return tuple(units[id(view)] for view in vectors)


def _of_other_samples(anchors: Tensor, positives: Tensor) -> Tensor:
    """Similarities of unit vectors (N, dim) of different samples, (pairs,): at most about :data:`MOST_PAIRS`.

    Beyond that, the anchors are taken at equal steps, the same ones in each process.
    """
    count = len(anchors)
    rows = torch.arange(0, count, max(1, -(-count * count // MOST_PAIRS)), device=anchors.device)
    similarity = anchors[rows] @ positives.T  # (rows, N)
    return similarity[rows[:, None] != torch.arange(count, device=anchors.device)]
