"""Gather rows from all processes, with gradients.

A loss compares the anchors of its own process with the candidates of all processes and returns the
mean over its anchors. Data-parallel training averages the parameters' gradients over the processes.
This equals the gradient of the mean over the global batch if each row receives the *sum* of its
gradients in all processes.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor


class Gather(Protocol):
    """What collects the rows of all processes for a loss.

    Examples:
        >>> gather: Gather = LocalGather()
        >>> gather.rank, gather.world_size
        (0, 1)
    """

    rank: int
    world_size: int

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the rows of all processes by rank, (n, ...) -> (world_size * n, ...)."""


class LocalGather:
    """The gather of a single process: rows stay as they are.

    Examples:
        >>> LocalGather()(torch.ones(8, 16)).shape
        torch.Size([8, 16])
    """

    rank = 0
    world_size = 1

    def __call__(self, rows: Tensor) -> Tensor:
        return rows


class ProcessGather:
    """The gather of a torch.distributed group; all processes need the same number of rows.

    Args:
        rank: the rank of this process in the group.
        world_size: number of processes.
        group: None for the default group.

    Examples:
        >>> # after torch.distributed.init_process_group
        >>> gather = ProcessGather(rank=1, world_size=4)
        >>> InfoNCELoss(0.05, gather=gather).gather.world_size
        4
    """

    def __init__(self, rank: int, world_size: int, group: dist.ProcessGroup | None = None) -> None:
        self.rank = rank
        self.world_size = world_size
        self.group = group

    def __call__(self, rows: Tensor) -> Tensor:
        gathered: Tensor = _GatherRows.apply(rows, self)  # type: ignore[no-untyped-call]
        return gathered


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, gather: ProcessGather) -> Tensor:
        ctx.gather = gather
        rows = rows.contiguous()  # all_gather needs it, and empty_like keeps strides
        by_rank = [torch.empty_like(rows) for _ in range(gather.world_size)]
        dist.all_gather(by_rank, rows, group=gather.group)
        return torch.cat(by_rank)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        gather: ProcessGather = ctx.gather
        total = grads[0].clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=gather.group)
        return total.chunk(gather.world_size)[gather.rank], None
