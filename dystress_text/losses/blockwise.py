"""The logsumexps of an objective without the matrix of similarities: memory grows with the batch,
not with its square.

Forward, blocks of the matrix are formed one at a time and folded into an online logsumexp of each
row. Backward, they are formed again, and autograd takes the gradient of each block's logits back to
its similarities; InfoNCE costs four matrix products instead of three. Where anchors and candidates
are the same vectors (NT-Xent, DCL, DCLW, MACL on both views, one process) the matrix is symmetric:
only blocks on and above its diagonal are formed, which costs two products instead of three. Nothing
is read back from the device between the blocks.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dystress_text.losses.pairs import Pairs
from dystress_text.losses.reweighting import Rule

# A loss with blockwise=None uses the blockwise form above these numbers of similarities.
BLOCKWISE_ENTRIES = 2**24  # 4,096 pairs of InfoNCE, 64 MiB in fp32
# of a symmetric matrix, where half of it is computed: 1,024 pairs of NT-Xent
SYMMETRIC_ENTRIES = 2**22
# rows and columns of a block; some thirteen copies of it, and twice as many for rules with two
# logits, exist at a time
CPU_BLOCK = 512  # its copies fit into the CPU's cache
DEVICE_BLOCK = 4096  # large enough to fill an accelerator, 64 MiB a copy in fp32


def blockwise_pays(pairs: Pairs) -> bool:
    """Whether the blockwise form takes less time than the plain one (measured on a CPU), or memory
    begins to matter.
    """
    most = SYMMETRIC_ENTRIES if pairs.symmetric else BLOCKWISE_ENTRIES
    return len(pairs.anchors) * len(pairs.candidates) > most


def blockwise_logsumexps(pairs: Pairs, rule: Rule, detach: bool) -> tuple[Tensor, ...]:
    """The logsumexp over each row's negatives of each of the rule's logits, (rows,).

    The rule's state may change between forward and backward; the backward uses the state of the
    forward. A backward with ``create_graph=True`` raises a RuntimeError: second derivatives are not
    implemented.

    The rule's parameters get gradients too; ``detach`` keeps it out of the gradient of the
    similarities.
    """
    block = CPU_BLOCK if pairs.anchors.device.type == "cpu" else DEVICE_BLOCK
    # the backward needs the rule as it is now
    frozen = copy.deepcopy(rule) if torch.is_grad_enabled() else rule
    matrix = _Matrix(pairs, frozen, detach, block)
    sums: Tensor = _LogSumExps.apply(  # type: ignore[no-untyped-call]
        matrix, pairs.anchors, pairs.candidates, *_learned(rule)
    )
    return sums.unbind()


def _learned(rule: Rule) -> list[nn.Parameter]:
    return [parameter for parameter in rule.parameters() if parameter.requires_grad]


@dataclass(frozen=True)
class _Matrix:
    """The matrix of logits, any block of which can be computed."""

    pairs: Pairs
    rule: Rule  # as it is in the forward
    detach: bool
    block: int

    def blocks(self) -> Iterator[tuple[slice, slice]]:
        """Rows and columns of each block; of a symmetric matrix those on and above the diagonal."""
        for i in range(0, len(self.pairs.anchors), self.block):
            first = i if self.pairs.symmetric else 0
            for j in range(first, len(self.pairs.candidates), self.block):
                yield slice(i, i + self.block), slice(j, j + self.block)

    def mirrored(self, rows: slice, columns: slice) -> bool:
        """Whether the block's transpose, on the other side of the diagonal, is needed too."""
        return self.pairs.symmetric and rows != columns

    def similarity(self, rows: slice, columns: slice) -> Tensor:
        return self.pairs.anchors[rows] @ self.pairs.candidates[columns].T

    def logits(self, similarity: Tensor) -> tuple[Tensor, ...]:
        tau = self.rule.temperature(similarity.detach() if self.detach else similarity)
        return self.rule.logits(similarity, tau)

    def negatives_(self, logits: Tensor, k: int, rows: slice, columns: slice) -> Tensor:
        """A block of the k-th logits, in place without the pairs that are no negatives."""
        return self.pairs.of_rows(rows).mask_logits_(logits, k == 0, columns.start)


class _LogSumExps(torch.autograd.Function):
    """(anchors, candidates, the rule's parameters) -> logsumexps of the negatives, (k, rows)."""

    @staticmethod
    def forward(
        ctx: Any, matrix: _Matrix, anchors: Tensor, candidates: Tensor, *parameters: Tensor
    ) -> Tensor:
        every: list[Tensor] = []
        for rows, columns in matrix.blocks():
            logits = matrix.logits(matrix.similarity(rows, columns))
            every = every or [anchors.new_full((len(anchors),), -torch.inf) for _ in logits]
            for k, (sums, logit) in enumerate(zip(every, logits, strict=True)):
                matrix.negatives_(logit, k, rows, columns)
                sums[rows] = torch.logaddexp(sums[rows], logit.logsumexp(dim=1))
                if matrix.mirrored(rows, columns):
                    sums[columns] = torch.logaddexp(sums[columns], logit.logsumexp(dim=0))
        logsumexps = torch.stack(every)  # (k, rows)
        ctx.matrix = matrix
        ctx.save_for_backward(logsumexps)
        return logsumexps

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "the blockwise form of a loss has no second derivatives (create_graph=True): "
                "build the loss with blockwise=False"
            )
        matrix: _Matrix = ctx.matrix
        pairs = matrix.pairs
        (logsumexps,) = ctx.saved_tensors  # (k, rows)
        learned = _learned(matrix.rule)
        of_learned = [torch.zeros_like(parameter) for parameter in learned]
        of_anchors = torch.zeros_like(pairs.anchors)
        of_candidates = of_anchors if pairs.symmetric else torch.zeros_like(pairs.candidates)

        def share(logits: Tensor, k: int, rows: slice, columns: slice) -> Tensor:
            """The gradient of a block's logits from that of their logsumexps: softmax times
            gradient; both ways.
            """
            total = matrix.negatives_(logits - logsumexps[k, rows, None], k, rows, columns).exp_()
            total *= grads[0][k, rows, None]
            if matrix.mirrored(rows, columns):
                softmax = matrix.negatives_(logits - logsumexps[k, columns], k, rows, columns)
                total += softmax.exp_().mul_(grads[0][k, columns])
            return total

        with torch.autocast(device_type=logsumexps.device.type, enabled=False):
            for rows, columns in matrix.blocks():
                similarity = matrix.similarity(rows, columns).requires_grad_()
                with torch.enable_grad():
                    logits = matrix.logits(similarity)
                used = [(k, x) for k, x in enumerate(logits) if x.requires_grad]
                weights, *more = torch.autograd.grad(
                    [x for _, x in used],
                    [similarity, *learned],
                    [share(x.detach(), k, rows, columns) for k, x in used],
                    materialize_grads=True,
                )
                of_learned = [old + new for old, new in zip(of_learned, more, strict=True)]
                if pairs.symmetric and rows == columns:
                    of_anchors[rows].addmm_(weights + weights.T, pairs.anchors[rows])
                    continue
                of_anchors[rows].addmm_(weights, pairs.candidates[columns])
                if ctx.needs_input_grad[2]:
                    of_candidates[columns].addmm_(weights.T, pairs.anchors[rows])
        return None, of_anchors, None if pairs.symmetric else of_candidates, *of_learned
