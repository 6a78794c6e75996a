"""Objectives that are rules of their own: RINCE, a function of InfoNCE's rows, and SigLIP, a loss of single pairs."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dystress_text.core.gather import Gather
from dystress_text.core.objectives import ContrastiveLoss, InfoNCELoss
from dystress_text.core.registry import Temperature
from dystress_text.core.rows import Pairs, first_view_pairs, info_nce_rows
from dystress_text.core.rule import PairRule, Pull, Rows

_LINEAR = 40  # above it, softplus is the identity in fp64 too


class RINCELoss(InfoNCELoss):
    """RINCE (Chuang et al., CVPR 2022): robust to views that do not belong together.

    ``-exp(q l_p) / q + (lam (exp(l_p) + sum exp(l)))^q / q`` with the logits l; nothing but the temperature is
    detached. For q towards 0 it is InfoNCE and a constant. Published for images: q 0.1 (SimCLR) or 0.6 (MoCo v3), lam
    0.01. With q 0.6 and the temperature 0.05 a row of a positive of 0.9 weighs 5e4.

    Args:
        temperature: any temperature, or a number for a constant one.
        q: between InfoNCE (towards 0) and a symmetric loss (1); in (0, 1].
        lam: weight of the denominator; positive.
        detach_temperature: whether the temperature is detached from the gradient.
        gather: the other processes; None for one process.
        hard_negative_weight: added to the logits of an anchor's own hard negatives, after the division by tau.
        blockwise: whether to compute the rows without the matrix of similarities; None does so above
            some millions of similarities.

    Examples:
        >>> loss = RINCELoss(0.1)
        >>> z1, z2 = torch.randn(8, 16), torch.randn(8, 16)
        >>> loss(z1, z2).shape
        torch.Size([])
    """

    def __init__(
        self,
        temperature: PairRule | float = 0.1,
        q: float = 0.1,
        lam: float = 0.01,
        detach_temperature: bool = True,
        gather: Gather | None = None,
        hard_negative_weight: float = 0.0,
        blockwise: bool | None = None,
    ) -> None:
        super().__init__(temperature, detach_temperature, gather, hard_negative_weight, blockwise)
        if isinstance(q, bool) or not 0 < q <= 1:
            raise ValueError(f"q must lie in (0, 1], got {q}; for 0 use InfoNCELoss")
        if isinstance(lam, bool) or not 0 < lam < math.inf:
            raise ValueError(f"lam must be a positive number, got {lam}")
        self.q, self.lam = q, lam

    def row_loss(self, rows: Rows, z1: Tensor, z2: Tensor) -> Tensor:
        everything = torch.logaddexp(rows.positive, rows.negatives) + math.log(self.lam)
        return ((self.q * everything).exp() - (self.q * rows.positive).exp()) / self.q

    def reference_rows(self, rows: Rows, z1: Tensor, z2: Tensor) -> Tensor:
        return info_nce_rows(rows)


class SigmoidRule(Temperature):
    """SigLIP's logits ``scale s + bias`` with a learned scale and bias; a negative counts ``softplus`` of its logit.

    The scale is ``exp(log_scale)``. For :class:`SigLIPLoss`.

    Args:
        logit_scale: at the start; positive.
        logit_bias: at the start.
    """

    def __init__(self, logit_scale: float = 10.0, logit_bias: float = -10.0) -> None:
        super().__init__()
        if isinstance(logit_scale, bool) or not 0 < logit_scale < math.inf:
            raise ValueError(f"logit_scale must be a positive number, got {logit_scale}")
        if not math.isfinite(logit_bias):
            raise ValueError(f"logit_bias must be a finite number, got {logit_bias}")
        self.log_scale = nn.Parameter(torch.tensor(math.log(logit_scale)))
        self.bias = nn.Parameter(torch.tensor(float(logit_bias)))
        self.register_buffer("kept", torch.stack([self.log_scale, self.bias]).detach().clone())

    kept: Tensor

    def forward(self, similarity: Tensor) -> Tensor:
        """The temperature, 1 / scale."""
        return (-self.log_scale.to(similarity.dtype)).exp().expand_as(similarity)

    def positive_logit(self, similarity: Tensor, detach: bool = True, tau: Tensor | None = None) -> Tensor:
        return self.log_scale.to(similarity.dtype).exp() * similarity + self.bias.to(similarity.dtype)

    def logits(self, similarity: Tensor, detach: bool = True, tau: Tensor | None = None) -> tuple[Tensor, ...]:
        return (_log_softplus(self.positive_logit(similarity)),)

    def pullback(self, similarity: Tensor, detach: bool = True, tau: Tensor | None = None) -> tuple[list[Tensor], Pull]:
        scale, bias = (p.detach().to(similarity.dtype) for p in (self.log_scale.exp(), self.bias))
        x = torch.addcmul(bias, similarity, scale)
        costs = F.softplus(x, threshold=_LINEAR)
        nothing = costs < torch.finfo(x.dtype).tiny
        logit = costs.log()
        torch.where(nothing, x, logit, out=logit)
        slope = x.sigmoid_().div_(costs).masked_fill_(nothing, 1)  # of the logarithm of softplus

        def pull(gradients: Sequence[Tensor]) -> tuple[Tensor, list[Tensor | None]]:
            of_x = gradients[0].mul_(slope)
            of_scale = torch.dot(of_x.flatten(), similarity.flatten())
            more: list[Tensor | None] = [
                (of_scale * scale).to(self.log_scale.dtype), of_x.sum().to(self.bias.dtype)
            ]  # fmt: skip
            return of_x.mul_(scale), more

        return [logit], pull

    @torch.no_grad()
    def keep(self) -> None:
        self.kept = torch.stack([self.log_scale, self.bias])

    @torch.no_grad()
    def go_back(self) -> None:
        self.log_scale.copy_(self.kept[0])
        self.bias.copy_(self.kept[1])

    def end_points(self) -> dict[str, float]:
        return self.values()

    def values(self) -> dict[str, float]:
        scale, bias = float(self.log_scale.detach().exp()), float(self.bias.detach())
        return {"logit_scale": round(scale, 6), "logit_bias": round(bias, 6)}


def _log_softplus(x: Tensor) -> Tensor:
    """Logarithm of ``log(1 + exp(x))``, which is x where that underflows."""
    costs = F.softplus(x, threshold=_LINEAR)
    nothing = costs < torch.finfo(x.dtype).tiny
    return torch.where(nothing, x, torch.where(nothing, torch.ones_like(x), costs).log())


class SigLIPLoss(ContrastiveLoss):
    """SigLIP's sigmoid loss (Zhai et al., ICCV 2023, Alg. 1): each pair is a positive or a negative by itself.

    ``mean over anchors of softplus(-(t p + b)) + sum softplus(t s + b)`` over the anchor's negatives; t = exp(t') and b
    are learned: give them to the optimiser without weight decay. The paper begins with t = 10 and b = -10.

    Args:
        logit_scale: t at the start; positive.
        logit_bias: b at the start.
        gather: the other processes; None for one process.
        blockwise: whether to compute the rows without the matrix of similarities; None does so above
            some millions of similarities.

    Examples:
        >>> loss = SigLIPLoss()
        >>> z1, z2 = torch.randn(8, 16), torch.randn(8, 16)
        >>> loss(z1, z2).shape
        torch.Size([])
    """

    def __init__(
        self,
        logit_scale: float = 10.0,
        logit_bias: float = -10.0,
        gather: Gather | None = None,
        blockwise: bool | None = None,
        hard_negative_weight: float = 0.0,
    ) -> None:
        super().__init__(SigmoidRule(logit_scale, logit_bias), True, gather, blockwise, hard_negative_weight)
        if hard_negative_weight != 0:
            raise ValueError("hard_negative_weight: SigLIP has no softmax whose logits it could be added to")

    def view_pairs(self, z1: Tensor, z2: Tensor, ids: Sequence[Tensor] | None) -> Pairs:
        return first_view_pairs(z1, z2, self.gather, ids)

    def row_loss(self, rows: Rows, z1: Tensor, z2: Tensor) -> Tensor:
        return F.softplus(-rows.positive) + rows.negatives.exp()

    def reference_rows(self, rows: Rows, z1: Tensor, z2: Tensor) -> Tensor:
        return info_nce_rows(rows)
