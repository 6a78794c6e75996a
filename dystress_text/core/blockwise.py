"""The logsumexps of an objective without the matrix of similarities: memory grows with the batch, not with its square.

Forward, blocks of the matrix are formed one at a time and folded into an online logsumexp of each row. Backward, they
are formed again, and autograd takes the gradient of each block's logits back to its similarities; InfoNCE costs four
matrix products instead of three. Where anchors and candidates are the same vectors (NT-Xent, DCL, DCLW, MACL on both
views, one process) the matrix is symmetric: only blocks on and above its diagonal are formed, which costs two products
instead of three. Nothing is read back from the device between the blocks.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dystress_text.core.pairs import Pairs
from dystress_text.core.registry import Temperature

# A loss with blockwise=None uses the blockwise form above these numbers of similarities.
BLOCKWISE_ENTRIES = 2**24  # 4,096 pairs of InfoNCE, 64 MiB in fp32
SYMMETRIC_ENTRIES = 2**22  # of a symmetric matrix, where half of it is computed: 1,024 pairs of NT-Xent
CPU_BLOCK = 512  # rows and columns of a block; its copies fit into the CPU's cache
DEVICE_BLOCK = 4096  # of other accelerators: large enough to fill one, 64 MiB a copy in fp32
CUDA_BLOCKS = (2_048, 16_384)  # as large as this share of the memory allows, within these bounds
CUDA_SHARE = 1 / 16
COPIES = 13  # of a block, at most, exist at a time; rules with two logits have up to twice as many


def blockwise_pays(pairs: Pairs) -> bool:
    """Whether the blockwise form takes less time than the plain one (measured on a CPU), or memory begins to matter."""
    return len(pairs.anchors) * len(pairs.candidates) > (SYMMETRIC_ENTRIES if pairs.symmetric else BLOCKWISE_ENTRIES)


def block_size(device: torch.device, itemsize: int = 4) -> int:
    """Rows and columns of a block of numbers of ``itemsize`` bytes."""
    if device.type != "cuda":
        return CPU_BLOCK if device.type == "cpu" else DEVICE_BLOCK
    room = CUDA_SHARE * torch.cuda.get_device_properties(device).total_memory / (COPIES * itemsize)
    return min(max(CUDA_BLOCKS[0], 1 << (int(room).bit_length() - 1) // 2), CUDA_BLOCKS[1])


def blockwise_logsumexps(
    pairs: Pairs, temperature: Temperature, detach: bool = True, block: int | None = None
) -> tuple[Tensor, ...]:
    """The logsumexp over each row's negatives of each of the temperature's logits, (rows,).

    The temperature's state may change between forward and backward; the backward uses the state of the forward. A
    backward with ``create_graph=True`` raises a RuntimeError: second derivatives are not implemented.

    Args:
        pairs: anchors, candidates and which of the pairs are no negatives.
        temperature: elementwise; its parameters get gradients too.
        detach: whether it is kept out of the gradient of the similarities.
        block: rows and columns of a block; None chooses by the device.
    """
    columns, amounts = pairs.left_out, [-torch.inf] * pairs.left_out.shape[1]
    if pairs.own is not None:
        columns, amounts = torch.cat([columns, pairs.own], dim=1), amounts + [pairs.bonus] * pairs.own.shape[1]
    matrix = _Matrix(
        temperature=copy.deepcopy(temperature) if torch.is_grad_enabled() else temperature,
        detach=detach,
        columns=columns,
        amounts=pairs.anchors.new_tensor(amounts).expand(len(pairs.anchors), -1),
        left_out=pairs.left_out.shape[1],
        symmetric=pairs.symmetric,
        block=block or block_size(pairs.anchors.device, pairs.anchors.element_size()),
    )
    sums: Tensor = _LogSumExps.apply(  # type: ignore[no-untyped-call]
        matrix, pairs.anchors, pairs.candidates, *_learned(temperature)
    )
    return sums.unbind(dim=1)


def _learned(temperature: Temperature) -> list[nn.Parameter]:
    return [parameter for parameter in temperature.parameters() if parameter.requires_grad]


@dataclass(frozen=True)
class _Matrix:
    """What is needed to compute any block of the matrix of logits, except the vectors."""

    temperature: Temperature  # as it is in the forward
    detach: bool
    columns: Tensor  # (rows, k): those left out, then the hard negatives with a bonus
    amounts: Tensor  # (rows, k), added to the logits there; -inf removes a pair from the negatives
    left_out: int  # so many of the columns are left out
    symmetric: bool
    block: int

    def blocks(self, rows: int, columns: int) -> Iterator[tuple[slice, slice]]:
        """Rows and columns of each block; of a symmetric matrix those on and above the diagonal."""
        for i in range(0, rows, self.block):
            for j in range(i if self.symmetric else 0, columns, self.block):
                yield slice(i, min(i + self.block, rows)), slice(j, min(j + self.block, columns))

    def mirrored(self, rows: slice, columns: slice) -> bool:
        """Whether the block's transpose, on the other side of the diagonal, is needed too."""
        return self.symmetric and rows != columns

    def logits(self, similarity: Tensor) -> tuple[Tensor, ...]:
        tau = self.temperature(similarity.detach() if self.detach else similarity)
        return self.temperature.logits(similarity, tau)

    def amend(self, logits: Tensor, k: int, rows: slice, columns: slice) -> Tensor:
        """Remove the pairs that are no negatives from a block's logits, and add the bonus to the first; in place."""
        used = None if k == 0 else self.left_out
        places, amounts = self.columns[rows, :used] - columns.start, self.amounts[rows, :used]
        inside = places.clamp(0, logits.shape[1] - 1)
        return logits.scatter_add_(1, inside, torch.where(places == inside, amounts, 0))


class _OnlineLogSumExp:
    """The logsumexp of each row of a matrix that is given block by block."""

    def __init__(self, rows: int, like: Tensor) -> None:
        self.top = like.new_full((rows,), torch.finfo(like.dtype).min)  # the largest entry so far
        self.total = like.new_zeros(rows)  # sum of exp(entry - top)

    def add(self, rows: slice, logits: Tensor) -> None:
        before = self.top[rows]
        top = torch.maximum(before, logits.amax(dim=1))
        exps = (logits - top.unsqueeze(1)).exp_()
        self.total[rows] = self.total[rows] * (before - top).exp_() + exps.sum(dim=1)
        self.top[rows] = top

    def result(self) -> Tensor:
        return self.top + self.total.log()


class _LogSumExps(torch.autograd.Function):
    """(anchors, candidates, the temperature's parameters) -> logsumexps of the negatives, (rows, k)."""

    @staticmethod
    def forward(ctx: Any, matrix: _Matrix, anchors: Tensor, candidates: Tensor, *parameters: Tensor) -> Tensor:
        online: list[_OnlineLogSumExp] = []
        for rows, columns in matrix.blocks(len(anchors), len(candidates)):
            logits = matrix.logits(anchors[rows] @ candidates[columns].T)
            online = online or [_OnlineLogSumExp(len(anchors), anchors) for _ in logits]
            for k, (sums, logit) in enumerate(zip(online, logits, strict=True)):
                matrix.amend(logit, k, rows, columns)
                sums.add(rows, logit)
                if matrix.mirrored(rows, columns):
                    sums.add(columns, logit.T)
        found = torch.stack([sums.result() for sums in online], dim=1)
        ctx.matrix = matrix
        ctx.save_for_backward(anchors, candidates, found)
        return found

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "the blockwise form of a loss has no second derivatives (create_graph=True): "
                "build the loss with blockwise=False"
            )
        matrix: _Matrix = ctx.matrix
        anchors, candidates, found = ctx.saved_tensors
        learned = _learned(matrix.temperature)
        of_learned = [torch.zeros_like(parameter) for parameter in learned]
        of_anchors = torch.zeros_like(anchors)
        of_candidates = of_anchors if matrix.symmetric else torch.zeros_like(candidates)
        with torch.autocast(device_type=anchors.device.type, enabled=False):
            for rows, columns in matrix.blocks(len(anchors), len(candidates)):
                similarity = (anchors[rows] @ candidates[columns].T).requires_grad_()
                with torch.enable_grad():
                    logits = matrix.logits(similarity)
                shares = [_share(matrix, x.detach(), k, found, grads[0], rows, columns) for k, x in enumerate(logits)]
                used = [(x, share) for x, share in zip(logits, shares, strict=True) if x.requires_grad]
                outputs, of_outputs = zip(*used, strict=True)
                weights, *more = torch.autograd.grad(
                    outputs, [similarity, *learned], of_outputs, materialize_grads=True
                )
                of_learned = [old + new for old, new in zip(of_learned, more, strict=True)]
                of_anchors[rows].addmm_(weights, candidates[columns])
                if ctx.needs_input_grad[2]:
                    of_candidates[columns].addmm_(weights.T, anchors[rows])
        return None, of_anchors, None if matrix.symmetric else of_candidates, *of_learned


def _share(
    matrix: _Matrix, logits: Tensor, k: int, found: Tensor, grads: Tensor, rows: slice, columns: slice
) -> Tensor:
    """The gradient of a block's logits from that of their logsumexps: softmax times gradient; in both directions."""
    share = matrix.amend(logits - found[rows, k, None], k, rows, columns).exp_().mul_(grads[rows, k, None])
    if matrix.mirrored(rows, columns):
        other = matrix.amend(logits - found[None, columns, k], k, rows, columns)
        share += other.exp_().mul_(grads[None, columns, k])
    return share
