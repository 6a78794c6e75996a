"""Measure what a loss does to the pairs of a batch, and compare it with constant temperatures.

The gradient of a pair is ``dL / ds``, the derivative of the loss with respect to its similarity, by
autograd; for a negative of InfoNCE with a detached temperature it is ``p / tau``. The functions
take an objective and embeddings and compute the similarities again. They do not change the
objective, but an alignment-adaptive temperature observes the batch. With a queue, call them before
the loss, which stores the keys of the batch.

:func:`compare` uses the total variation distance. Let ``g_ij = |dL / ds_ij|`` be the size of the
gradient of the negative pair (i, j), and G its sum over the batch; ``c_ij(tau)`` and ``C(tau)`` are
the same under the constant temperature tau. Then

    total_variation(tau) = 1/2 sum_ij | g_ij / G - c_ij(tau) / C(tau) |

is the share of the negatives' gradient that must move to other pairs to turn one distribution into
the other: 0 for equal distributions, 1 for gradients on different pairs. The scale of the gradient
does not count, since Adam and clipping remove it; a scale that changes from step to step is
therefore not seen.
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
MOST_ANCHORS = 512  # compared in a batch
MOST_PAIRS = 2**22  # compared in a batch; many candidates leave fewer anchors


class PairSums(NamedTuple):
    """Sums over the pairs of a batch; add the fields to combine batches or processes.

    Row 0 sums over the positives, row 1 over the negatives, and row 2 over the negatives weighted
    by the sizes of their gradients.
    """

    # (3, 4): sums of the weights, of similarities, of temperatures, and of the weights of pairs
    # above the threshold; all pairs of rows 0 and 1 have the weight 1
    table: Tensor
    histograms: Tensor  # (3, BINS), the weights by similarity


class ConstantComparison(NamedTuple):
    """A loss beside constant temperatures; add the fields to combine batches or processes."""

    batches: Tensor  # (), the number of batches; one without a gradient does not count
    # (), gradients of positives divided by those of negatives; 1 for InfoNCE with a detached tau
    gradient_ratio: Tensor
    total_variation: Tensor  # (CONSTANTS,), distance to each constant

    def mean(self) -> ConstantComparison:
        """Return the mean over the batches; NaN without batches."""
        return ConstantComparison(self.batches, *(each / self.batches for each in self[1:]))


class _Rows(NamedTuple):
    """Anchors, and the gradient of the mean loss with respect to the inputs of their losses."""

    pairs: Pairs
    positive: Tensor  # (rows,), similarity of the positives
    # (1 + k, rows), for the similarity of the positive and the k logsumexps over the negatives
    gradients: Tensor

    def of_rows(self, rows: slice) -> _Rows:
        return _Rows(self.pairs.of_rows(rows), self.positive[rows], self.gradients[:, rows])


@torch.no_grad()
def pair_sums(loss: ContrastiveLoss, z: Sequence[Tensor], threshold: float) -> PairSums:
    """Sum over the pairs of this process's anchors.

    Args:
        loss: the objective.
        z: embeddings of the views, (n, dim) each.
        threshold: similarity above which a negative counts as highly similar.
    """
    groups = _rows_of(loss, z)
    positive = groups[0].positive[: len(z[0])]  # (n,), once where both views are anchors
    sums = PairSums(positive.new_zeros(3, 4), positive.new_zeros(3, BINS))

    def add(row: int, weights: Tensor, similarity: Tensor) -> None:
        high = similarity > threshold
        values = torch.ones_like(similarity), similarity, loss.tau(similarity), high
        sums.table[row] += torch.stack([(weights * value).sum() for value in values])
        sums.histograms[row] += _histogram(similarity, weights)

    add(0, torch.ones_like(positive), positive)
    for group in groups:
        step = max(1, BLOCK_ENTRIES // len(group.pairs.candidates))
        for start in range(0, len(group.positive), step):
            rows = group.of_rows(slice(start, start + step))
            similarity, size = _negative_gradients(loss, rows)
            is_negative = torch.ones_like(similarity).scatter_(1, rows.pairs.excluded, 0)
            add(1, is_negative, similarity)
            add(2, size, similarity)
    return sums


@torch.no_grad()
def compare(loss: ContrastiveLoss, z: Sequence[Tensor]) -> ConstantComparison:
    """Compare a loss with constant temperatures, on this process's first anchors.

    DCL is compared with DCL at each constant temperature, any other objective with InfoNCE on the
    same pairs. At a constant tau, the gradient of a negative is its softmax probability divided by
    tau; only the softmax of InfoNCE includes the positive. At most :data:`MOST_ANCHORS` anchors
    count.

    Args:
        loss: the objective.
        z: embeddings of the views, (n, dim) each.
    """
    groups = _rows_of(loss, z)
    similarities = []  # (rows, 1 + columns) each, the positive first
    biases = []
    sizes = []
    positive_sizes = []
    positive_bias = -torch.inf if isinstance(loss, DCLLoss) else 0.0
    for group in groups:
        most = min(MOST_ANCHORS, MOST_PAIRS // len(group.pairs.candidates)) // len(groups)
        rows = group.of_rows(slice(0, max(1, most)))
        similarity, size = _negative_gradients(loss, rows)
        bias = rows.pairs.mask_logits_(torch.zeros_like(similarity), add_weight=True)
        similarities.append(torch.column_stack([rows.positive, similarity]))
        biases.append(F.pad(bias, (1, 0), value=positive_bias))
        sizes.append(size.flatten())
        positive_sizes.append(rows.gradients[0].abs().sum())
    size = torch.cat(sizes)  # (pairs,)
    shares = size / size.sum()
    distances = []
    for tau in constants().to(size):
        log_probabilities = [
            (s / tau + bias).log_softmax(dim=1)[:, 1:].flatten()
            for s, bias in zip(similarities, biases, strict=True)
        ]
        of_constant = torch.cat(log_probabilities).softmax(dim=0)  # (pairs,), c / C
        distances.append((of_constant - shares).abs().sum() / 2)
    compared = ConstantComparison(
        batches=size.new_ones(()),
        gradient_ratio=torch.stack(positive_sizes).sum() / size.sum(),
        total_variation=torch.stack(distances),
    )
    valid = torch.stack([each.isfinite().all() for each in compared]).all()
    return ConstantComparison(*(torch.where(valid, each, 0) for each in compared))


def _rows_of(loss: ContrastiveLoss, z: Sequence[Tensor]) -> list[_Rows]:
    """Return this process's anchors, in the groups of ``loss.pairs``."""
    with torch.autocast(device_type=z[0].device.type, enabled=False):
        groups = loss.pairs(loss.prepare(*z))
        leaves = []
        losses = []
        for pairs in groups:
            positive = positive_similarity(pairs.anchors, pairs.positives)
            leaf = torch.stack([positive, *loss.logsumexps(pairs)]).requires_grad_()
            with torch.enable_grad():
                losses.append(loss.row_losses(leaf[0], leaf[1:].unbind(), pairs.negative_count))
            leaves.append(leaf)
        with torch.enable_grad():
            mean = torch.cat(losses).mean()
        gradients = torch.autograd.grad(mean, leaves)
    return [
        _Rows(pairs, leaf[0].detach(), gradient)
        for pairs, leaf, gradient in zip(groups, leaves, gradients, strict=True)
    ]


def _negative_gradients(loss: ContrastiveLoss, rows: _Rows) -> tuple[Tensor, Tensor]:
    """Return similarities and sizes ``|dL / ds|``, (rows, columns) each; 0 for excluded pairs."""
    with torch.autocast(device_type=rows.positive.device.type, enabled=False):
        similarity = (rows.pairs.anchors @ rows.pairs.candidates.T).requires_grad_()
        with torch.enable_grad():
            sums = torch.stack(loss.logsumexps_of(similarity, rows.pairs))
    (gradient,) = torch.autograd.grad(sums, similarity, rows.gradients[1:])
    return similarity.detach(), gradient.abs()


def constants() -> Tensor:
    """Return the temperatures of the comparison, (CONSTANTS,), fp64."""
    return torch.logspace(-2, 0, CONSTANTS, dtype=torch.float64)


def _histogram(similarity: Tensor, amounts: Tensor) -> Tensor:
    """Sum the amounts by the bin of their similarity, (BINS,)."""
    bins = ((similarity + 1) * (BINS / 2)).long().clamp_(0, BINS - 1)
    return amounts.new_zeros(BINS).scatter_add_(0, bins.flatten(), amounts.flatten())
