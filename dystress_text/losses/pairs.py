"""The pairs that an objective compares: anchors, their positives, and candidate negatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from dystress_text.losses.gather import Gather


class Pairs(NamedTuple):
    """Unit vectors of anchors, positives and candidates.

    The negatives of an anchor are all candidates except the excluded ones. If ``anchors`` and
    ``candidates`` are the same object, the matrix of logits is symmetric.
    """

    anchors: Tensor  # (rows, dim)
    positives: Tensor  # (rows, dim)
    candidates: Tensor  # (columns, dim)
    # (rows, k), int64: columns that are not negatives, i.e. the positive and the anchor itself
    excluded: Tensor
    # (rows, h), int64: columns of the hard negatives that belong to the anchor
    hard_negatives: Tensor | None = None
    hard_negative_weight: float = 0.0  # added to the logits of these

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
        """The number of negatives of each anchor."""
        return len(self.candidates) - self.excluded.shape[1]

    def of_rows(self, rows: slice) -> Pairs:
        """Return the pairs of some of the anchors."""
        hard_negatives = self.hard_negatives
        if hard_negatives is not None:
            hard_negatives = hard_negatives[rows]
        return self._replace(
            anchors=self.anchors[rows],
            positives=self.positives[rows],
            excluded=self.excluded[rows],
            hard_negatives=hard_negatives,
        )

    def with_hard_negatives(self, z: Sequence[Tensor], gather: Gather, weight: float) -> Pairs:
        """Append hard negatives, unit vectors (n, dim) each, to the candidates of every anchor."""
        if not z:
            return self
        n = len(z[0])
        sample = local_columns(n, gather, z[0].device).repeat(len(self.anchors) // n)  # (rows,)
        first = len(self.candidates)
        columns = [sample + first + i * n * gather.world_size for i in range(len(z))]
        return self._replace(
            candidates=torch.cat([self.candidates, *map(gather, z)]),  # (columns + h N, dim)
            hard_negatives=torch.stack(columns, dim=1),
            hard_negative_weight=weight,
        )

    def without_identical(self, texts: Tensor, gather: Gather) -> Pairs:
        """Exclude the views of all samples that share a text with the anchor's sample.

        If that leaves an anchor without negatives, nothing more is excluded.

        Args:
            texts: an id of each text of the samples, (n, k); equal texts have the same.
            gather: collects rows of all processes.
        """
        n = len(texts)
        of_all = gather(texts)  # (N, k)
        same = (texts.unsqueeze(1) == of_all).any(dim=2)  # (n, N)
        most = int(same.sum(dim=1).max())
        if most == len(of_all):
            return self
        samples = same.byte().topk(most).indices  # (n, most)
        own = local_columns(n, gather, texts.device).unsqueeze(1)
        samples = torch.where(same.gather(1, samples), samples, own)
        hard = 0 if self.hard_negatives is None else self.hard_negatives.shape[1]
        views = len(self.candidates) // len(of_all) - hard
        columns = [samples + view * len(of_all) for view in range(views)]
        excluded = torch.cat(columns, dim=1).repeat(len(self.anchors) // n, 1)
        return self._replace(excluded=excluded)

    def mask_logits_(self, logits: Tensor, add_weight: bool, first_column: int = 0) -> Tensor:
        """Set the logits of excluded pairs to -inf, in place.

        Args:
            logits: (rows, some columns).
            add_weight: whether to add ``hard_negative_weight`` too. Only the first logit of a
                reweighting takes it; a second one normalises weights.
            first_column: the candidate of the first column.
        """
        _add_at(logits, self.excluded - first_column, -torch.inf)
        if add_weight and self.hard_negatives is not None:
            _add_at(logits, self.hard_negatives - first_column, self.hard_negative_weight)
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
    """Add an amount to some columns of each row, in place.

    Args:
        logits: (rows, columns).
        columns: (rows, k); those outside of ``logits`` are ignored.
        amount: the amount to add.
    """
    inside = columns.clamp(0, logits.shape[1] - 1)
    amounts = torch.full_like(columns, amount, dtype=logits.dtype).where(columns == inside, 0)
    logits.scatter_add_(1, inside, amounts)


def local_columns(rows: int, gather: Gather, device: torch.device) -> Tensor:
    """Return the indices of this process's rows among the gathered rows, (rows,)."""
    return torch.arange(rows, device=device) + gather.rank * rows


def first_view_pairs(z1: Tensor, z2: Tensor, gather: Gather) -> Pairs:
    """Compare each z1 with all z2, as SimCSE does.

    Args:
        z1: unit vectors of the anchors, (n, dim).
        z2: unit vectors of the positives, (n, dim). Those of all N = n * world_size samples are
            candidates.
        gather: collects rows of all processes.
    """
    return Pairs(z1, z2, gather(z2), local_columns(len(z1), gather, z1.device).unsqueeze(1))


def both_view_pairs(z1: Tensor, z2: Tensor, gather: Gather) -> Pairs:
    """Compare both views of a sample with all other 2N - 1 views, as SimCLR does.

    The arguments are those of :func:`first_view_pairs`.
    """
    anchors = torch.cat([z1, z2])  # (2n, dim)
    candidates = anchors
    if gather.world_size > 1:
        candidates = torch.cat([gather(z1), gather(z2)])  # (2N, dim)
    # columns of this process's rows of either view
    first = local_columns(len(z1), gather, z1.device)
    second = first + len(candidates) // 2
    # (2n, 2)
    excluded = torch.stack([torch.cat([second, first]), torch.cat([first, second])], dim=1)
    return Pairs(anchors, torch.cat([z2, z1]), candidates, excluded)
