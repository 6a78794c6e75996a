"""What a rule amounts to on a batch: its gradient over the negatives beside that of every constant temperature.

Let ``g_ij`` be the size of the gradient that the negative pair (i, j) gets, ``|dL / ds_ij|``, and G its sum over the
batch; ``c_ij(tau)`` and ``C(tau)`` are the same under the constant temperature tau, for the same pairs. The distance of
the rule from that constant is the total variation distance of the two distributions,

    moved(tau) = 1/2 sum_ij | g_ij / G - c_ij(tau) / C(tau) |,

the share of the negatives' gradient that must be moved from pairs to other pairs to turn one into the other: 0 for
the same distribution, 1 for gradients on different pairs. The scale of the whole gradient is left out on purpose:
Adam and clipping take it out. A scale that changes from step to step is therefore not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from dystress_text.core.diagnosis import BINS, bins_of, negative_gradients, row_gradients
from dystress_text.core.objectives import ContrastiveLoss, MACLLoss
from dystress_text.core.other_losses import RINCELoss, SigLIPLoss

CONSTANTS = 41  # temperatures from 0.01 to 1, equal steps of their logarithm
MOST_ANCHORS = 512  # of a batch, whose negatives are compared
MOST_PAIRS = 2**22  # fewer anchors are compared where they have more candidates
_AT_ONCE = 2**18  # entries for several constants at a time


def constants() -> Tensor:
    """The temperatures that a rule is compared with, (CONSTANTS,), fp64."""
    return torch.logspace(-2, 0, CONSTANTS, dtype=torch.float64)


class Comparison(NamedTuple):
    """A rule beside the constants; of one batch, or sums over batches and processes, added field by field."""

    batches: Tensor  # (), their number; a batch without a gradient counts as none
    pull: Tensor  # (), gradient of the positives over that of the negatives; 1 a batch for InfoNCE with a detached tau
    moved: Tensor  # (CONSTANTS,), the distance of each constant
    rule: Tensor  # (BINS,), the share of the negatives' gradient by similarity under the rule
    constants: Tensor  # (CONSTANTS, BINS), the same under each constant

    def mean(self) -> Comparison:
        """The mean over the batches; NaN without any."""
        return Comparison(self.batches, *(each / self.batches for each in self[1:]))


class _Group(NamedTuple):
    """The compared pairs of a group: those of its first rows."""

    rows: slice  # among the rows of all groups
    similarity: Tensor  # (rows, columns)
    bias: Tensor  # (rows, columns), added to the logits: minus infinity where a pair is no negative
    size: Tensor  # (rows, columns), of the gradient under the rule
    bins: Tensor  # (rows, columns), of the similarities


@torch.no_grad()
def compare(loss: ContrastiveLoss, z: Sequence[Tensor]) -> Comparison:
    """Compare a rule with the constants, on the negatives of this process's first :data:`MOST_ANCHORS` anchors.

    Args:
        loss: the objective.
        z: embeddings (n, dim) that it takes.
    """
    rows = row_gradients(loss, z)
    groups: list[_Group] = []
    first = 0
    for one in rows:
        pairs = one.pairs
        most = min(MOST_ANCHORS, MOST_PAIRS // len(pairs.candidates)) // len(rows)
        inside = slice(0, min(len(pairs.anchors), max(1, most)))
        similarity, size = negative_gradients(loss, one, inside)
        bias = pairs.of_negatives(torch.zeros_like(similarity), inside)
        groups.append(_Group(slice(first, first + inside.stop), similarity, bias, size, bins_of(similarity)))
        first += len(pairs.anchors)
    total = torch.stack([group.size.sum() for group in groups]).sum()  # G
    groups = [group._replace(size=group.size / total) for group in groups]
    positive = torch.cat([one.similarity for one in rows])  # (rows,)
    of_positives = torch.cat([one.of_similarity for one in rows]).abs()
    pull = torch.cat([of_positives[group.rows] for group in groups]).sum() / total
    taus = constants().to(positive)
    at_once = max(1, _AT_ONCE // sum(group.similarity.numel() for group in groups))
    parts = [_under_constants(loss, some, groups, positive) for some in torch.split(taus, at_once)]
    moved, histograms = (torch.cat(found) for found in zip(*parts, strict=True))
    of_rule = torch.cat([_histograms(group.size.unsqueeze(0), group.bins) for group in groups]).sum(0)  # (BINS,)
    found = Comparison(torch.ones_like(pull), pull, moved, of_rule, histograms)
    whole = torch.stack([each.isfinite().all() for each in found]).all()
    return Comparison(*(torch.where(whole, each, 0) for each in found))


def _under_constants(
    loss: ContrastiveLoss, taus: Tensor, groups: Sequence[_Group], positive: Tensor
) -> tuple[Tensor, Tensor]:
    """The distance of each constant, (t,), and the shares of the gradient by similarity under it, (t, BINS)."""
    negatives = positive.new_zeros(len(taus), len(positive))  # (t, rows)
    shares = []
    for group in groups:
        logits = torch.mul(group.similarity, taus.reciprocal()[:, None, None]).add_(group.bias)  # (t, a, columns)
        largest = logits.amax(dim=2, keepdim=True)
        shares.append(logits.sub_(largest).exp_())
        each = shares[-1].sum(dim=2)  # (t, a)
        negatives[:, group.rows] = largest.squeeze(2) + each.log()
        shares[-1] /= each.unsqueeze(2)
    with torch.enable_grad():
        # an objective that is itself a rule is compared with InfoNCE, any other with itself
        is_rule = isinstance(loss, (MACLLoss, RINCELoss, SigLIPLoss))
        row_loss = partial(ContrastiveLoss.row_loss, loss) if is_rule else loss.row_loss
        losses = row_loss(positive / taus[:, None], negatives.requires_grad_(), positive)
        (weights,) = torch.autograd.grad(losses.sum(), negatives)  # (t, rows)
    factors = [weights[:, group.rows].abs() for group in groups]  # each (t, a)
    totals = torch.stack([factor.sum(dim=1) for factor in factors]).sum(0)  # (t,), C times tau
    moved, histograms = torch.zeros_like(taus), taus.new_zeros(len(taus), BINS)
    for group, share, factor in zip(groups, shares, factors, strict=True):
        share *= (factor / totals[:, None]).unsqueeze(2)
        histograms += _histograms(share, group.bins)
        moved += share.sub_(group.size).abs_().sum(dim=(1, 2)) / 2
    return moved, histograms


def _histograms(amounts: Tensor, bins: Tensor) -> Tensor:
    """Sums of amounts (t, a, columns) by the bins (a, columns) of their pairs, (t, BINS)."""
    t = len(amounts)
    index = bins.flatten() + torch.arange(0, t * BINS, BINS, device=bins.device)[:, None]  # (t, pairs)
    return amounts.new_zeros(t * BINS).scatter_add_(0, index.flatten(), amounts.flatten()).view(t, BINS)
