"""The rows of an objective without the matrix of similarities: memory grows with the batch, not with its square.

Forward, blocks of the matrix are formed one at a time and folded into an online logsumexp of each row. Backward, they
are formed again, so that InfoNCE costs four matrix products instead of three. Where anchors and candidates are the
same vectors (NT-Xent, DCL, DCLW, MACL on both views, one process) the matrix is symmetric: only blocks on and above its
diagonal are formed, which costs two products instead of three.

Loss and gradients equal those of :func:`~dystress_text.core.rows.plain_rows`. The rule must be elementwise and must
give the same values when it is called twice. Nothing is read back from the device between the blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dystress_text.core.rows import NOTHING, Pairs, Spared, positive_similarity
from dystress_text.core.rule import PairRule, Pull, RowSums

# A loss with blockwise=None uses the blockwise form above these numbers of similarities.
BLOCKWISE_ENTRIES = 2**24  # 4,096 pairs of InfoNCE, 64 MiB in fp32
SYMMETRIC_ENTRIES = 2**22  # of a symmetric matrix, where half of it is computed: 1,024 pairs of NT-Xent
CPU_BLOCK = 512  # rows and columns of a block; its copies fit into the CPU's cache
DEVICE_BLOCK = 4096  # of other accelerators: large enough to fill one, 64 MiB a copy in fp32
CUDA_BLOCKS = (16_384, 8_192, 4_096, 2_048)  # the largest one whose copies take at most this share of the memory
CUDA_SHARE = 1 / 16
COPIES = 13  # of a block, at most, exist at a time; rules with two logits have up to twice as many


def blockwise_pays(pairs: Pairs) -> bool:
    """Whether the blockwise form takes less time than the plain one (measured on a CPU), or memory begins to matter."""
    return pairs.entries > (SYMMETRIC_ENTRIES if pairs.symmetric else BLOCKWISE_ENTRIES)


def block_size(device: torch.device, itemsize: int = 4) -> int:
    """Rows and columns of a block; all copies of one take at most 1/16 of a CUDA device's memory.

    Args:
        device: of the similarities.
        itemsize: bytes of a similarity.
    """
    if device.type == "cpu":
        return CPU_BLOCK
    if device.type != "cuda":
        return DEVICE_BLOCK
    room = CUDA_SHARE * torch.cuda.get_device_properties(device).total_memory / (COPIES * itemsize)
    return next((block for block in CUDA_BLOCKS if block**2 <= room), CUDA_BLOCKS[-1])


def blockwise_rows(pairs: Pairs, rule: PairRule, detach: bool = True, block: int | None = None) -> RowSums:
    """What :func:`~dystress_text.core.rows.plain_rows` gives, without the matrix.

    The rule's state may change between forward and backward; the backward uses the state of the forward.

    Args:
        pairs: anchors, candidates and their special columns.
        rule: an elementwise rule; its learned parameters get gradients too.
        detach: whether a temperature is kept out of the gradient.
        block: rows and columns of a block; None chooses by the device.

    Raises:
        RuntimeError: in the backward with ``create_graph=True``; second derivatives are not implemented.
    """
    columns = pairs.negatives.left_out  # (rows, k)
    amounts = [-torch.inf] * columns.shape[1]
    if pairs.bonus_columns is not None:
        columns = torch.cat([columns, pairs.bonus_columns], dim=1)
        amounts += [pairs.bonus] * pairs.bonus_columns.shape[1]
    matrix = _Matrix(
        rule=rule.as_it_is() if torch.is_grad_enabled() else rule,
        detach=detach,
        tau=pairs.tau,
        positive_column=pairs.positive_column.unsqueeze(1),
        left_out=pairs.negatives.left_out.shape[1],
        special_columns=columns,
        special_amounts=pairs.anchors.new_tensor(amounts).expand(len(pairs.anchors), -1),
        spared=pairs.spared,
        symmetric=pairs.symmetric,
        block=block or block_size(pairs.anchors.device, pairs.anchors.element_size()),
    )
    similarity, sums = _BlockwiseRows.apply(  # type: ignore[no-untyped-call]
        matrix, pairs.anchors, pairs.candidates, *rule.learned()
    )
    positive = rule.positive_logit(similarity, detach, pairs.tau)
    return RowSums(positive, sums, pairs.negatives.counts() if rule.needs_counts else None, pairs.tau)


@dataclass(frozen=True)
class _Matrix:
    """What is needed to compute any block of the matrix of logits, except the vectors."""

    rule: PairRule  # as it is in the forward
    detach: bool
    tau: Tensor | None  # (rows, 1), temperatures of the anchors, where they have their own
    positive_column: Tensor  # (rows, 1)
    left_out: int  # so many of the special columns are no negatives; the others have a bonus
    special_columns: Tensor  # (rows, k)
    special_amounts: Tensor  # (rows, k), added to the logits there; -inf removes a pair from the negatives
    spared: Spared
    symmetric: bool
    block: int

    def blocks(self, rows: int, columns: int) -> Iterator[tuple[slice, slice]]:
        """Rows and columns of each block; of a symmetric matrix those on and above the diagonal."""
        for row in _slices(0, rows, self.block):
            for column in _slices(row.start if self.symmetric else 0, columns, self.block):
                yield row, column

    def mirrored(self, rows: slice, columns: slice) -> bool:
        """Whether the block's transpose, on the other side of the diagonal, is needed too."""
        return self.symmetric and rows != columns

    def amend(self, logits: Sequence[Tensor], rows: slice, columns: slice) -> None:
        """Remove the pairs that are not negatives from a block's logits, and add the bonus to the first; in place."""
        spared = self.spared.found(rows, columns)
        places, amounts = self.special_columns[rows] - columns.start, self.special_amounts[rows]
        for k, logit in enumerate(logits):
            if spared is not None:
                logit.masked_fill_(spared, NOTHING)
            used = None if k == 0 else self.left_out  # the bonus columns are the last ones
            _add_at(logit, places[:, :used], amounts[:, :used])

    def logits(self, similarity: Tensor, rows: slice, columns: slice) -> Sequence[Tensor]:
        """A block's logits without the pairs that are not negatives."""
        logits = self.rule.logits(similarity, self.detach, None if self.tau is None else self.tau[rows])
        self.amend(logits, rows, columns)
        return logits

    def pullback(self, similarity: Tensor, rows: slice, columns: slice) -> tuple[Sequence[Tensor], Pull]:
        """The same, and what takes gradients of the logits back."""
        logits, pull = self.rule.pullback(similarity, self.detach, None if self.tau is None else self.tau[rows])
        self.amend(logits, rows, columns)
        return logits, pull


def _slices(start: int, stop: int, length: int) -> Iterator[slice]:
    for first in range(start, stop, length):
        yield slice(first, min(first + length, stop))


def _add_at(block: Tensor, columns: Tensor, amounts: Tensor) -> Tensor:
    """Add ``amounts`` at ``columns`` of each row, in place; both (rows, k). Columns outside are ignored."""
    inside = columns.clamp(0, block.shape[1] - 1)
    return block.scatter_add_(1, inside, torch.where(columns == inside, amounts, 0))


class _OnlineLogSumExp:
    """The logsumexp of each row of a matrix that is given block by block."""

    def __init__(self, like: Tensor) -> None:
        self.top = torch.full_like(like, torch.finfo(like.dtype).min)  # (rows,), the largest entry so far
        self.total = torch.zeros_like(like)  # (rows,), sum of exp(entry - top)

    def add(self, rows: slice, logits: Tensor) -> None:
        before = self.top[rows]
        top = torch.maximum(before, logits.amax(dim=1))
        exps = (logits - top.unsqueeze(1)).exp_()
        self.total[rows] = self.total[rows] * (before - top).exp_() + exps.sum(dim=1)
        self.top[rows] = top

    def result(self) -> Tensor:
        return self.top + self.total.log()


class _BlockwiseRows(torch.autograd.Function):
    """(anchors, candidates, the rule's parameters) -> similarity of the positive, logsumexps of the negatives."""

    @staticmethod
    def forward(
        ctx: Any, matrix: _Matrix, anchors: Tensor, candidates: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        positive = torch.empty_like(anchors[:, 0])
        for rows in _slices(0, len(anchors), matrix.block):
            positive[rows] = positive_similarity(anchors[rows], candidates[matrix.positive_column[rows, 0]])
        online = [_OnlineLogSumExp(positive) for _ in range(matrix.rule.sums)]
        for rows, columns in matrix.blocks(len(anchors), len(candidates)):
            similarity = anchors[rows] @ candidates[columns].T
            logits = matrix.logits(similarity, rows, columns)
            for sums, logit in zip(online, logits, strict=True):
                sums.add(rows, logit)
            if matrix.mirrored(rows, columns):
                if matrix.tau is not None:
                    logits = [logit.T for logit in matrix.logits(similarity.T, columns, rows)]
                for sums, logit in zip(online, logits, strict=True):
                    sums.add(columns, logit.T)
        negatives = torch.stack([sums.result() for sums in online], dim=1)  # (rows, k)
        ctx.matrix = matrix
        ctx.save_for_backward(anchors, candidates, negatives)
        return positive, negatives

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "the blockwise form of a loss has no second derivatives (create_graph=True): "
                "build the loss with blockwise=False"
            )
        anchors, candidates, negatives = ctx.saved_tensors
        with torch.autocast(device_type=anchors.device.type, enabled=False):
            gradients = _Gradients(ctx.matrix, anchors, candidates, negatives, grads, ctx.needs_input_grad[1:3])
        return None, gradients.anchors, gradients.candidates, *gradients.parameters


class _Gradients:
    """Gradients of the anchors, the candidates and the rule's parameters, added up block by block."""

    def __init__(
        self,
        matrix: _Matrix,
        anchors: Tensor,
        candidates: Tensor,
        negatives: Tensor,
        grads: tuple[Tensor, ...],
        needed: tuple[bool, bool],
    ) -> None:
        self.matrix = matrix
        self.lse = negatives  # (rows, k)
        self.positive_grad, self.negatives_grad = grads[0].unsqueeze(1), grads[1]  # (rows, 1), (rows, k)
        self.parameters: list[Tensor | None] = [None] * len(matrix.rule.learned())
        self.anchors = torch.zeros_like(anchors) if any(needed) else None
        self.candidates = torch.zeros_like(candidates) if needed[1] and not matrix.symmetric else None
        of_candidates = self.anchors if matrix.symmetric else self.candidates
        for rows, columns in matrix.blocks(len(anchors), len(candidates)):
            weights = self._of_similarities(anchors[rows] @ candidates[columns].T, rows, columns)
            if self.anchors is not None:
                self.anchors[rows].addmm_(weights, candidates[columns])
            if of_candidates is not None:
                of_candidates[columns].addmm_(weights.T, anchors[rows])

    def _of_similarities(self, similarity: Tensor, rows: slice, columns: slice) -> Tensor:
        """The gradient of a block's similarities. Adds the block's share to the gradient of the parameters."""
        matrix = self.matrix
        mirrored = matrix.mirrored(rows, columns)
        logits, pull = matrix.pullback(similarity, rows, columns)
        gradients = self._softmaxes(logits, rows)
        if mirrored and matrix.tau is None:
            for gradient, other in zip(gradients, self._softmaxes([logit.T for logit in logits], columns), strict=True):
                gradient += other.T
        weights = self._pull(pull, gradients)
        if mirrored and matrix.tau is not None:
            logits, pull = matrix.pullback(similarity.T, columns, rows)
            weights += self._pull(pull, self._softmaxes(logits, columns)).T
        _add_at(weights, matrix.positive_column[rows] - columns.start, self.positive_grad[rows])
        if mirrored:
            _add_at(weights.T, matrix.positive_column[columns] - rows.start, self.positive_grad[columns])
        return weights

    def _pull(self, pull: Pull, gradients: list[Tensor]) -> Tensor:
        weights, more = pull(gradients)
        self.parameters = [
            new if old is None else old if new is None else old + new
            for old, new in zip(self.parameters, more or self.parameters, strict=True)
        ]
        return weights

    def _softmaxes(self, logits: Sequence[Tensor], rows: slice) -> list[Tensor]:
        return [self._softmax(logit, rows, k) for k, logit in enumerate(logits)]

    def _softmax(self, logits: Tensor, rows: slice, k: int) -> Tensor:
        """The gradient of a block's logits, from their logsumexps."""
        return (logits - self.lse[rows, k, None]).exp_().mul_(self.negatives_grad[rows, k, None])
