"""InfoNCE against a queue of past keys, for a momentum encoder."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dystress_text.core.gather import Gather
from dystress_text.core.objectives import ContrastiveLoss
from dystress_text.core.pairs import Pairs
from dystress_text.core.registry import Temperature
from dystress_text.core.vectors import unit_vectors


class QueueInfoNCELoss(ContrastiveLoss):
    """InfoNCE against a queue of past keys (MoCo, He et al., CVPR 2020): find each query's key among key and queue.

    The keys come from a momentum encoder and carry no gradient. In training mode the batch's keys of all
    processes enter the queue after the loss and push out the oldest keys. A batch of 1 is valid.

    Args:
        temperature: any temperature, or a number for a constant one.
        queue_size: keys in the queue; MoCo uses 65,536 on ImageNet, 4,096 is usual on CIFAR.
        dim: dimension of the embeddings.
        detach_temperature: whether the similarity is detached before the temperature is computed of it.
        gather: the other processes; None for one process.

    Examples:
        >>> loss = QueueInfoNCELoss(0.2, queue_size=64, dim=16)
        >>> queries, keys = torch.randn(8, 16), torch.randn(8, 16)
        >>> loss(queries, keys).shape
        torch.Size([])
    """

    negatives_from_batch = False
    queue: Tensor

    def __init__(
        self,
        temperature: Temperature | float,
        queue_size: int = 4096,
        dim: int = 128,
        detach_temperature: bool = True,
        gather: Gather | None = None,
    ) -> None:
        super().__init__(temperature, detach_temperature, gather)
        for name, value in (("queue_size", queue_size), ("dim", dim)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        generator = torch.Generator().manual_seed(0)  # the same first keys in every process
        self.register_buffer("queue", unit_vectors(torch.randn(queue_size, dim, generator=generator)))  # oldest first

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:  # type: ignore[override]  # the queue has the negatives
        """Mean loss over the queries; both (batch, dim), key i belongs to query i."""
        keys = keys.detach()
        loss = super().forward(queries, keys)
        if self.training:
            new = unit_vectors(self.gather(keys)).to(self.queue.dtype)
            self.queue = torch.cat([self.queue, new])[-len(self.queue) :]
        return loss

    def pairs(self, z: Sequence[Tensor]) -> list[Pairs]:
        query, key = z
        if query.shape[1] != self.queue.shape[1]:
            raise ValueError(f"dim of the queue's keys is {self.queue.shape[1]}, got {query.shape[1]}")
        nothing = torch.empty(len(query), 0, dtype=torch.int64, device=query.device)
        return [Pairs(query, key, self.queue.to(query.dtype), nothing)]
