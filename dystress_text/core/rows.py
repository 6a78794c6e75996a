"""From unit vectors to one loss per anchor: the pairs of an objective, their logits, and the row functions.

Every objective is a function of two numbers per anchor: the logit of its positive and the logsumexp of the logits of
its negatives. :class:`Pairs` says which anchors are compared with which candidates, :func:`plain_rows` computes the two
numbers from the whole matrix of similarities, and the row functions compute losses from them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from dystress_text.core.gather import Gather
from dystress_text.core.rule import PairRule, Rows, RowSums

NOTHING = -1e30  # the logsumexp of a row without negatives; unlike -inf it has a derivative
_IDS_AT_ONCE = 2**22  # pairs of ids compared at a time


class Ids(NamedTuple):
    """Ids of samples: an anchor and a candidate that share an id are not used as negatives for each other."""

    rows: Tensor  # (rows, k), int64
    columns: Tensor  # (columns, m), int64

    def found(self, rows: slice, columns: slice) -> Tensor:
        """Whether each pair of a block shares an id, (rows, columns)."""
        shared = [a[rows, None] == b[columns] for a in self.rows.unbind(1) for b in self.columns.unbind(1)]
        return torch.stack(shared).any(0) if len(shared) > 1 else shared[0]


class Alike(NamedTuple):
    """Pairs that a guide finds alike: an anchor and a candidate above its threshold are no negatives."""

    rows: Tensor  # (rows, any dim), the guide's unit vectors
    columns: Tensor  # (columns, the same dim)
    threshold: Tensor  # (), or (rows, 1)

    def found(self, rows: slice, columns: slice) -> Tensor:
        """Whether the guide finds each pair of a block alike, (rows, columns)."""
        threshold = self.threshold[rows] if self.threshold.ndim else self.threshold
        return self.rows[rows] @ self.columns[columns].T > threshold


class Spared(NamedTuple):
    """Pairs that are no negatives although they are pairs of two samples."""

    ids: Ids | None = None
    alike: Alike | None = None

    @property
    def any(self) -> bool:
        """Whether there can be such pairs."""
        return self.ids is not None or self.alike is not None

    @property
    def symmetric(self) -> bool:
        """Whether a pair's mirror image is spared with it, where the anchors are the candidates."""
        return self.alike is None or self.alike.threshold.ndim == 0

    def found(self, rows: slice, columns: slice = slice(None)) -> Tensor | None:
        """Whether each pair of a block is one of them, (rows, columns); None if there are none."""
        if self.ids is None or self.alike is None:
            only = self.ids or self.alike
            return None if only is None else only.found(rows, columns)
        return self.ids.found(rows, columns) | self.alike.found(rows, columns)


class Negatives(NamedTuple):
    """The negative pairs, whose logsumexp is computed; one row per anchor."""

    anchors: Tensor  # (rows, dim)
    candidates: Tensor  # (columns, dim)
    left_out: Tensor  # (rows, k), int64: columns that are not negatives of the row
    bonus_columns: Tensor | None = None  # (rows, h), as in Pairs
    bonus: float = 0.0
    spared: Spared = Spared()  # as in Pairs

    def amend(self, logits: Tensor, rows: slice, bonus: bool = True) -> Tensor:
        """Logits (rows, columns) with pairs that are not negatives removed and, if asked for, with the bonus added."""
        if bonus and self.bonus_columns is not None:
            logits = add_bonus(logits, self.bonus_columns[rows], self.bonus)
        spared = self.spared.found(rows)
        if spared is not None:
            logits = logits.masked_fill(spared, NOTHING)
        return logits.scatter(1, self.left_out[rows], -torch.inf)

    def mask(self, like: Tensor, rows: slice) -> Tensor:
        """1 for a negative and 0 for any other pair, (rows, columns) in the dtype of ``like``."""
        ones = torch.ones_like(like)
        spared = self.spared.found(rows)
        if spared is not None:
            ones.masked_fill_(spared, 0)
        return ones.scatter_(1, self.left_out[rows], 0)

    @torch.no_grad()
    def counts(self) -> Tensor:
        """The number of negatives of each anchor, (rows,), in the dtype of the vectors."""
        counts = self.anchors.new_full((len(self.anchors),), len(self.candidates) - self.left_out.shape[1])
        if not self.spared.any:
            return counts
        for rows in self._some_rows():
            counts[rows] = self.mask(self.anchors.new_empty(len(counts[rows]), len(self.candidates)), rows).sum(1)
        return counts

    def _some_rows(self) -> Iterator[slice]:
        step = max(1, _IDS_AT_ONCE // len(self.candidates))
        for start in range(0, len(self.anchors), step):
            yield slice(start, start + step)

    @torch.no_grad()
    def spared_counts(self) -> tuple[Tensor, Tensor]:
        """The numbers of pairs that are left out only because of their ids, and of others only because of the guide."""
        total = torch.zeros(2, dtype=torch.int64, device=self.anchors.device)
        for rows in self._some_rows() if self.spared.any else ():
            found = [None if one is None else one.found(rows, slice(None)) for one in self.spared]
            same, alike = (None if one is None else one.scatter_(1, self.left_out[rows], False) for one in found)
            if same is not None:
                total[0] += same.sum()
            if alike is not None:
                total[1] += (alike if same is None else alike & ~same).sum()
        return total[0], total[1]


class Pairs(NamedTuple):
    """The anchors and the candidates that they are compared with, all unit vectors, and which pairs are special.

    If ``anchors`` and ``candidates`` are the same object, the matrix of logits must be symmetric: positives are mutual,
    and the excluded column is that of the anchor itself.
    """

    anchors: Tensor  # (rows, dim)
    candidates: Tensor  # (columns, dim)
    positive_column: Tensor  # (rows,), int64
    excluded_column: Tensor | None = None  # (rows,), int64: the anchor itself among the candidates
    bonus_columns: Tensor | None = None  # (rows, h), int64: the anchor's own hard negatives
    bonus: float = 0.0  # added to those logits
    spared: Spared = Spared()  # pairs of two samples that are no negatives
    tau: Tensor | None = None  # (rows, 1), temperatures of the anchors, where they have their own

    @property
    def symmetric(self) -> bool:
        """Whether the matrix of logits is symmetric, because the anchors are the candidates."""
        return self.candidates is self.anchors and self.bonus_columns is None and self.spared.symmetric

    @property
    def entries(self) -> int:
        """The number of similarities in the whole matrix."""
        return len(self.anchors) * len(self.candidates)

    @property
    def negatives(self) -> Negatives:
        """The pairs without the positives, the anchors with themselves, and the duplicates."""
        columns = [column for column in (self.positive_column, self.excluded_column) if column is not None]
        left_out = torch.stack(columns, dim=1)  # (rows, 1 or 2)
        return Negatives(self.anchors, self.candidates, left_out, self.bonus_columns, self.bonus, self.spared)


# ---- unit vectors and their products -------------------------------------------------------------------------------


def at_least_fp32(x: Tensor) -> Tensor:
    """``x`` in fp32, or in fp64 if it is fp64."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def unit_vectors(x: Tensor) -> Tensor:
    """Rows of ``x`` (..., dim) scaled to length 1, in fp32 or better; a zero row stays zero, with a zero gradient.

    A row is first divided by its largest entry, so that no square over- or underflows. A row whose entries are all
    below the smallest normal number (fp32: 1.2e-38) counts as zero.
    """
    units: Tensor
    units, _ = _UnitVectors.apply(at_least_fp32(x))  # type: ignore[no-untyped-call]
    return units


class _UnitVectors(torch.autograd.Function):
    """Saves only the unit vectors for its backward, where a chain of operations would save several copies.

    The inverse lengths are an output too, because second derivatives need them.
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
                along = torch.einsum("...d,...d->...", of_units, units).unsqueeze(-1)  # without a full-size product
            gradient = (of_units * inverse).addcmul_(units, along * inverse, value=-1)
        if of_inverse is not None:  # only in second derivatives
            inward = -of_inverse * inverse * inverse * units
            gradient = inward if gradient is None else gradient + inward
        return gradient


def positive_similarity(z1: Tensor, z2: Tensor) -> Tensor:
    """Similarity of each pair of unit vectors, (n, dim) x (n, dim) -> (n,)."""
    return (z1 * z2).sum(dim=-1)


# ---- which pairs an objective has ----------------------------------------------------------------------------------


def own_columns(rows: int, gather: Gather, device: torch.device) -> Tensor:
    """The columns of this process's rows among the rows of all processes, (rows,)."""
    return torch.arange(rows, device=device) + gather.rank * rows


def first_view_pairs(z1: Tensor, z2: Tensor, gather: Gather, ids: Sequence[Tensor] | None = None) -> Pairs:
    """Anchors z1 against all z2 (SimCSE's rows); unit vectors (n, dim), n x N pairs with N = n * world_size.

    ``ids`` are the ids of the views' samples, (n,) each; if they are given, pairs of equal samples are left out.
    """
    row_ids = _row_ids(ids)
    pair_ids = None if row_ids is None else Ids(row_ids, gather(row_ids))
    return Pairs(z1, gather(z2), own_columns(len(z1), gather, z1.device), spared=Spared(pair_ids))


def both_view_pairs(z1: Tensor, z2: Tensor, gather: Gather, ids: Sequence[Tensor] | None = None) -> Pairs:
    """Both views as anchors against all other views (SimCLR's rows); 2n x 2N pairs, the anchor itself excluded."""
    anchors = torch.cat([z1, z2])  # (2n, dim)
    candidates = anchors if gather.world_size == 1 else torch.cat([gather(z1), gather(z2)])  # (2N, dim)
    columns = own_columns(len(z1), gather, z1.device)
    first, second = columns, columns + len(candidates) // 2  # columns of this process's rows of either view
    row_ids = _row_ids(ids)
    pair_ids = None if row_ids is None else Ids(row_ids.repeat(2, 1), gather(row_ids).repeat(2, 1))
    return Pairs(anchors, candidates, torch.cat([second, first]), torch.cat([first, second]), spared=Spared(pair_ids))


def with_hard_negatives(
    pairs: Pairs, z: Sequence[Tensor], gather: Gather, bonus: float, ids: Sequence[Tensor] | None = None
) -> Pairs:
    """The pairs with hard negatives as further candidates; every anchor gets the hard negatives of all rows.

    Args:
        pairs: of the first two views.
        z: the hard negatives, unit vectors (n, dim) each.
        gather: the other processes.
        bonus: added to the logits of an anchor's own hard negatives.
        ids: of the hard negatives' samples, (n,) each, if ``pairs`` has ids.
    """
    if not z:
        return pairs
    n = len(z[0])
    sample = own_columns(n, gather, z[0].device).repeat(len(pairs.anchors) // n)  # (rows,)
    before, all_rows = len(pairs.candidates), n * gather.world_size
    pair_ids = pairs.spared.ids
    if pair_ids is not None and ids is not None:
        of_columns = [gather(i).unsqueeze(1).expand(-1, pair_ids.columns.shape[1]) for i in ids]  # each (N, m)
        pair_ids = Ids(pair_ids.rows, torch.cat([pair_ids.columns, *of_columns]))
    return pairs._replace(
        candidates=torch.cat([pairs.candidates, *map(gather, z)]),  # (columns + h N, dim)
        bonus_columns=torch.stack([sample + before + i * all_rows for i in range(len(z))], dim=1),
        bonus=bonus,
        spared=Spared(pair_ids),
    )


def _row_ids(ids: Sequence[Tensor] | None) -> Tensor | None:
    """The ids of each row's samples, anchor and positive, (n, 2); (n, 1) if both are views of one sample."""
    if ids is None:
        return None
    return ids[0].unsqueeze(1) if ids[0] is ids[1] else torch.stack([ids[0], ids[1]], dim=1)


# ---- from pairs to rows --------------------------------------------------------------------------------------------


def add_bonus(logits: Tensor, columns: Tensor, bonus: float) -> Tensor:
    """Logits (rows, columns) with a number added at ``columns`` (rows, h) of each row."""
    return logits.scatter_add(1, columns, torch.full_like(columns, bonus, dtype=logits.dtype))


def plain_rows(pairs: Pairs, rule: PairRule, detach: bool = True) -> RowSums:
    """The rows from the whole matrix of similarities; memory grows with rows x columns."""
    similarity = pairs.anchors @ pairs.candidates.T  # (rows, columns)
    logits = rule.logits(similarity, detach, pairs.tau)  # each (rows, columns)
    column = pairs.positive_column.unsqueeze(1)  # (rows, 1)
    if type(rule).positive_logit is PairRule.positive_logit:
        positive = logits[0].gather(1, column).squeeze(1)  # (rows,)
    else:
        positive = rule.positive_logit(similarity.gather(1, column).squeeze(1), detach, pairs.tau)
    negatives = pairs.negatives
    sums = [negatives.amend(logit, slice(None), bonus=k == 0).logsumexp(dim=1) for k, logit in enumerate(logits)]
    return RowSums(positive, torch.stack(sums, dim=1), negatives.counts() if rule.needs_counts else None, pairs.tau)


# ---- row functions: from Rows to one loss per anchor ---------------------------------------------------------------


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
