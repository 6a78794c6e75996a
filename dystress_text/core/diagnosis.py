"""What a temperature does to a batch: the similarities of the pairs, their temperatures, and their gradients.

The gradient of a pair is the derivative of the loss by its similarity, ``dL / ds``; for a negative of InfoNCE with a
detached temperature it is ``p / tau``. It is computed from the objective's row loss, for any objective and temperature.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dystress_text.core.rows import Negatives, positive_similarity
from dystress_text.core.rule import PairRule, RowLoss, RowSums

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
    sums: RowSums,
    negatives: Sequence[Negatives],
    row_loss: RowLoss,
    rule: PairRule,
    detach: bool,
    threshold: float,
) -> PairSums:
    """Sums over the pairs of this process's anchors.

    Args:
        z: unit vectors of the views, the first two those of the positive pairs; (n, dim).
        sums: of the anchors.
        negatives: the pairs behind ``sums``, in groups whose rows follow one another.
        row_loss: the loss of each row from the sums, (rows,); the batch's loss is their mean.
        rule: of all pairs.
        detach: whether a temperature is kept out of the gradient.
        threshold: negatives with a similarity above it form the high-similarity region.
    """
    _, weights = gradients_of_rows(sums, row_loss)  # (rows, k)
    like = sums.positive
    positive = positive_similarity(z[0], z[1])  # (n,)
    counts, means, taus = like.new_zeros(3), like.new_zeros(2), like.new_zeros(3)
    gradients, histograms = like.new_zeros(2), like.new_zeros(3, BINS)
    counts[0], means[0], taus[0] = (
        len(positive),
        positive.sum(),
        _temperatures(rule, positive, None if sums.tau is None else sums.tau[: len(positive)]).sum(),
    )
    _add(histograms[0], positive, torch.ones_like(positive))
    for group, of_group, of_rows in row_blocks(negatives):
        similarity = group.anchors[of_group] @ group.candidates.T  # (block, columns)
        one = group.mask(similarity, of_group)  # (block, columns), 1 for a negative
        own_tau = None if sums.tau is None else sums.tau[of_rows]
        size = negative_gradients(
            similarity, group, of_group, sums.sums[of_rows], weights[of_rows], rule, detach, own_tau
        )
        size = (one * size).abs()  # in a row without negatives the shares are not 0
        tau = _temperatures(rule, similarity, own_tau)
        high = similarity > threshold
        counts[1] += one.sum()
        counts[2] += (one * high).sum()
        means[1] += (one * similarity).sum()
        taus[1] += (one * tau).sum()
        taus[2] += (size * tau).sum()
        gradients[0] += size.sum()
        gradients[1] += (size * high).sum()
        _add(histograms[1], similarity, one)
        _add(histograms[2], similarity, size)
    return PairSums(counts, means, taus, gradients, histograms)


def row_blocks(
    negatives: Sequence[Negatives], at_once: int = BLOCK_ENTRIES
) -> Iterator[tuple[Negatives, slice, slice]]:
    """Each group of negatives in blocks of rows: the group, the rows within it, and the same rows among all."""
    first = 0
    for group in negatives:
        rows, step = len(group.anchors), max(1, at_once // len(group.candidates))
        for start in range(0, rows, step):
            stop = min(start + step, rows)
            yield group, slice(start, stop), slice(first + start, first + stop)
        first += rows


def negative_gradients(
    similarity: Tensor,
    group: Negatives,
    rows: slice,
    sums: Tensor,
    weights: Tensor,
    rule: PairRule,
    detach: bool,
    tau: Tensor | None = None,
) -> Tensor:
    """``dL / ds`` of the pairs of a block, (block, columns); of pairs that are no negatives it means nothing.

    Args:
        similarity: of the block, (block, columns).
        group: what the block belongs to.
        rows: of the block within the group.
        sums: of the block's rows, (block, k).
        weights: gradient of the loss by these sums, (block, k).
        rule: of all pairs.
        detach: whether a temperature is kept out of the gradient.
        tau: temperatures of the block's anchors, (block, 1), where they have their own.
    """
    logits, pull = rule.pullback(similarity, detach, tau)
    amended = [group.amend(logit, rows, bonus=k == 0) for k, logit in enumerate(logits)]
    shares = [(logit - sums[:, k, None]).exp() * weights[:, k, None] for k, logit in enumerate(amended)]
    return pull(shares)[0]


def gradients_of_rows(sums: RowSums, row_loss: RowLoss) -> tuple[Tensor, Tensor]:
    """Gradients of the mean row loss by the logit of each positive, (rows,), and by the sums, (rows, k)."""
    with torch.enable_grad():
        positive, leaf = sums.positive.detach().requires_grad_(), sums.sums.detach().requires_grad_()
        loss = row_loss(sums._replace(positive=positive, sums=leaf)).mean()
        of_positive, of_sums = torch.autograd.grad(loss, (positive, leaf), allow_unused=True, materialize_grads=True)
    return of_positive, of_sums


def _temperatures(rule: PairRule, similarity: Tensor, tau: Tensor | None) -> Tensor:
    return rule(similarity) if tau is None else tau.view(-1, *[1] * (similarity.ndim - 1)).expand_as(similarity)


@torch.no_grad()
def local_temperature(rule: PairRule, similarity: Tensor, detach: bool) -> Tensor:
    """The rise in similarity over which a negative's gradient grows by the factor e, (n,); NaN where it falls.

    Of a constant it is the temperature, of others it is not ``tau(s)``: where tau rises it is higher.

    Args:
        rule: with one logit.
        similarity: a grid, rising, (n,).
        detach: whether a temperature is kept out of the gradient.
    """
    logits, pull = rule.pullback(similarity, detach)
    (slope,) = torch.gradient(pull([logits[0].exp()])[0].abs().log(), spacing=(similarity,))
    return torch.where(slope > 0, slope.reciprocal(), torch.nan)


def bins_of(similarity: Tensor) -> Tensor:
    """The bin of each similarity, int64 of the same shape."""
    return ((similarity + 1) * (BINS / 2)).long().clamp_(0, BINS - 1)


def _add(histogram: Tensor, similarity: Tensor, amounts: Tensor) -> None:
    histogram.scatter_add_(0, bins_of(similarity).flatten(), amounts.flatten())
