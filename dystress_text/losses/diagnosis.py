"""What a temperature does to a batch: similarities, temperatures and gradients of its pairs, beside
constants.

The gradient of a pair is the derivative of the loss by its similarity, ``dL / ds``; for a negative
of InfoNCE with a detached temperature it is ``p / tau``. Autograd computes it, for any objective
and temperature. The functions here take an objective and embeddings and compute the similarities
again; nothing of the objective changes but a temperature that follows the batch. Call them before
the loss of a queue, which takes the batch's keys in.

:func:`compare` sets a rule beside every constant temperature. Let ``g_ij`` be the size of the
gradient that the negative pair (i, j) gets, ``|dL / ds_ij|``, and G its sum over the batch;
``c_ij(tau)`` and ``C(tau)`` are the same under the constant temperature tau, for the same pairs.
The distance of the rule from that constant is the total variation distance of the two
distributions,

    moved(tau) = 1/2 sum_ij | g_ij / G - c_ij(tau) / C(tau) |,

the share of the negatives' gradient that must be moved from pairs to other pairs to turn one into
the other: 0 for the same distribution, 1 for gradients on different pairs. The scale of the whole
gradient is left out on purpose: Adam and clipping take it out. A scale that changes from step to
step is therefore not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dystress_text.losses.objectives import ContrastiveLoss, DCLLoss
from dystress_text.losses.pairs import Pairs
from dystress_text.losses.vectors import positive_similarity

BINS = 50  # of the histograms, over [-1, 1]
BLOCK_ENTRIES = 2**22  # similarities at a time
CONSTANTS = 41  # temperatures from 0.01 to 1, equal steps of their logarithm
MOST_ANCHORS = 512  # of a batch, whose negatives are compared
MOST_PAIRS = 2**22  # fewer anchors are compared where they have more candidates
_AT_ONCE = 2**18  # entries for several constants at a time


class PairSums(NamedTuple):
    """Sums over the pairs of a batch. Those of several processes or batches can be added, field by
    field.
    """

    counts: Tensor  # (3,) positives, negatives, negatives in the high-similarity region
    similarities: Tensor  # (2,) of positives and of negatives
    # (3,) of positives, of negatives, and of negatives times their gradient's size
    temperatures: Tensor
    gradients: Tensor  # (2,) sizes, of all negatives and of those in the high-similarity region
    # (3, BINS) positives, negatives, and gradient's size of negatives, by similarity
    histograms: Tensor


class Comparison(NamedTuple):
    """A rule beside the constants; of one batch, or sums over batches and processes, added field by
    field.
    """

    batches: Tensor  # (), their number; a batch without a gradient counts as none
    # (), gradient of the positives over that of the negatives; 1 a batch for InfoNCE with a
    # detached tau
    pull: Tensor
    moved: Tensor  # (CONSTANTS,), the distance of each constant
    rule: Tensor  # (BINS,), the share of the negatives' gradient by similarity under the rule
    constants: Tensor  # (CONSTANTS, BINS), the same under each constant

    def mean(self) -> Comparison:
        """The mean over the batches; NaN without any."""
        return Comparison(self.batches, *(each / self.batches for each in self[1:]))


class _Rows(NamedTuple):
    """Anchors with the gradients of the mean loss by what it is computed from."""

    pairs: Pairs
    positive: Tensor  # (rows,), similarity of the positives
    of_positive: Tensor  # (rows,), size of its gradient
    of_sums: Tensor  # (k, rows), gradients of the logsumexps of the negatives' logits

    def some(self, rows: slice) -> _Rows:
        return _Rows(
            self.pairs.of_rows(rows),
            self.positive[rows],
            self.of_positive[rows],
            self.of_sums[:, rows],
        )


@torch.no_grad()
def pair_sums(loss: ContrastiveLoss, z: Sequence[Tensor], threshold: float) -> PairSums:
    """Sums over the pairs of this process's anchors; above the threshold lies the high-similarity
    region.
    """
    groups = _rows_of(loss, z)
    positive = groups[0].positive[: len(z[0])]  # (n,), once where both views are anchors
    sums = PairSums(*(positive.new_zeros(shape) for shape in (3, 2, 3, 2, (3, BINS))))
    counts, means, taus, gradients, histograms = sums
    counts[0] = len(positive)
    means[0] = positive.sum()
    taus[0] = loss.tau(positive).sum()
    _add(histograms[0], positive, torch.ones_like(positive))
    for group in groups:
        step = max(1, BLOCK_ENTRIES // len(group.pairs.candidates))
        for start in range(0, len(group.positive), step):
            rows = group.some(slice(start, start + step))
            similarity, size = _of_negatives(loss, rows)
            # 1 for a negative
            one = torch.ones_like(similarity).scatter_(1, rows.pairs.left_out, 0)
            tau = loss.tau(similarity)
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
    return sums


@torch.no_grad()
def compare(loss: ContrastiveLoss, z: Sequence[Tensor]) -> Comparison:
    """Compare a rule with the constants, on the negatives of this process's first
    :data:`MOST_ANCHORS` anchors.

    Under a constant, DCL is compared with DCL and any other objective with InfoNCE of the same
    pairs: the gradient of a negative is then its probability over tau, without or with the positive
    among the candidates.
    """
    groups = _rows_of(loss, z)
    logits = []
    biases = []
    sizes = []
    bins = []
    pulls = []
    of_positive = -torch.inf if isinstance(loss, DCLLoss) else 0.0
    for group in groups:
        most = min(MOST_ANCHORS, MOST_PAIRS // len(group.pairs.candidates)) // len(groups)
        rows = group.some(slice(0, max(1, most)))
        similarity, size = _of_negatives(loss, rows)
        bias = rows.pairs.mask_logits_(torch.zeros_like(similarity), with_bonus=True)
        # (rows, 1 + columns), the positive first
        logits.append(torch.column_stack([rows.positive, similarity]))
        biases.append(F.pad(bias, (1, 0), value=of_positive))
        sizes.append(size.flatten())
        bins.append(_bins_of(similarity).flatten())
        pulls.append(rows.of_positive.sum())
    size = torch.cat(sizes)  # (pairs,)
    place = torch.cat(bins)  # (pairs,)
    rule = size / size.sum()
    moved = []
    histograms = []
    for taus in torch.split(constants().to(size), max(1, _AT_ONCE // len(size))):
        each = [
            (s / taus[:, None, None] + bias).log_softmax(2)[:, :, 1:].flatten(1)
            for s, bias in zip(logits, biases, strict=True)
        ]
        shares = torch.cat(each, dim=1).softmax(dim=1)  # (t, pairs), c / C
        moved.append((shares - rule).abs().sum(dim=1) / 2)
        nothing = shares.new_zeros(len(taus), BINS)
        histograms.append(nothing.scatter_add_(1, place.expand_as(shares), shares))
    compared = Comparison(
        batches=size.new_ones(()),
        pull=torch.stack(pulls).sum() / size.sum(),
        moved=torch.cat(moved),
        rule=rule.new_zeros(BINS).scatter_add_(0, place, rule),
        constants=torch.cat(histograms),
    )
    whole = torch.stack([each.isfinite().all() for each in compared]).all()
    return Comparison(*(torch.where(whole, each, 0) for each in compared))


def _rows_of(loss: ContrastiveLoss, z: Sequence[Tensor]) -> list[_Rows]:
    """This process's anchors, in the groups of the objective."""
    with torch.autocast(device_type=z[0].device.type, enabled=False):
        groups = loss.pairs(loss.prepare(*z))
        leaves = []
        losses = []
        for pairs in groups:
            by = positive_similarity(pairs.anchors, pairs.positives), *loss.logsumexps(pairs)
            with torch.enable_grad():
                s, *sums = (x.detach().requires_grad_() for x in by)
                losses.append(loss.row_losses(s, sums, pairs.negative_count))
            leaves.append([s, *sums])
        with torch.enable_grad():
            mean = torch.cat(losses).mean()
        gradients = [
            torch.autograd.grad(mean, each, retain_graph=True, materialize_grads=True)
            for each in leaves
        ]
    return [
        _Rows(pairs, s.detach(), of_s.abs(), torch.stack(of_sums))
        for pairs, (s, *_), (of_s, *of_sums) in zip(groups, leaves, gradients, strict=True)
    ]


def _of_negatives(loss: ContrastiveLoss, rows: _Rows) -> tuple[Tensor, Tensor]:
    """Return similarities with all candidates and the sizes ``|dL / ds|``, (rows, columns) each; a
    pair that is no negative has the size 0.
    """
    with torch.autocast(device_type=rows.positive.device.type, enabled=False):
        similarity = (rows.pairs.anchors @ rows.pairs.candidates.T).detach().requires_grad_()
        with torch.enable_grad():
            sums = torch.stack(loss.logsumexps_of(similarity, rows.pairs))
    (gradient,) = torch.autograd.grad(sums, similarity, rows.of_sums)
    return similarity.detach(), gradient.abs()


def constants() -> Tensor:
    """The temperatures that a rule is compared with, (CONSTANTS,), fp64."""
    return torch.logspace(-2, 0, CONSTANTS, dtype=torch.float64)


def _bins_of(similarity: Tensor) -> Tensor:
    """The bin of each similarity, int64 of the same shape."""
    return ((similarity + 1) * (BINS / 2)).long().clamp_(0, BINS - 1)


def _add(histogram: Tensor, similarity: Tensor, amounts: Tensor) -> None:
    histogram.scatter_add_(0, _bins_of(similarity).flatten(), amounts.flatten())
