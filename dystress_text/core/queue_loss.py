"""InfoNCE against a queue of past keys, for a momentum encoder."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dystress_text.core.gather import Gather
from dystress_text.core.guide import Guide
from dystress_text.core.objectives import ContrastiveLoss
from dystress_text.core.rows import Negatives, positive_similarity, unit_vectors
from dystress_text.core.rule import PairRule, RowSums


class QueueInfoNCELoss(ContrastiveLoss):
    """InfoNCE against a queue of past keys (MoCo, He et al., CVPR 2020): find each query's key among key and queue.

    The keys come from a momentum encoder and carry no gradient. In training mode the batch's keys of all
    processes enter the queue after the loss and push out the oldest keys. A batch of 1 is valid.

    Args:
        temperature: any temperature, or a number for a constant one.
        queue_size: keys in the queue; MoCo uses 65,536 on ImageNet, 4,096 is usual on CIFAR.
        dim: dimension of the embeddings.
        detach_temperature: whether the temperature is detached from the gradient.
        gather: the other processes; None for one process.

    Raises:
        ValueError: the queue or the dimension is not positive, or the temperature is one a sample.

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
        temperature: PairRule | float,
        queue_size: int = 4096,
        dim: int = 128,
        detach_temperature: bool = True,
        gather: Gather | None = None,
    ) -> None:
        super().__init__(temperature, detach_temperature, gather)
        if self.temperature.by_sample:
            raise ValueError(f"{type(self.temperature).__name__} does not go with a queue: its keys are of no sample")
        for name, value in (("queue_size", queue_size), ("dim", dim)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        generator = torch.Generator().manual_seed(0)  # the same first keys in every process
        self.register_buffer("queue", unit_vectors(torch.randn(queue_size, dim, generator=generator)))  # oldest first

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:  # type: ignore[override]  # the queue has the negatives
        """Mean loss over the queries; both (batch, dim), key i belongs to query i."""
        keys = keys.detach()
        loss = self._compute((queries, keys))
        if self.training:
            new = unit_vectors(self.gather(keys)).to(self.queue.dtype)
            self.queue = torch.cat([self.queue, new])[-len(self.queue) :]
        return loss

    def sums_and_negatives(
        self,
        z: Sequence[Tensor],
        ids: Sequence[Tensor] | None = None,
        samples: Tensor | None = None,
        guide: Guide | None = None,
    ) -> tuple[RowSums, tuple[Negatives, ...]]:
        query, key = z
        if query.shape[1] != self.queue.shape[1]:
            raise ValueError(f"the queue holds keys of {self.queue.shape[1]} dimensions, got {query.shape[1]}")
        queue = self.queue.to(query.dtype)
        rule, detach = self.temperature, self.detach_temperature
        positive = rule.positive_logit(positive_similarity(query, key), detach)  # (n,)
        logits = rule.logits(query @ queue.T, detach)  # each (n, queue_size)
        none_left_out = torch.empty(len(query), 0, dtype=torch.int64, device=query.device)
        negatives = Negatives(query, queue, none_left_out)
        sums = torch.stack([logit.logsumexp(dim=1) for logit in logits], dim=1)
        return RowSums(positive, sums, negatives.counts() if rule.needs_counts else None), (negatives,)
