"""From unit vectors to a loss an anchor: which pairs an objective has, their logits, and the row functions.

Every objective is a function of two numbers an anchor: the logit of its positive and the logsumexp of the logits of its
negatives. :class:`Pairs` says which anchors meet which candidates, :func:`plain_rows` takes those two numbers from the
whole matrix of similarities, and the row functions make losses of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dystress_text.core.gather import Gather
from dystress_text.core.registry import Temperature

NOTHING = -1e30  # a row's logsumexp where it has no negative; unlike -inf it has a derivative
_IDS_AT_ONCE = 2**22  # pairs of ids compared at a time


class Ids(NamedTuple):
    """Which samples are the same, by number: anchors and candidates that share one are no negatives of each other."""

    own: Tensor  # (rows, k), int64
    columns: Tensor  # (columns, m), int64

    def equal(self, rows: slice, columns: slice) -> Tensor:
        """Whether they share one, (rows, columns)."""
        shared = [a[rows, None] == b[columns] for a in self.own.unbind(1) for b in self.columns.unbind(1)]
        return torch.stack(shared).any(0) if len(shared) > 1 else shared[0]


class Negatives(NamedTuple):
    """The pairs that the second of the two numbers is made of, a row an anchor."""

    anchors: Tensor  # (rows, dim)
    candidates: Tensor  # (columns, dim)
    left_out: Tensor  # (rows, k), int64: columns that are no negatives of the row
    bonus_columns: Tensor | None = None  # (rows, h), as in Pairs
    bonus: float = 0.0
    ids: Ids | None = None  # as in Pairs

    def amend(self, logits: Tensor, rows: slice) -> Tensor:
        """Logits (rows, columns) with the bonus, and nothing left of a pair that is no negative."""
        if self.bonus_columns is not None:
            logits = add_bonus(logits, self.bonus_columns[rows], self.bonus)
        if self.ids is not None:
            logits = logits.masked_fill(self.ids.equal(rows, slice(None)), NOTHING)
        return logits.scatter(1, self.left_out[rows], -torch.inf)

    def mask(self, like: Tensor, rows: slice) -> Tensor:
        """1 for a negative and 0 for another pair, (rows, columns) in the dtype of ``like``."""
        ones = torch.ones_like(like)
        if self.ids is not None:
            ones.masked_fill_(self.ids.equal(rows, slice(None)), 0)
        return ones.scatter_(1, self.left_out[rows], 0)

    @torch.no_grad()
    def duplicates(self) -> Tensor:
        """How many pairs their ids alone leave out, a scalar."""
        total = torch.zeros((), dtype=torch.int64, device=self.anchors.device)
        if self.ids is None:
            return total
        step = max(1, _IDS_AT_ONCE // len(self.candidates))
        for start in range(0, len(self.anchors), step):
            equal = self.ids.equal(slice(start, start + step), slice(None))
            total += equal.scatter_(1, self.left_out[start : start + step], False).sum()
        return total


class Pairs(NamedTuple):
    """Which anchors meet which candidates, all unit vectors, and what is special about some of the pairs.

    Where ``anchors`` and ``candidates`` are the same object, positives must be mutual and the excluded column the
    anchor's own, so that the matrix of logits is symmetric.
    """

    anchors: Tensor  # (rows, dim)
    candidates: Tensor  # (columns, dim)
    positive_column: Tensor  # (rows,), int64
    excluded_column: Tensor | None = None  # (rows,), int64: the anchor itself among the candidates
    bonus_columns: Tensor | None = None  # (rows, h), int64: the anchor's own hard negatives
    bonus: float = 0.0  # added to those logits
    ids: Ids | None = None  # of the samples, where equal ones are to be left out

    @property
    def symmetric(self) -> bool:
        """Whether the matrix of logits is symmetric: the anchors are the candidates."""
        return self.candidates is self.anchors and self.bonus_columns is None

    @property
    def entries(self) -> int:
        """Similarities that the whole matrix would hold."""
        return len(self.anchors) * len(self.candidates)

    @property
    def negatives(self) -> Negatives:
        """The pairs that are neither the positive nor the anchor with itself, nor duplicates."""
        columns = [column for column in (self.positive_column, self.excluded_column) if column is not None]
        left_out = torch.stack(columns, dim=1)  # (rows, 1 or 2)
        return Negatives(self.anchors, self.candidates, left_out, self.bonus_columns, self.bonus, self.ids)


class Rows(NamedTuple):
    """What an objective sees of each anchor, both (rows,)."""

    positive: Tensor  # logit of the positive
    negatives: Tensor  # logsumexp of the logits of the negatives


# ---- unit vectors and their products -------------------------------------------------------------------------------


def at_least_fp32(x: Tensor) -> Tensor:
    """``x`` in fp32, or in fp64 if it is so."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def unit_vectors(x: Tensor) -> Tensor:
    """Rows of ``x`` (..., dim) scaled to length 1, in fp32 or better; a zero row stays zero, with a zero gradient.

    A row is first divided by its largest entry, so that no square over- or underflows. Rows without a normal number
    (fp32: 1.2e-38) count as zero.
    """
    units: Tensor
    units, _ = _UnitVectors.apply(at_least_fp32(x))  # type: ignore[no-untyped-call]
    return units


class _UnitVectors(torch.autograd.Function):
    """Keeps the unit vectors alone for its backward, where a chain of operations would keep several copies.

    The inverse lengths are an output too, so that second derivatives are right.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        largest: Tensor = torch.linalg.vector_norm(x, ord=torch.inf, dim=-1, keepdim=True)  # (..., 1)
        largest = torch.where(largest < torch.finfo(x.dtype).tiny, torch.inf, largest)
        units = x / largest  # entries in [-1, 1]
        length: Tensor = torch.linalg.vector_norm(units, dim=-1, keepdim=True)  # (..., 1), at least 1 or a zero row's 0
        factor = length.clamp(min=0.5).reciprocal()
        units *= factor
        inverse = factor / largest
        ctx.save_for_backward(units, inverse)
        ctx.set_materialize_grads(False)
        return units, inverse

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> Tensor | None:
        units, inverse = ctx.saved_tensors
        of_units, of_inverse = grads
        gradient = None
        if of_units is not None:
            with torch.autocast(device_type=units.device.type, enabled=False):
                along = torch.einsum("...d,...d->...", of_units, units).unsqueeze(-1)  # no product of full size
            gradient = (of_units * inverse).addcmul_(units, along * inverse, value=-1)
        if of_inverse is not None:  # in second derivatives alone
            inward = -of_inverse * inverse * inverse * units
            gradient = inward if gradient is None else gradient + inward
        return gradient


def positive_similarity(z1: Tensor, z2: Tensor) -> Tensor:
    """Similarity of each pair of unit vectors, (n, dim) x (n, dim) -> (n,)."""
    return (z1 * z2).sum(dim=-1)


# ---- which pairs an objective has ----------------------------------------------------------------------------------


def own_columns(rows: int, gather: Gather, device: torch.device) -> Tensor:
    """Columns at which this process's rows stand among everybody's, (rows,)."""
    return torch.arange(rows, device=device) + gather.rank * rows


def first_view_pairs(z1: Tensor, z2: Tensor, gather: Gather, ids: Sequence[Tensor] | None = None) -> Pairs:
    """Anchors z1 against all z2 (SimCSE's rows); unit vectors (n, dim), n x N pairs with N = n * world_size.

    ``ids`` are those of the views' samples, (n,) each; where they are given, equal samples are left out.
    """
    own = _own_ids(ids)
    equal = None if own is None else Ids(own, gather(own))
    return Pairs(z1, gather(z2), own_columns(len(z1), gather, z1.device), ids=equal)


def both_view_pairs(z1: Tensor, z2: Tensor, gather: Gather, ids: Sequence[Tensor] | None = None) -> Pairs:
    """Both views as anchors against all other views (SimCLR's rows); 2n x 2N pairs, itself excluded."""
    anchors = torch.cat([z1, z2])  # (2n, dim)
    candidates = anchors if gather.world_size == 1 else torch.cat([gather(z1), gather(z2)])  # (2N, dim)
    columns = own_columns(len(z1), gather, z1.device)
    first, second = columns, columns + len(candidates) // 2  # where this process's rows of either view stand
    own = _own_ids(ids)
    equal = None if own is None else Ids(own.repeat(2, 1), gather(own).repeat(2, 1))
    return Pairs(anchors, candidates, torch.cat([second, first]), torch.cat([first, second]), ids=equal)


def with_hard_negatives(
    pairs: Pairs, z: Sequence[Tensor], gather: Gather, bonus: float, ids: Sequence[Tensor] | None = None
) -> Pairs:
    """The same anchors with hard negatives as further candidates, those of all rows for each.

    Args:
        pairs: of the first two views.
        z: the hard negatives, unit vectors (n, dim) each.
        gather: the other processes.
        bonus: added to the logits of an anchor's own ones.
        ids: theirs, (n,) each, where ``pairs`` has ids.
    """
    if not z:
        return pairs
    n = len(z[0])
    sample = own_columns(n, gather, z[0].device).repeat(len(pairs.anchors) // n)  # (rows,)
    before, all_rows = len(pairs.candidates), n * gather.world_size
    equal = pairs.ids
    if equal is not None and ids is not None:
        of_columns = [gather(i).unsqueeze(1).expand(-1, equal.columns.shape[1]) for i in ids]  # each (N, m)
        equal = Ids(equal.own, torch.cat([equal.columns, *of_columns]))
    return pairs._replace(
        candidates=torch.cat([pairs.candidates, *map(gather, z)]),  # (columns + h N, dim)
        bonus_columns=torch.stack([sample + before + i * all_rows for i in range(len(z))], dim=1),
        bonus=bonus,
        ids=equal,
    )


def _own_ids(ids: Sequence[Tensor] | None) -> Tensor | None:
    """Ids of an anchor's own samples, anchor and positive, (n, 2); (n, 1) if both are views of one."""
    if ids is None:
        return None
    return ids[0].unsqueeze(1) if ids[0] is ids[1] else torch.stack([ids[0], ids[1]], dim=1)


# ---- from pairs to rows --------------------------------------------------------------------------------------------


def scaled_logits(similarity: Tensor, temperature: Temperature, detach_temperature: bool = True) -> Tensor:
    """``s / tau(s)``, the same shape as ``similarity``; the temperature in or out of the gradient."""
    tau: Tensor = temperature(similarity.detach() if detach_temperature else similarity)
    return similarity / tau


def add_bonus(logits: Tensor, columns: Tensor, bonus: float) -> Tensor:
    """Logits (rows, columns) with a number added at ``columns`` (rows, h) of each row."""
    return logits.scatter_add(1, columns, torch.full_like(columns, bonus, dtype=logits.dtype))


def plain_rows(pairs: Pairs, temperature: Temperature, detach_temperature: bool = True) -> Rows:
    """The rows from the whole matrix of similarities; memory grows with rows x columns."""
    logits = scaled_logits(pairs.anchors @ pairs.candidates.T, temperature, detach_temperature)  # (rows, columns)
    positive = logits.gather(1, pairs.positive_column.unsqueeze(1)).squeeze(1)  # (rows,)
    return Rows(positive, pairs.negatives.amend(logits, slice(None)).logsumexp(dim=1))


# ---- row functions: from Rows to a loss an anchor ------------------------------------------------------------------


def info_nce_rows(rows: Rows) -> Tensor:
    """-log P, P the softmax probability of the positive among all candidates; (rows,)."""
    return -F.logsigmoid(rows.positive - rows.negatives)


def decoupled_rows(rows: Rows, positive_weight: Tensor | None = None) -> Tensor:
    """DCL's ``-w s_p / tau + logsumexp(negatives)``, with w = 1 unless given; (rows,)."""
    positive = rows.positive if positive_weight is None else positive_weight * rows.positive
    return rows.negatives - positive


def reweighted_rows(rows: Rows) -> Tensor:
    """MACL's ``-sg(1 / (1 - P)) log P``; (rows,).

    With m = logsumexp(negatives) - positive this is softplus(m) / sg(sigmoid(m)). Its derivative by m is exactly 1, and
    below m = -40 its value is 1 in every precision, so value and derivative are set apart: nothing can underflow.
    """
    margin = rows.negatives - rows.positive
    safe = margin.detach().clamp(min=-40)
    value = F.logsigmoid(-safe).neg() / torch.sigmoid(safe)
    return value + (margin - margin.detach())
