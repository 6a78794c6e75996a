"""Further objectives: MoCo's queue, RINCE and SigLIP."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dystress_text.errors import ParameterError
from dystress_text.losses.gather import Gather
from dystress_text.losses.objectives import ContrastiveLoss, InfoNCELoss
from dystress_text.losses.pairs import Pairs
from dystress_text.losses.registry import check_count, check_number, register
from dystress_text.losses.reweighting import Reweighting, TemperatureLike
from dystress_text.losses.temperature import Temperature
from dystress_text.losses.vectors import unit_vectors

_LINEAR = 40  # above it, softplus is the identity in fp64 too


@register("queue")
class QueueInfoNCELoss(ContrastiveLoss):
    """InfoNCE with a queue of past keys as negatives (MoCo, He et al., CVPR 2020).

    The keys come from a momentum encoder and have no gradient. In training mode the keys of all
    processes replace the oldest ones in the queue after the loss. A batch of 1 is valid.

    The other arguments are those of :class:`ContrastiveLoss`.

    Args:
        temperature: a temperature, a number for a constant one, or a reweighting.
        queue_size: keys in the queue; MoCo uses 65,536 on ImageNet, 4,096 is usual on CIFAR.
        dim: dimension of the embeddings; None to call :meth:`start` later.

    Examples:
        >>> queue = QueueInfoNCELoss(0.2, queue_size=64, dim=16)
        >>> queries, keys = torch.randn(8, 16), torch.randn(8, 16)
        >>> queue(queries, keys).shape
        torch.Size([])
    """

    source = "MoCo (He et al., CVPR 2020)"
    task = "queue"
    task_options = ("key_momentum",)

    negatives_from_batch = False
    queue: Tensor  # (queue_size, dim), the oldest key first

    def __init__(
        self,
        temperature: TemperatureLike,
        queue_size: int = 4096,
        dim: int | None = None,
        *,
        detach_temperature: bool = True,
        hard_negative_weight: float = 0.0,
        blockwise: bool | None = None,
        gather: Gather | None = None,
    ) -> None:
        super().__init__(
            temperature,
            detach_temperature=detach_temperature,
            hard_negative_weight=hard_negative_weight,
            blockwise=blockwise,
            gather=gather,
        )
        self.queue_size = check_count("queue_size", queue_size, "[1, 16777216]")
        self.dim = dim
        if dim is not None:
            self.start(dim)

    def start(self, dim: int) -> None:
        """Fill the queue with random keys of dimension ``dim``, the same in every process."""
        if self.dim not in (None, dim):
            raise ParameterError("loss", f"queue: dim is {self.dim}, but embeddings have {dim}")
        generator = torch.Generator().manual_seed(0)
        keys = torch.randn(self.queue_size, dim, generator=generator)
        self.register_buffer("queue", unit_vectors(keys))

    # a queue takes no hard negatives
    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:  # type: ignore[override]
        """Return the mean loss over the queries, a scalar.

        Args:
            queries: (batch, dim).
            keys: (batch, dim); key i belongs to query i.
        """
        keys = keys.detach()
        loss = super().forward(queries, keys)
        if self.training:
            new = unit_vectors(self.gather(keys)).to(self.queue.dtype)
            self.queue = torch.cat([self.queue, new])[-len(self.queue) :]
        return loss

    def pairs(self, z: Sequence[Tensor]) -> list[Pairs]:
        query, key = z
        nothing = torch.empty(len(query), 0, dtype=torch.int64, device=query.device)
        return [Pairs(query, key, self.queue.to(query.dtype), nothing)]


@register("rince")
class RINCELoss(InfoNCELoss):
    """RINCE (Chuang et al., CVPR 2022): robust to false positives.

    ``-exp(q l_p) / q + (lam (exp(l_p) + sum exp(l)))^q / q`` with the logits l. Only the
    temperature is detached. Published for images: q 0.1 (SimCLR) or 0.6 (MoCo v3), lam 0.01. Values
    grow fast: with q 0.6 and the temperature 0.05, a positive of similarity 0.9 has the weight 5e4.

    The other arguments are those of :class:`InfoNCELoss`.

    Args:
        temperature: a temperature, a number for a constant one, or a reweighting.
        q: in (0, 1]. Towards 0 the loss is InfoNCE plus a constant, at 1 it is symmetric.
        lam: weight of the denominator; positive.

    Examples:
        >>> str(RINCELoss(0.05, q=0.1, lam=0.01))
        'rince(0.05, q=0.1, lam=0.01)'
        >>> RINCELoss(0.5, q=1, lam=0.5)(torch.eye(2), torch.eye(2))  # (1 + exp(2)) / 2 - exp(2)
        tensor(-3.1945)
    """

    source = "RINCE (Chuang et al., CVPR 2022)"

    def __init__(
        self,
        temperature: TemperatureLike,
        q: float = 0.1,
        lam: float = 0.01,
        *,
        bidirectional: bool = False,
        detach_temperature: bool = True,
        hard_negative_weight: float = 0.0,
        blockwise: bool | None = None,
        gather: Gather | None = None,
    ) -> None:
        super().__init__(
            temperature,
            bidirectional=bidirectional,
            detach_temperature=detach_temperature,
            hard_negative_weight=hard_negative_weight,
            blockwise=blockwise,
            gather=gather,
        )
        self.q = check_number("q", q, "(0, 1]")
        self.lam = check_number("lam", lam, "(0, inf)")

    def row_loss(self, positive: Tensor, negatives: Tensor, similarity: Tensor) -> Tensor:
        everything = torch.logaddexp(positive, negatives) + math.log(self.lam)
        return ((self.q * everything).exp() - (self.q * positive).exp()) / self.q


class InverseScale(Temperature):
    """SigLIP's temperature: 1 over a scale, whose logarithm is learned."""

    def __init__(self, logit_scale: float) -> None:
        super().__init__()
        self.logit_scale = check_number("logit_scale", logit_scale, "(0, inf)")
        self.log_scale = nn.Parameter(torch.tensor(math.log(self.logit_scale)))

    def forward(self, similarity: Tensor) -> Tensor:
        return (-self.log_scale.to(similarity.dtype)).exp().expand_as(similarity)


class SigmoidReweighting(Reweighting):
    """SigLIP's logits ``scale s + bias`` with a learned scale and bias."""

    temperature: InverseScale

    def __init__(self, logit_scale: float, logit_bias: float) -> None:
        super().__init__(InverseScale(logit_scale))
        self.logit_scale = logit_scale
        self.logit_bias = check_number("logit_bias", logit_bias, "(-inf, inf)")
        self.bias = nn.Parameter(torch.tensor(float(self.logit_bias)))

    def positive_logit(self, similarity: Tensor, tau: Tensor) -> Tensor:
        scale = self.temperature.log_scale.to(similarity.dtype).exp()
        return scale * similarity + self.bias.to(similarity.dtype)

    def logits(self, similarity: Tensor, tau: Tensor) -> tuple[Tensor, ...]:
        """Return log(softplus(x)), so that a softmax's denominator sums softplus(x)."""
        x = self.positive_logit(similarity, tau)
        costs = F.softplus(x, threshold=_LINEAR)
        tiny = torch.finfo(x.dtype).tiny  # below it, log(softplus(x)) is x
        return (torch.where(costs < tiny, x, costs.clamp(min=tiny).log()),)


@register("siglip")
class SigLIPLoss(ContrastiveLoss):
    """SigLIP (Zhai et al., ICCV 2023, Alg. 1): classify each pair as positive or negative.

    The loss of an anchor is ``softplus(-(t p + b)) + sum softplus(t s + b)`` over its negatives.
    The scale t = exp(t') and the bias b are learned: do not apply weight decay to them.

    The other arguments are those of :class:`ContrastiveLoss`.

    Args:
        logit_scale: initial scale; positive.
        logit_bias: initial bias.
        learning_rate: peak learning rate of both.

    Examples:
        >>> siglip = SigLIPLoss(logit_scale=10, logit_bias=-10)
        >>> siglip(torch.eye(2), torch.eye(2))  # softplus(0) + softplus(-10)
        tensor(0.6932, grad_fn=<MeanBackward0>)
        >>> siglip.learned()
        {'logit_scale': 10.0, 'logit_bias': -10.0}
    """

    source = "SigLIP (Zhai et al., ICCV 2023, Alg. 1)"

    reweighting: SigmoidReweighting

    def __init__(
        self,
        logit_scale: float = 10.0,
        logit_bias: float = -10.0,
        *,
        learning_rate: float = 1e-3,
        detach_temperature: bool = True,
        hard_negative_weight: float = 0.0,
        blockwise: bool | None = None,
        gather: Gather | None = None,
    ) -> None:
        super().__init__(
            SigmoidReweighting(logit_scale, logit_bias),
            detach_temperature=detach_temperature,
            hard_negative_weight=hard_negative_weight,
            blockwise=blockwise,
            gather=gather,
        )
        self.logit_scale = logit_scale
        self.logit_bias = logit_bias
        self.learning_rate = check_number("learning_rate", learning_rate, "(0, inf)")

    def row_loss(self, positive: Tensor, negatives: Tensor, similarity: Tensor) -> Tensor:
        return F.softplus(-positive) + negatives.exp()

    def learned(self) -> dict[str, float]:
        scale = float(self.reweighting.temperature.log_scale.detach().exp())
        bias = float(self.reweighting.bias.detach())
        return {"logit_scale": round(scale, 6), "logit_bias": round(bias, 6)}
