"""Contrastive objectives; each takes any temperature of :mod:`dystress_text.core.temperature`.

A loss module says which pairs it has, this process's anchors with everybody's candidates, and what it makes of each
anchor's row (:mod:`dystress_text.core.rows`). Rows are formed from the whole matrix of similarities or, above a size,
without it (:mod:`dystress_text.core.blockwise`); loss and gradients are the same. Embeddings come in unnormalised;
similarities, temperatures and logsumexp run in fp32 (fp64 for fp64 embeddings), under autocast too. A zero vector has
similarity 0 to everything.

The temperature is detached by default, as in the paper's pseudocode: gradients are then ``p / tau`` for a negative and
``-(1 - p) / tau`` for the positive. With ``detach_temperature=False`` they are those of Eqs. delLdelCa and delLdelCb.

Across processes, pass a :class:`~dystress_text.core.gather.ProcessGather`. The loss is then the mean over the process's
own anchors; its average over the processes, and every parameter's gradient after DistributedDataParallel's averaging,
equal those of one process with the whole batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from dystress_text.core.blockwise import blockwise_pays, blockwise_rows
from dystress_text.core.gather import Gather, LocalGather
from dystress_text.core.registry import Temperature
from dystress_text.core.rows import (
    Negatives,
    Pairs,
    Rows,
    both_view_pairs,
    decoupled_rows,
    first_view_pairs,
    info_nce_rows,
    own_columns,
    plain_rows,
    positive_similarity,
    reweighted_rows,
    scaled_logits,
    unit_vectors,
)
from dystress_text.core.temperature import AlignmentAdaptiveTemperature, ConstantTemperature


class ContrastiveLoss(nn.Module):
    """What all objectives share: the temperature, the flag, the gather, fp32 under autocast and the checks.

    Attributes:
        takes_hard_negatives: whether more embeddings than two are taken, negatives of one anchor each.
        watch: called with the unit vectors of each batch and its rows, before the objective's state moves on; None for
            nothing. It must not change them.
    """

    negatives_from_batch = True
    takes_hard_negatives = False
    watch: Callable[[Sequence[Tensor], Rows], None] | None = None

    def __init__(
        self,
        temperature: Temperature | float,
        detach_temperature: bool = True,
        gather: Gather | None = None,
        blockwise: bool | None = None,
    ) -> None:
        super().__init__()
        if isinstance(temperature, (int, float)) and not isinstance(temperature, bool):
            temperature = ConstantTemperature(float(temperature))
        if not isinstance(temperature, Temperature):
            raise TypeError(f"temperature must be a Temperature or a number, got {type(temperature).__name__}")
        self.temperature = temperature
        self.detach_temperature = detach_temperature
        self.gather: Gather = gather or LocalGather()
        self.blockwise = blockwise

    def extra_repr(self) -> str:
        return f"detach_temperature={self.detach_temperature}, blockwise={self.blockwise}"

    def pairs(self, z1: Tensor, z2: Tensor, *hard_negatives: Tensor) -> Pairs:
        """The pairs of unit vectors z1, z2 (n, dim)."""
        raise NotImplementedError

    def negatives(self, *z: Tensor) -> Negatives:
        """The pairs of unit vectors (n, dim) that :meth:`rows` takes the negatives' logsumexp of."""
        return self.pairs(*z).negatives

    def row_loss(self, rows: Rows, z1: Tensor, z2: Tensor) -> Tensor:
        """The loss of each row, (rows,)."""
        return info_nce_rows(rows)

    def rows(self, *z: Tensor) -> Rows:
        """The rows of unit vectors (n, dim)."""
        pairs = self.pairs(*z)
        blockwise = blockwise_pays(pairs) if self.blockwise is None else self.blockwise
        form = blockwise_rows if blockwise else plain_rows
        return form(pairs, self.temperature, self.detach_temperature)

    def _compute(self, *views: Tensor) -> Tensor:
        if any(z.ndim != 2 for z in views) or len({tuple(z.shape) for z in views}) != 1:
            shapes = ", ".join(str(tuple(z.shape)) for z in views)
            raise ValueError(f"embeddings must all have one shape (batch, dim), got {shapes}")
        if self.negatives_from_batch and len(views[0]) * self.gather.world_size < 2 and len(views) < 3:
            raise ValueError("a batch of 1 pair has no negatives: the batch size must be at least 2")
        with torch.autocast(device_type=views[0].device.type, enabled=False):
            z = [unit_vectors(view) for view in views]
            if self.temperature.needs_mean_positive:
                self.temperature.observe(self.gather(positive_similarity(z[0], z[1]).detach()).mean())
            rows = self.rows(*z)
            if self.watch is not None:
                self.watch(z, rows)
            return self.row_loss(rows, z[0], z[1]).mean()


class InfoNCELoss(ContrastiveLoss):
    """InfoNCE in one direction: find each anchor's positive among all positives of the batch.

    SimCSE's objective and the default for text. Equals sentence-transformers' MultipleNegativesRankingLoss (scale
    ``1 / tau``) at a constant temperature.

    Args:
        temperature: any temperature, or a number for a constant one. The paper's best STS row is
            ``ShiftedCosineTemperature(tau_min=0.05, tau_max=0.07, shift=-0.4)``; SimCSE's is 0.05.
        detach_temperature: whether the temperature stays out of the gradient.
        gather: the other processes; None for one process.
        hard_negative_weight: added to the logits of an anchor's own hard negatives, after the division by tau.
        blockwise: never (False) or always (True) form the rows without the matrix of similarities; None does so above
            some millions of them.

    Example:
        >>> loss = InfoNCELoss(0.05)
        >>> z1, z2 = torch.randn(8, 16), torch.randn(8, 16)
        >>> loss(z1, z2).shape
        torch.Size([])
    """

    takes_hard_negatives = True

    def __init__(
        self,
        temperature: Temperature | float,
        detach_temperature: bool = True,
        gather: Gather | None = None,
        hard_negative_weight: float = 0.0,
        blockwise: bool | None = None,
    ) -> None:
        super().__init__(temperature, detach_temperature, gather, blockwise)
        self.hard_negative_weight = hard_negative_weight

    def forward(self, anchors: Tensor, positives: Tensor, *hard_negatives: Tensor) -> Tensor:
        """Mean loss over the anchors; all embeddings (batch, dim), the i-th of each belonging together.

        Every hard negative is a candidate of every anchor, as in supervised SimCSE.
        """
        return self._compute(anchors, positives, *hard_negatives)

    def pairs(self, z1: Tensor, z2: Tensor, *hard_negatives: Tensor) -> Pairs:
        pairs = first_view_pairs(z1, z2, self.gather)
        if not hard_negatives:
            return pairs
        own, all_rows = pairs.positive_column, len(pairs.candidates)
        return pairs._replace(
            candidates=torch.cat([pairs.candidates, *map(self.gather, hard_negatives)]),  # ((1 + h) N, dim)
            bonus_columns=torch.stack([own + i * all_rows for i in range(1, 1 + len(hard_negatives))], dim=1),
            bonus=self.hard_negative_weight,
        )


class NTXentLoss(ContrastiveLoss):
    """NT-Xent (SimCLR): both views are anchors, all other 2N - 1 views are candidates.

    The default for vision; the paper's pseudocode (Alg. vanilladystress) is
    ``NTXentLoss(CosineTemperature(0.1, 0.2), detach_temperature=True)``.

    Args:
        temperature: any temperature, or a number for a constant one.
        detach_temperature: whether the temperature stays out of the gradient.
        gather: the other processes; None for one process.
        blockwise: never (False) or always (True) form the rows without the matrix of similarities; None does so above
            some millions of them.

    Example:
        >>> loss = NTXentLoss(0.5)
        >>> z1, z2 = torch.randn(8, 16), torch.randn(8, 16)
        >>> loss(z1, z2).shape
        torch.Size([])
    """

    def forward(self, z1: Tensor, z2: Tensor) -> Tensor:
        """Mean loss over the 2N anchors; both views (batch, dim), the i-th of each belonging together."""
        return self._compute(z1, z2)

    def pairs(self, z1: Tensor, z2: Tensor, *hard_negatives: Tensor) -> Pairs:
        return both_view_pairs(z1, z2, self.gather)


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
        blockwise: never (False) or always (True) form the rows without the matrix of similarities; None does so above
            some millions of them.

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
        blockwise: bool | None = None,
    ) -> None:
        super().__init__(temperature, detach_temperature, gather, blockwise)
        if isinstance(sigma, bool) or not sigma > 0:  # True would be meant for detach_temperature
            raise ValueError(f"sigma must be a positive number, got {sigma}")
        self.sigma = sigma

    def row_loss(self, rows: Rows, z1: Tensor, z2: Tensor) -> Tensor:
        similarity = self.gather(positive_similarity(z1, z2).detach())  # (N,)
        weight = 2 - len(similarity) * torch.softmax(similarity / self.sigma, dim=0)
        own = weight[own_columns(len(z1), self.gather, z1.device)]
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
        blockwise: never (False) or always (True) form the rows without the matrix of similarities; None does so above
            some millions of them.

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
        blockwise: bool | None = None,
    ) -> None:
        if temperature is None:
            temperature = AlignmentAdaptiveTemperature(tau_0, alpha, a_0)
        super().__init__(temperature, detach_temperature, gather, blockwise)
        self.both_views = both_views

    def forward(self, z1: Tensor, z2: Tensor) -> Tensor:
        """Mean loss over the anchors; both views (batch, dim), the i-th of each belonging together."""
        return self._compute(z1, z2)

    def pairs(self, z1: Tensor, z2: Tensor, *hard_negatives: Tensor) -> Pairs:
        return (both_view_pairs if self.both_views else first_view_pairs)(z1, z2, self.gather)

    def row_loss(self, rows: Rows, z1: Tensor, z2: Tensor) -> Tensor:
        return reweighted_rows(rows)


class QueueInfoNCELoss(ContrastiveLoss):
    """InfoNCE against a queue of past keys (MoCo, He et al., CVPR 2020): find each query's key among key and queue.

    The keys come from a momentum encoder and carry no gradient. In training mode the batch's keys, those of all
    processes, enter the queue after the loss and push out the oldest. A batch of 1 is valid.

    Args:
        temperature: any temperature, or a number for a constant one.
        queue_size: keys in the queue; MoCo uses 65,536 on ImageNet, 4,096 is usual on CIFAR.
        dim: dimension of the embeddings.
        detach_temperature: whether the temperature stays out of the gradient.
        gather: the other processes; None for one process.

    Raises:
        ValueError: the queue or the dimension is not positive.

    Example:
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

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Mean loss over the queries; both (batch, dim), the i-th of each belonging together."""
        keys = keys.detach()
        loss = self._compute(queries, keys)
        if self.training:
            new = unit_vectors(self.gather(keys)).to(self.queue.dtype)
            self.queue = torch.cat([self.queue, new])[-len(self.queue) :]
        return loss

    def negatives(self, *z: Tensor) -> Negatives:
        none = torch.empty(len(z[0]), 0, dtype=torch.int64, device=z[0].device)
        return Negatives(z[0], self.queue.to(z[0].dtype), none)

    def rows(self, *z: Tensor) -> Rows:
        query, key = z
        if query.shape[1] != self.queue.shape[1]:
            raise ValueError(f"the queue holds keys of {self.queue.shape[1]} dimensions, got {query.shape[1]}")
        similarities = (positive_similarity(query, key), query @ self.queue.to(query.dtype).T)  # (n,), (n, queue_size)
        positive, negatives = (scaled_logits(s, self.temperature, self.detach_temperature) for s in similarities)
        return Rows(positive, negatives.logsumexp(dim=1))
