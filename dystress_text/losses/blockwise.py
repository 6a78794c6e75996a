"""The logsumexps of an objective in memory linear in the batch size.

The forward computes the matrix of similarities one block at a time and keeps an online logsumexp of
each row. The backward computes the blocks again, and autograd differentiates the logits of each
block with respect to its similarities: four matrix products for InfoNCE instead of three. If
anchors and candidates are the same vectors (NT-Xent, DCL, DCLW and MACL on both views, in one
process), the matrix is symmetric, and only the blocks on and above its diagonal are computed: two
products instead of three. The device is not synchronised between blocks.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dystress_text.losses.pairs import Pairs
from dystress_text.losses.reweighting import Reweighting

# A loss with blockwise=None uses the blockwise form above these numbers of similarities.
BLOCKWISE_ENTRIES = 2**24  # 4,096 pairs of InfoNCE, 64 MiB in fp32
# for a symmetric matrix, half of which is computed: 1,024 pairs of NT-Xent
SYMMETRIC_ENTRIES = 2**22
# Rows and columns of a block. About 13 copies of it exist at a time, 26 for a reweighting with two
# logits.
CPU_BLOCK = 512  # its copies fit into the CPU's cache
DEVICE_BLOCK = 4096  # large enough to fill an accelerator, 64 MiB a copy in fp32


def blockwise_pays(pairs: Pairs) -> bool:
    """Return whether the blockwise form is faster (measured on a CPU) or saves much memory."""
    most = SYMMETRIC_ENTRIES if pairs.symmetric else BLOCKWISE_ENTRIES
    return len(pairs.anchors) * len(pairs.candidates) > most


def blockwise_logsumexps(
    pairs: Pairs, reweighting: Reweighting, detach: bool
) -> tuple[Tensor, ...]:
    """Return the logsumexp over the negatives, (rows,), for each logit of the reweighting.

    The backward uses the state that the reweighting had in the forward.

    Args:
        pairs: anchors and candidates.
        reweighting: maps similarities to logits; its parameters get gradients.
        detach: whether similarities are detached before they determine the temperature.

    Raises:
        RuntimeError: the backward is called with ``create_graph=True``, which needs
            ``blockwise=False``.
    """
    block = CPU_BLOCK if pairs.anchors.device.type == "cpu" else DEVICE_BLOCK
    # its state may change before the backward
    frozen = copy.deepcopy(reweighting) if torch.is_grad_enabled() else reweighting
    matrix = _Matrix(pairs, frozen, detach, block)
    sums: Tensor = _LogSumExps.apply(  # type: ignore[no-untyped-call]
        matrix, pairs.anchors, pairs.candidates, *_learned(reweighting)
    )
    return sums.unbind()


def _learned(reweighting: Reweighting) -> list[nn.Parameter]:
    return [parameter for parameter in reweighting.parameters() if parameter.requires_grad]


@dataclass(frozen=True)
class _Matrix:
    """The matrix of logits, computed block by block."""

    pairs: Pairs
    reweighting: Reweighting  # as it is in the forward
    detach: bool
    block: int

    def blocks(self) -> Iterator[tuple[slice, slice, bool]]:
        """Yield the rows and columns of each block, and whether it stands for its transpose too.

        If the matrix is symmetric, blocks below the diagonal are left out.
        """
        symmetric = self.pairs.symmetric
        for i in range(0, len(self.pairs.anchors), self.block):
            first = i if symmetric else 0
            for j in range(first, len(self.pairs.candidates), self.block):
                yield slice(i, i + self.block), slice(j, j + self.block), symmetric and i != j

    def similarity(self, rows: slice, columns: slice) -> Tensor:
        return self.pairs.anchors[rows] @ self.pairs.candidates[columns].T

    def logits(self, similarity: Tensor, rows: slice, columns: slice) -> list[Tensor]:
        """Return the logits of a block, (rows, columns) each; -inf for pairs to exclude."""
        detached = similarity.detach() if self.detach else similarity
        tau = self.reweighting.temperature(detached)
        logits = self.reweighting.logits(similarity, tau)
        pairs = self.pairs.of_rows(rows)
        return [pairs.mask_logits_(x.clone(), k == 0, columns.start) for k, x in enumerate(logits)]


class _LogSumExps(torch.autograd.Function):
    """(anchors, candidates, *parameters) -> logsumexps of the negatives, (k, rows)."""

    @staticmethod
    def forward(
        ctx: Any, matrix: _Matrix, anchors: Tensor, candidates: Tensor, *parameters: Tensor
    ) -> Tensor:
        every: list[Tensor] = []
        for rows, columns, mirrored in matrix.blocks():
            logits = matrix.logits(matrix.similarity(rows, columns), rows, columns)
            every = every or [anchors.new_full((len(anchors),), -torch.inf) for _ in logits]
            for sums, logit in zip(every, logits, strict=True):
                sums[rows] = torch.logaddexp(sums[rows], logit.logsumexp(dim=1))
                if mirrored:
                    sums[columns] = torch.logaddexp(sums[columns], logit.logsumexp(dim=0))
        logsumexps = torch.stack(every)  # (k, rows)
        ctx.matrix = matrix
        ctx.save_for_backward(logsumexps)
        return logsumexps

    @staticmethod
    def backward(ctx: Any, *every_grad: Tensor) -> tuple[Tensor | None, ...]:
        # torch's once_differentiable would not raise: the incoming gradient requires none
        if torch.is_grad_enabled():
            raise RuntimeError(
                "second derivatives of a loss (create_graph=True) need blockwise=False"
            )
        (grads,) = every_grad  # (k, rows)
        matrix: _Matrix = ctx.matrix
        pairs = matrix.pairs
        (logsumexps,) = ctx.saved_tensors  # (k, rows)
        learned = _learned(matrix.reweighting)
        learned_grads = [torch.zeros_like(parameter) for parameter in learned]
        anchor_grads = torch.zeros_like(pairs.anchors)
        candidate_grads = torch.zeros_like(pairs.candidates)
        for rows, columns, mirrored in matrix.blocks():
            device = logsumexps.device.type
            with torch.enable_grad(), torch.autocast(device_type=device, enabled=False):
                similarity = matrix.similarity(rows, columns).detach().requires_grad_()
                # has the gradient of the logsumexps: the softmax times their incoming gradient
                total = similarity.new_zeros(())
                for logits, sums, grad in zip(
                    matrix.logits(similarity, rows, columns), logsumexps, grads, strict=True
                ):
                    total = total + ((logits - sums[rows, None]).exp() * grad[rows, None]).sum()
                    if mirrored:
                        total = total + ((logits - sums[columns]).exp() * grad[columns]).sum()
            weights, *more = torch.autograd.grad(
                total, [similarity, *learned], materialize_grads=True
            )
            learned_grads = [old + new for old, new in zip(learned_grads, more, strict=True)]
            if pairs.symmetric and not mirrored:  # on the diagonal
                anchor_grads[rows].addmm_(weights + weights.T, pairs.anchors[rows])
                continue
            anchor_grads[rows].addmm_(weights, pairs.candidates[columns])
            if mirrored:
                anchor_grads[columns].addmm_(weights.T, pairs.anchors[rows])
            elif ctx.needs_input_grad[2]:
                candidate_grads[columns].addmm_(weights.T, pairs.anchors[rows])
        return None, anchor_grads, candidate_grads, *learned_grads
