"""Which pairs an objective has: anchors, their positives, and the candidates that they are compared
with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from dystress_text.losses.gather import Gather


class Pairs(NamedTuple):
    """Unit vectors. Every anchor is compared with every candidate; those pairs are its negatives,
    except a few.

    If ``anchors`` and ``candidates`` are the same object, the matrix of logits is symmetric.
    """

    anchors: Tensor  # (rows, dim)
    positives: Tensor  # (rows, dim)
    candidates: Tensor  # (columns, dim)
    # (rows, k), int64: candidates that are no negatives: the positive, the anchor itself
    left_out: Tensor
    # (rows, h), int64: the anchor's own hard negatives among the candidates
    own: Tensor | None = None
    bonus: float = 0.0  # added to the logits of these

    @property
    def symmetric(self) -> bool:
        return self.candidates is self.anchors

    def similarity(self) -> Tensor:
        """Return the cosines of anchors and candidates, (rows, columns)."""
        if self.symmetric and self.anchors.shape[1] >= _GRAM_DIM:
            return cast(Tensor, _GramMatrix.apply(self.anchors))  # type: ignore[no-untyped-call]
        return self.anchors @ self.candidates.T

    @property
    def negative_count(self) -> int:
        """The number of negatives in each row."""
        return len(self.candidates) - self.left_out.shape[1]

    def of_rows(self, rows: slice) -> Pairs:
        """The pairs of some anchors."""
        own = None if self.own is None else self.own[rows]
        return self._replace(
            anchors=self.anchors[rows],
            positives=self.positives[rows],
            left_out=self.left_out[rows],
            own=own,
        )

    def mask_logits_(self, logits: Tensor, with_bonus: bool, first_column: int = 0) -> Tensor:
        """Set logits to -inf in place where a pair is no negative, and add the bonus of an anchor's
        own hard negatives.

        The logits are (rows, some columns), from ``first_column`` on. Only the first logit of a
        rule has the bonus; a second one normalises weights.
        """
        _add_at(logits, self.left_out - first_column, -torch.inf)
        if with_bonus and self.own is not None:
            _add_at(logits, self.own - first_column, self.bonus)
        return logits


_GRAM_DIM = 256  # below, adding a transpose costs more than the product that it saves


class _GramMatrix(torch.autograd.Function):
    """``z @ z.T``, (n, n), whose backward takes one matrix product where autograd takes two."""

    @staticmethod
    def forward(ctx: Any, z: Tensor) -> Tensor:
        ctx.save_for_backward(z)
        return z @ z.T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (z,) = ctx.saved_tensors  # (n, dim)
        return cast(Tensor, (grads[0] + grads[0].T) @ z)


def _add_at(logits: Tensor, columns: Tensor, amount: float) -> None:
    """Add an amount in some columns of each row, (rows, k); others than those of ``logits`` do not
    count.
    """
    inside = columns.clamp(0, logits.shape[1] - 1)
    amounts = torch.full_like(columns, amount, dtype=logits.dtype).where(columns == inside, 0)
    logits.scatter_add_(1, inside, amounts)


def own_columns(rows: int, gather: Gather, device: torch.device) -> Tensor:
    """The columns of this process's rows among the rows of all processes, (rows,)."""
    return torch.arange(rows, device=device) + gather.rank * rows


def first_view_pairs(
    z1: Tensor, z2: Tensor, hard_negatives: Sequence[Tensor], gather: Gather, bonus: float = 0.0
) -> Pairs:
    """Anchors z1 against all z2 (SimCSE's rows); unit vectors (n, dim), n x N pairs with N = n *
    world_size.
    """
    columns = own_columns(len(z1), gather, z1.device)
    pairs = Pairs(z1, z2, gather(z2), columns.unsqueeze(1))
    return _with_hard_negatives(pairs, hard_negatives, gather, bonus)


def both_view_pairs(
    z1: Tensor, z2: Tensor, hard_negatives: Sequence[Tensor], gather: Gather, bonus: float = 0.0
) -> Pairs:
    """Both views as anchors against all other views (SimCLR's rows); 2n x 2N pairs, the anchor
    itself left out.
    """
    anchors = torch.cat([z1, z2])  # (2n, dim)
    candidates = anchors
    if gather.world_size > 1:
        candidates = torch.cat([gather(z1), gather(z2)])  # (2N, dim)
    first = own_columns(len(z1), gather, z1.device)  # columns of this process's rows of either view
    second = first + len(candidates) // 2
    # (2n, 2)
    left_out = torch.stack([torch.cat([second, first]), torch.cat([first, second])], dim=1)
    pairs = Pairs(anchors, torch.cat([z2, z1]), candidates, left_out)
    return _with_hard_negatives(pairs, hard_negatives, gather, bonus)


def _with_hard_negatives(pairs: Pairs, z: Sequence[Tensor], gather: Gather, bonus: float) -> Pairs:
    """The pairs with hard negatives, unit vectors (n, dim) each, as further candidates of every
    anchor.
    """
    if not z:
        return pairs
    n = len(z[0])
    before = len(pairs.candidates)
    sample = own_columns(n, gather, z[0].device).repeat(len(pairs.anchors) // n)  # (rows,)
    own = [sample + before + i * n * gather.world_size for i in range(len(z))]
    return pairs._replace(
        candidates=torch.cat([pairs.candidates, *map(gather, z)]),  # (columns + h N, dim)
        own=torch.stack(own, dim=1),
        bonus=bonus,
    )
