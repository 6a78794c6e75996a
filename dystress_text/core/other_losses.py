"""Objectives beside the paper's: MoCo's queue; RINCE, a function of InfoNCE's rows; SigLIP, a loss of single pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dystress_text.core.gather import Gather
from dystress_text.core.objectives import ContrastiveLoss, InfoNCELoss
from dystress_text.core.pairs import Pairs
from dystress_text.core.registry import Temperature, check_number
from dystress_text.core.vectors import unit_vectors

_LINEAR = 40  # above it, softplus is the identity in fp64 too


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
        check_number("queue_size", queue_size, "[1, inf)")
        check_number("dim", dim, "[1, inf)")
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


class RINCELoss(InfoNCELoss):
    """RINCE (Chuang et al., CVPR 2022): robust to views that do not belong together.

    ``-exp(q l_p) / q + (lam (exp(l_p) + sum exp(l)))^q / q`` with the logits l; nothing but the temperature is
    detached. For q towards 0 it is InfoNCE and a constant. Published for images: q 0.1 (SimCLR) or 0.6 (MoCo v3), lam
    0.01. With q 0.6 and the temperature 0.05 a row of a positive of 0.9 weighs 5e4.

    Args:
        temperature: any temperature, or a number for a constant one.
        q: from InfoNCE, towards 0, to a symmetric loss, 1; in (0, 1].
        lam: weight of the denominator; positive.
        options: as for :class:`InfoNCELoss`.
    """

    def __init__(
        self, temperature: Temperature | float = 0.1, q: float = 0.1, lam: float = 0.01, **options: Any
    ) -> None:
        super().__init__(temperature, **options)
        check_number("q", q, "(0, 1]")
        check_number("lam", lam, "(0, inf)")
        self.q, self.lam = q, lam

    def row_loss(self, positive: Tensor, negatives: Tensor, similarity: Tensor) -> Tensor:
        everything = torch.logaddexp(positive, negatives) + math.log(self.lam)
        return ((self.q * everything).exp() - (self.q * positive).exp()) / self.q


class SigmoidRule(Temperature):
    """SigLIP's logits ``scale s + bias`` with a learned scale and bias; a negative counts ``softplus`` of its logit.

    The scale is ``exp(log_scale)``. For :class:`SigLIPLoss`.

    Args:
        logit_scale: at the start; positive.
        logit_bias: at the start.
    """

    def __init__(self, logit_scale: float = 10.0, logit_bias: float = -10.0) -> None:
        super().__init__()
        check_number("logit_scale", logit_scale, "(0, inf)")
        check_number("logit_bias", logit_bias, "(-inf, inf)")
        self.log_scale = nn.Parameter(torch.tensor(math.log(logit_scale)))
        self.bias = nn.Parameter(torch.tensor(float(logit_bias)))

    def forward(self, similarity: Tensor) -> Tensor:
        """The temperature, 1 / scale."""
        return (-self.log_scale.to(similarity.dtype)).exp().expand_as(similarity)

    def positive_logit(self, similarity: Tensor, tau: Tensor) -> Tensor:
        return self.log_scale.to(similarity.dtype).exp() * similarity + self.bias.to(similarity.dtype)

    def logits(self, similarity: Tensor, tau: Tensor) -> tuple[Tensor, ...]:
        """Their exponential is the softplus, so that its sum over the negatives is that of a softmax."""
        x = self.positive_logit(similarity, tau)
        costs = F.softplus(x, threshold=_LINEAR)
        nothing = costs < torch.finfo(x.dtype).tiny  # log(softplus(x)) is x where that underflows
        return (torch.where(nothing, x, torch.where(nothing, torch.ones_like(x), costs).log()),)

    def values(self) -> dict[str, float]:
        scale, bias = float(self.log_scale.detach().exp()), float(self.bias.detach())
        return {"logit_scale": round(scale, 6), "logit_bias": round(bias, 6)}


class SigLIPLoss(ContrastiveLoss):
    """SigLIP's sigmoid loss (Zhai et al., ICCV 2023, Alg. 1): each pair is a positive or a negative by itself.

    ``mean over anchors of softplus(-(t p + b)) + sum softplus(t s + b)`` over the anchor's negatives; t = exp(t') and b
    are learned: give them to the optimiser without weight decay. The paper begins with t = 10 and b = -10.

    Args:
        logit_scale: its learned scale t at the start; positive.
        logit_bias: its learned bias b at the start.
        options: as for :class:`ContrastiveLoss`, but no ``hard_negative_weight``: there is no softmax.
    """

    def __init__(self, logit_scale: float = 10.0, logit_bias: float = -10.0, **options: Any) -> None:
        super().__init__(SigmoidRule(logit_scale, logit_bias), **options)
        if self.hard_negative_weight != 0:
            raise ValueError("hard_negative_weight must be 0: SigLIP has no softmax whose logits it could be added to")

    def row_loss(self, positive: Tensor, negatives: Tensor, similarity: Tensor) -> Tensor:
        return F.softplus(-positive) + negatives.exp()
