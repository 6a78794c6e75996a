"""Contrastive objectives; each takes any temperature of :mod:`dystress_text.core.temperature`.

Every objective is a function of two numbers an anchor: the logit of its positive and the logsumexp of the logits of its
negatives. A loss module embeds that in three steps: similarities of this process's anchors with everybody's candidates,
logits under the temperature, and one of the row functions below. Embeddings come in unnormalised; similarities,
temperatures and logsumexp run in fp32 (fp64 for fp64 embeddings), under autocast too. A zero vector has similarity 0 to
everything.

The temperature is detached by default, as in the paper's pseudocode: gradients are then ``p / tau`` for a negative and
``-(1 - p) / tau`` for the positive. With ``detach_temperature=False`` they are those of Eqs. delLdelCa and delLdelCb.

Across processes, pass a :class:`~dystress_text.core.gather.ProcessGather`. The loss is then the mean over the process's
own anchors; its average over the processes, and every parameter's gradient after DistributedDataParallel's averaging,
equal those of one process with the whole batch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dystress_text.core.gather import Gather, LocalGather
from dystress_text.core.registry import Temperature
from dystress_text.core.temperature import AlignmentAdaptiveTemperature, ConstantTemperature


class Rows(NamedTuple):
    """What an objective sees of each anchor, both (rows,)."""

    positive: Tensor  # logit of the positive
    negatives: Tensor  # logsumexp of the logits of the negatives


class Similarities(NamedTuple):
    """Cosine similarities of anchors with candidates and where the positives stand."""

    matrix: Tensor  # (rows, columns)
    positive_column: Tensor  # (rows,), int64
    excluded_column: Tensor | None = None  # (rows,), int64: the anchor itself among the candidates


# ---- row functions: from Rows to a loss an anchor ------------------------------------------------------------------


def info_nce_rows(rows: Rows) -> Tensor:
    """-log P, P the softmax probability of the positive among all candidates; (rows,)."""
    return -F.logsigmoid(rows.positive - rows.negatives)


def decoupled_rows(rows: Rows, positive_weight: Tensor | None = None) -> Tensor:
    """DCL's ``-w s_p / tau + logsumexp(negatives)``, with w = 1 unless given; (rows,)."""
    positive = rows.positive if positive_weight is None else positive_weight * rows.positive
    return rows.negatives - positive


def reweighted_rows(rows: Rows) -> Tensor:
    """MACL's ``-sg(1 / (1 - P)) log P``; (rows,).

    With m = logsumexp(negatives) - positive this is softplus(m) / sg(sigmoid(m)). Its derivative by m is exactly 1, and
    below m = -40 its value is 1 in every precision, so value and derivative are set apart: nothing can underflow.
    """
    margin = rows.negatives - rows.positive
    safe = margin.detach().clamp(min=-40)
    value = F.logsigmoid(-safe).neg() / torch.sigmoid(safe)
    return value + (margin - margin.detach())


# ---- from embeddings to rows ---------------------------------------------------------------------------------------


def unit_vectors(x: Tensor) -> Tensor:
    """Rows of ``x`` (..., dim) scaled to length 1, in fp32 or better; a zero row stays zero, with a zero gradient.

    A row is first divided by its largest entry, so that no square over- or underflows. That divisor needs no gradient,
    as it changes nothing in exact arithmetic. Rows without a normal number (fp32: 1.2e-38) count as zero.
    """
    x = x if x.dtype == torch.float64 else x.float()
    largest = x.detach().abs().amax(dim=-1, keepdim=True)  # (..., 1)
    x = x / torch.where(largest < torch.finfo(x.dtype).tiny, torch.inf, largest)  # entries in [-1, 1]
    length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)  # (..., 1), at least 1, or 0 for a zero row
    return x * length.clamp(min=0.5).reciprocal()  # the gradient of a division would cost more


def scaled_logits(similarity: Tensor, temperature: Temperature, detach_temperature: bool = True) -> Tensor:
    """``s / tau(s)``, the same shape as ``similarity``; the temperature in or out of the gradient."""
    tau: Tensor = temperature(similarity.detach() if detach_temperature else similarity)
    return similarity / tau


def split_rows(logits: Tensor, positive_column: Tensor, excluded_column: Tensor | None = None) -> Rows:
    """The positive's logit and the logsumexp of all others but the excluded one; logits (rows, columns)."""
    positive = positive_column.unsqueeze(1)  # (rows, 1)
    left_out = positive if excluded_column is None else torch.stack([positive_column, excluded_column], dim=1)
    negatives = logits.scatter(1, left_out, -torch.inf)
    return Rows(logits.gather(1, positive).squeeze(1), negatives.logsumexp(dim=1))


def _own_columns(rows: int, gather: Gather, device: torch.device) -> Tensor:
    """Columns at which this process's rows stand among everybody's, (rows,)."""
    return torch.arange(rows, device=device) + gather.rank * rows


def first_view_anchors(z1: Tensor, z2: Tensor, gather: Gather) -> Similarities:
    """Anchors z1 against all z2 (SimCSE's rows); unit vectors (n, dim) -> matrix (n, N) with N = n * world_size."""
    return Similarities(z1 @ gather(z2).T, _own_columns(len(z1), gather, z1.device))


def both_view_anchors(z1: Tensor, z2: Tensor, gather: Gather) -> Similarities:
    """Both views as anchors against all other views (SimCLR's rows); matrix (2n, 2N), itself excluded."""
    candidates = torch.cat([gather(z1), gather(z2)])  # (2N, dim)
    own = _own_columns(len(z1), gather, z1.device)
    first, second = own, own + len(candidates) // 2  # where this process's rows of either view stand
    return Similarities(torch.cat([z1, z2]) @ candidates.T, torch.cat([second, first]), torch.cat([first, second]))


# ---- the losses ----------------------------------------------------------------------------------------------------


class ContrastiveLoss(nn.Module):
    """What all objectives share: the temperature, the flag, the gather, fp32 under autocast and the checks."""

    def __init__(
        self,
        temperature: Temperature | float,
        detach_temperature: bool = True,
        gather: Gather | None = None,
    ) -> None:
        super().__init__()
        if isinstance(temperature, (int, float)) and not isinstance(temperature, bool):
            temperature = ConstantTemperature(float(temperature))
        if not isinstance(temperature, Temperature):
            raise TypeError(f"temperature must be a Temperature or a number, got {type(temperature).__name__}")
        self.temperature = temperature
        self.detach_temperature = detach_temperature
        self.gather: Gather = gather or LocalGather()

    def extra_repr(self) -> str:
        return f"detach_temperature={self.detach_temperature}"

    def rows(self, z1: Tensor, z2: Tensor, hard_negatives: Tensor | None = None) -> Rows:
        """The rows of unit vectors z1, z2 (n, dim)."""
        raise NotImplementedError

    def row_loss(self, rows: Rows, z1: Tensor, z2: Tensor) -> Tensor:
        """The loss of each row, (rows,)."""
        return info_nce_rows(rows)

    def _logits(self, similarity: Tensor) -> Tensor:
        return scaled_logits(similarity, self.temperature, self.detach_temperature)

    def _compute(self, *views: Tensor) -> Tensor:
        if any(z.ndim != 2 for z in views) or len({tuple(z.shape) for z in views}) != 1:
            shapes = ", ".join(str(tuple(z.shape)) for z in views)
            raise ValueError(f"embeddings must all have one shape (batch, dim), got {shapes}")
        if len(views[0]) * self.gather.world_size < 2 and len(views) < 3:
            raise ValueError("a batch of 1 pair has no negatives: the batch size must be at least 2")
        with torch.autocast(device_type=views[0].device.type, enabled=False):
            z = [unit_vectors(view) for view in views]
            if self.temperature.needs_mean_positive:
                self.temperature.observe(self.gather(positive_similarity(z[0], z[1]).detach()).mean())
            return self.row_loss(self.rows(*z), z[0], z[1]).mean()


def positive_similarity(z1: Tensor, z2: Tensor) -> Tensor:
    """Similarity of each pair of unit vectors, (n, dim) x (n, dim) -> (n,)."""
    return (z1 * z2).sum(dim=-1)


class InfoNCELoss(ContrastiveLoss):
    """InfoNCE in one direction: find each anchor's positive among all positives of the batch.

    SimCSE's objective and the default for text. Equals sentence-transformers' MultipleNegativesRankingLoss (scale
    ``1 / tau``) at a constant temperature.

    Args:
        temperature: any temperature, or a number for a constant one. The paper's best STS row is
            ``ShiftedCosineTemperature(tau_min=0.05, tau_max=0.07, shift=-0.4)``; SimCSE's is 0.05.
        detach_temperature: whether the temperature stays out of the gradient.
        gather: the other processes; None for one process.
        hard_negative_weight: added to the logit of an anchor's own hard negative, after the division by tau.

    Example:
        >>> loss = InfoNCELoss(0.05)
        >>> z1, z2 = torch.randn(8, 16), torch.randn(8, 16)
        >>> loss(z1, z2).shape
        torch.Size([])
    """

    def __init__(
        self,
        temperature: Temperature | float,
        detach_temperature: bool = True,
        gather: Gather | None = None,
        hard_negative_weight: float = 0.0,
    ) -> None:
        super().__init__(temperature, detach_temperature, gather)
        self.hard_negative_weight = hard_negative_weight

    def forward(self, anchors: Tensor, positives: Tensor, hard_negatives: Tensor | None = None) -> Tensor:
        """Mean loss over the anchors; all embeddings (batch, dim), the i-th of each belonging together."""
        if hard_negatives is None:
            return self._compute(anchors, positives)
        return self._compute(anchors, positives, hard_negatives)

    def rows(self, z1: Tensor, z2: Tensor, hard_negatives: Tensor | None = None) -> Rows:
        pairs = first_view_anchors(z1, z2, self.gather)
        logits = self._logits(pairs.matrix)  # (n, N)
        if hard_negatives is not None:
            hard = first_view_anchors(z1, hard_negatives, self.gather)
            bonus = torch.zeros_like(hard.matrix)
            bonus.scatter_(1, hard.positive_column.unsqueeze(1), self.hard_negative_weight)
            logits = torch.cat([logits, self._logits(hard.matrix) + bonus], dim=1)  # (n, 2N)
        return split_rows(logits, pairs.positive_column)


class NTXentLoss(ContrastiveLoss):
    """NT-Xent (SimCLR): both views are anchors, all other 2N - 1 views are candidates.

    The default for vision; the paper's pseudocode (Alg. vanilladystress) is
    ``NTXentLoss(CosineTemperature(0.1, 0.2), detach_temperature=True)``.

    Args:
        temperature: any temperature, or a number for a constant one.
        detach_temperature: whether the temperature stays out of the gradient.
        gather: the other processes; None for one process.

    Example:
        >>> loss = NTXentLoss(0.5)
        >>> z1, z2 = torch.randn(8, 16), torch.randn(8, 16)
        >>> loss(z1, z2).shape
        torch.Size([])
    """

    def forward(self, z1: Tensor, z2: Tensor) -> Tensor:
        """Mean loss over the 2N anchors; both views (batch, dim), the i-th of each belonging together."""
        return self._compute(z1, z2)

    def rows(self, z1: Tensor, z2: Tensor, hard_negatives: Tensor | None = None) -> Rows:
        pairs = both_view_anchors(z1, z2, self.gather)
        return split_rows(self._logits(pairs.matrix), pairs.positive_column, pairs.excluded_column)


class DCLLoss(NTXentLoss):
    """Decoupled contrastive loss (Yeh et al., ECCV 2022): NT-Xent without the positive in the denominator.

    ``-s_p / tau + logsumexp`` over the 2N - 2 negatives of both views jointly, mean over both directions. Arguments as
    for :class:`NTXentLoss`.

    Example:
        >>> loss = DCLLoss(0.1)
        >>> z1, z2 = torch.randn(8, 16), torch.randn(8, 16)
        >>> loss(z1, z2).shape
        torch.Size([])
    """

    def row_loss(self, rows: Rows, z1: Tensor, z2: Tensor) -> Tensor:
        return decoupled_rows(rows)


class DCLWLoss(DCLLoss):
    """DCL with von-Mises-Fisher weights (Yeh et al., ECCV 2022): far positives count more.

    The positive term of pair i is times ``w_i = 2 - N softmax_i(s_p / sigma)`` over the global batch, detached.

    Args:
        temperature: any temperature, or a number for a constant one.
        sigma: the width of the weights; positive. A large one is DCL.
        detach_temperature: whether the temperature stays out of the gradient.
        gather: the other processes; None for one process.

    Example:
        >>> loss = DCLWLoss(0.1, sigma=0.5)
        >>> z1, z2 = torch.randn(8, 16), torch.randn(8, 16)
        >>> loss(z1, z2).shape
        torch.Size([])
    """

    def __init__(
        self,
        temperature: Temperature | float,
        sigma: float = 0.5,
        detach_temperature: bool = True,
        gather: Gather | None = None,
    ) -> None:
        super().__init__(temperature, detach_temperature, gather)
        if isinstance(sigma, bool) or not sigma > 0:  # True would be meant for detach_temperature
            raise ValueError(f"sigma must be a positive number, got {sigma}")
        self.sigma = sigma

    def row_loss(self, rows: Rows, z1: Tensor, z2: Tensor) -> Tensor:
        similarity = self.gather(positive_similarity(z1, z2).detach())  # (N,)
        weight = 2 - len(similarity) * torch.softmax(similarity / self.sigma, dim=0)
        own = weight[_own_columns(len(z1), self.gather, z1.device)]
        return decoupled_rows(rows, torch.cat([own, own]))


class MACLLoss(ContrastiveLoss):
    """Model-aware contrastive loss (Huang et al., ICML 2023): ``-sg(1 / (1 - P)) log P`` on the rows of InfoNCE.

    ``MACLLoss(tau_0, alpha, a_0)`` uses :class:`AlignmentAdaptiveTemperature`, as its paper does; the reweighting takes
    any other temperature too. Text: 0.05, 2, 0.8.

    Args:
        tau_0: temperature at the reference alignment.
        alpha: how strongly the temperature follows the alignment.
        a_0: the reference alignment.
        both_views: use the rows of NT-Xent instead.
        temperature: replaces the alignment-adaptive temperature and its three parameters.
        detach_temperature: whether the temperature stays out of the gradient.
        gather: the other processes; None for one process.

    Raises:
        TemperatureError: when the adaptive temperature reaches 0, at a mean positive similarity of a_0 - 1/alpha.

    Example:
        >>> loss = MACLLoss(tau_0=0.05, alpha=0.5, a_0=0.8)
        >>> z = torch.randn(8, 16)
        >>> loss(z, z + 0.1 * torch.randn(8, 16)).shape
        torch.Size([])
    """

    def __init__(
        self,
        tau_0: float = 0.05,
        alpha: float = 2.0,
        a_0: float = 0.8,
        *,
        both_views: bool = False,
        temperature: Temperature | float | None = None,
        detach_temperature: bool = True,
        gather: Gather | None = None,
    ) -> None:
        if temperature is None:
            temperature = AlignmentAdaptiveTemperature(tau_0, alpha, a_0)
        super().__init__(temperature, detach_temperature, gather)
        self.similarities = both_view_anchors if both_views else first_view_anchors

    def forward(self, z1: Tensor, z2: Tensor) -> Tensor:
        """Mean loss over the anchors; both views (batch, dim), the i-th of each belonging together."""
        return self._compute(z1, z2)

    def rows(self, z1: Tensor, z2: Tensor, hard_negatives: Tensor | None = None) -> Rows:
        pairs: Similarities = self.similarities(z1, z2, self.gather)
        return split_rows(self._logits(pairs.matrix), pairs.positive_column, pairs.excluded_column)

    def row_loss(self, rows: Rows, z1: Tensor, z2: Tensor) -> Tensor:
        return reweighted_rows(rows)
