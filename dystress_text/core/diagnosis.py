"""What a temperature does to a batch: the similarities of the pairs, their temperatures, and their gradients.

The gradient of a pair is the derivative of the loss by its similarity, ``dL / ds``; for a negative of InfoNCE with a
detached temperature it is ``p / tau``. Autograd computes it, for any objective and temperature. The functions here take
an objective and embeddings and compute the similarities again; nothing of the objective changes but a temperature that
follows the batch. Call them before the loss of a queue, which takes the batch's keys in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from dystress_text.core.objectives import ContrastiveLoss
from dystress_text.core.pairs import Pairs
from dystress_text.core.registry import Temperature
from dystress_text.core.vectors import positive_similarity

BINS = 50  # of the histograms, over [-1, 1]
BLOCK_ENTRIES = 2**22  # similarities at a time


class PairSums(NamedTuple):
    """Sums over the pairs of a batch. Those of several processes or batches can be added, field by field."""

    counts: Tensor  # (3,) positives, negatives, negatives in the high-similarity region
    similarities: Tensor  # (2,) of positives and of negatives
    temperatures: Tensor  # (3,) of positives, of negatives, and of negatives times their gradient's size
    gradients: Tensor  # (2,) sizes, of all negatives and of those in the high-similarity region
    histograms: Tensor  # (3, BINS) positives, negatives, and gradient's size of negatives, by similarity


class RowGradients(NamedTuple):
    """The rows of a group of pairs, and the gradients of the mean loss by what it is computed from."""

    pairs: Pairs
    similarity: Tensor  # (rows,), of the positives
    of_similarity: Tensor  # (rows,)
    sums: Sequence[Tensor]  # (rows,) each, logsumexps of the negatives' logits
    of_sums: Sequence[Tensor]  # (rows,) each


def row_gradients(loss: ContrastiveLoss, z: Sequence[Tensor]) -> list[RowGradients]:
    """Of this process's anchors; ``z`` are the embeddings (n, dim) that the loss takes."""
    with torch.autocast(device_type=z[0].device.type, enabled=False):
        with torch.no_grad():
            groups = loss.pairs(loss.prepare(*z))
            sums = [loss.logsumexps(pairs) for pairs in groups]
        with torch.enable_grad():
            leaves, losses = [], []
            for pairs, of_group in zip(groups, sums, strict=True):
                s, *x = (t.detach().requires_grad_() for t in (positive_similarity(*pairs[:2]), *of_group))
                positive = loss.temperature.positive_logit(s, loss.tau(s))
                negatives = loss.temperature.negatives_logsumexp(x, positive, pairs.negative_count)
                leaves.append([s, *x])
                losses.append(loss.row_loss(positive, negatives, s))
            inputs = [leaf for group in leaves for leaf in group]
            mean = torch.cat(losses).mean()
            found = iter(torch.autograd.grad(mean, inputs, allow_unused=True, materialize_grads=True))
    rows = []
    for pairs, group in zip(groups, leaves, strict=True):
        (s, *x), (of_s, *of_x) = [leaf.detach() for leaf in group], [next(found) for _ in group]
        rows.append(RowGradients(pairs, s, of_s, x, of_x))
    return rows


def negative_gradients(loss: ContrastiveLoss, group: RowGradients, rows: slice) -> tuple[Tensor, Tensor]:
    """Similarities of some rows, and the sizes ``|dL / ds|``, 0 for pairs that are no negatives; (some, columns)."""
    pairs = group.pairs
    similarity = (pairs.anchors[rows] @ pairs.candidates.T).detach().requires_grad_()
    with torch.enable_grad():
        logits = loss.temperature.logits(similarity, loss.tau(similarity))
    used = []
    for k, (logit, sums, weight) in enumerate(zip(logits, group.sums, group.of_sums, strict=True)):
        amended = pairs.of_negatives(logit.detach(), rows, bonus=k == 0)
        if logit.requires_grad:
            used.append((logit, (amended - sums[rows, None]).exp() * weight[rows, None]))
    (gradient,) = torch.autograd.grad([x for x, _ in used], similarity, [share for _, share in used])
    return similarity.detach(), gradient.abs()


@torch.no_grad()
def pair_sums(loss: ContrastiveLoss, z: Sequence[Tensor], threshold: float) -> PairSums:
    """Sums over the pairs of this process's anchors.

    Args:
        loss: the objective.
        z: embeddings (n, dim) that it takes.
        threshold: negatives with a similarity above it form the high-similarity region.
    """
    groups = row_gradients(loss, z)
    positive = groups[0].similarity[: len(z[0])]  # (n,), once where both views are anchors
    found = PairSums(*(positive.new_zeros(shape) for shape in (3, 2, 3, 2, (3, BINS))))
    counts, means, taus, gradients, histograms = found
    counts[0], means[0], taus[0] = len(positive), positive.sum(), loss.tau(positive).sum()
    _add(histograms[0], positive, torch.ones_like(positive))
    for group, rows in _row_blocks(groups):
        similarity, size = negative_gradients(loss, group, rows)
        one = torch.ones_like(similarity).scatter_(1, group.pairs.left_out[rows], 0)  # 1 for a negative
        tau, high = loss.tau(similarity), similarity > threshold
        counts[1] += one.sum()
        counts[2] += (one * high).sum()
        means[1] += (one * similarity).sum()
        taus[1] += (one * tau).sum()
        taus[2] += (size * tau).sum()
        gradients[0] += size.sum()
        gradients[1] += (size * high).sum()
        _add(histograms[1], similarity, one)
        _add(histograms[2], similarity, size)
    return found


def _row_blocks(groups: Sequence[RowGradients]) -> Iterator[tuple[RowGradients, slice]]:
    for group in groups:
        step = max(1, BLOCK_ENTRIES // len(group.pairs.candidates))
        for start in range(0, len(group.pairs.anchors), step):
            yield group, slice(start, start + step)


def local_temperature(temperature: Temperature, similarity: Tensor, detach: bool) -> Tensor | None:
    """The rise in similarity over which a negative's gradient grows by the factor e, (n,); NaN where it falls.

    Of a constant it is the temperature, of others it is not ``tau(s)``: where tau rises it is higher. None for a rule
    with more than one logit.

    Args:
        temperature: or a rule.
        similarity: a grid, rising, (n,).
        detach: whether a temperature is kept out of the gradient.
    """
    s = similarity.detach().requires_grad_()
    with torch.enable_grad():
        logits = temperature.logits(s, temperature(s.detach() if detach else s))
        (gradient,) = torch.autograd.grad(logits[0].sum(), s)
    if len(logits) > 1:
        return None
    log_size = logits[0].detach() + gradient.abs().log()
    (slope,) = torch.gradient(log_size, spacing=(similarity.detach(),))
    return torch.where(slope > 0, slope.reciprocal(), torch.nan)


def bins_of(similarity: Tensor) -> Tensor:
    """The bin of each similarity, int64 of the same shape."""
    return ((similarity + 1) * (BINS / 2)).long().clamp_(0, BINS - 1)


def _add(histogram: Tensor, similarity: Tensor, amounts: Tensor) -> None:
    histogram.scatter_add_(0, bins_of(similarity).flatten(), amounts.flatten())
