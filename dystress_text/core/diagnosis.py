"""What a temperature does to a batch: the similarities of the pairs, their temperatures, and their gradients.

The gradient of a pair is the derivative of the loss by its similarity, ``dL / ds``; for a negative of InfoNCE with a
detached temperature it is ``p / tau``. It is computed from the objective's row loss, for any objective and temperature.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dystress_text.core.registry import Temperature
from dystress_text.core.rows import Negatives, Rows, positive_similarity, scaled_logits

BINS = 50  # of the histograms, over [-1, 1]
BLOCK_ENTRIES = 2**22  # similarities at a time


@dataclass(frozen=True)
class PairSums:
    """Sums over the pairs of a batch. Those of several processes or batches can be added.

    Attributes:
        counts: (3,) positives, negatives, negatives in the high-similarity region.
        similarities: (2,) sums over positives and over negatives.
        temperatures: (3,) sums over positives and negatives, and over negatives times their gradient's size.
        gradients: (2,) sums of the gradients' sizes, of all negatives and of those in the high-similarity region.
        histograms: (3, BINS) counts of positives and negatives by similarity, and gradient's size of negatives.
    """

    counts: Tensor
    similarities: Tensor
    temperatures: Tensor
    gradients: Tensor
    histograms: Tensor

    def packed(self) -> Tensor:
        """All sums in one vector, (10 + 3 * BINS,)."""
        return torch.cat([self.counts, self.similarities, self.temperatures, self.gradients, self.histograms.flatten()])

    @classmethod
    def unpacked(cls, vector: Tensor) -> PairSums:
        """The inverse of :meth:`packed`; also takes a sum of packed vectors."""
        counts, similarities, temperatures, gradients, histograms = torch.split(vector, [3, 2, 3, 2, 3 * BINS])
        return cls(counts, similarities, temperatures, gradients, histograms.view(3, BINS))


@torch.no_grad()
def pair_sums(
    z: Sequence[Tensor],
    rows: Rows,
    negatives: Sequence[Negatives],
    row_loss: Callable[[Rows], Tensor],
    temperature: Temperature,
    detach_temperature: bool,
    threshold: float,
) -> PairSums:
    """Sums over the pairs of this process's anchors.

    Args:
        z: unit vectors of the views, the first two those of the positive pairs; (n, dim).
        rows: of the anchors.
        negatives: the pairs behind ``rows.negatives``, in groups whose rows follow one another.
        row_loss: the loss of each row, (rows,); the batch's loss is their mean.
        temperature: of all pairs.
        detach_temperature: whether the temperature is detached from the gradient.
        threshold: negatives with a similarity above it form the high-similarity region.
    """
    weight = _gradient_of_negatives(rows, row_loss)  # (rows,)
    like = rows.negatives
    positive = positive_similarity(z[0], z[1])  # (n,)
    counts, sums, taus = like.new_zeros(3), like.new_zeros(2), like.new_zeros(3)
    gradients, histograms = like.new_zeros(2), like.new_zeros(3, BINS)
    counts[0], sums[0], taus[0] = len(positive), positive.sum(), temperature(positive).sum()
    _add(histograms[0], positive, torch.ones_like(positive))
    for group, first in zip(negatives, _first_rows(negatives), strict=True):
        step = max(1, BLOCK_ENTRIES // len(group.candidates))
        for start in range(0, len(group.anchors), step):
            block = slice(start, min(start + step, len(group.anchors)))
            of_rows = slice(first + block.start, first + block.stop)
            similarity = group.anchors[block] @ group.candidates.T  # (block, columns)
            with torch.enable_grad():
                logits = scaled_logits(similarity.requires_grad_(), temperature, detach_temperature)
                (slope,) = torch.autograd.grad(logits.sum(), similarity)
            share = (group.amend(logits.detach(), block) - rows.negatives[of_rows, None]).exp()  # 0 where left out
            size = (weight[of_rows, None] * share * slope).abs()
            similarity = similarity.detach()
            tau, one = temperature(similarity), group.mask(similarity, block)  # (block, columns), 1 for a negative
            size *= one  # in a row without negatives the shares are not 0
            high = similarity > threshold
            counts[1] += one.sum()
            counts[2] += (one * high).sum()
            sums[1] += (one * similarity).sum()
            taus[1] += (one * tau).sum()
            taus[2] += (size * tau).sum()
            gradients[0] += size.sum()
            gradients[1] += (size * high).sum()
            _add(histograms[1], similarity, one)
            _add(histograms[2], similarity, size)
    return PairSums(counts, sums, taus, gradients, histograms)


def _first_rows(negatives: Sequence[Negatives]) -> list[int]:
    """The first row of each group."""
    lengths = [len(group.anchors) for group in negatives]
    return [sum(lengths[:i]) for i in range(len(lengths))]


def _gradient_of_negatives(rows: Rows, row_loss: Callable[[Rows], Tensor]) -> Tensor:
    """Gradient of the mean row loss by each row's logsumexp over the negatives, (rows,)."""
    with torch.enable_grad():
        leaf = rows.negatives.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(row_loss(Rows(rows.positive.detach(), leaf)).mean(), leaf)
    return gradient


def _add(histogram: Tensor, similarity: Tensor, amounts: Tensor) -> None:
    place = ((similarity + 1) * (BINS / 2)).long().clamp_(0, BINS - 1)
    histogram.scatter_add_(0, place.flatten(), amounts.flatten())
