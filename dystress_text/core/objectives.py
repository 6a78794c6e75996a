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
    NOTHING,
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
    with_hard_negatives,
)
from dystress_text.core.temperature import AlignmentAdaptiveTemperature, ConstantTemperature


class ContrastiveLoss(nn.Module):
    """What all objectives share: the temperature, the flag, the gather, fp32 under autocast and the checks.

    Attributes:
        duplicates: pairs of all processes that were left out because their samples are the same; a scalar, counted up
            with every batch.
        observer: called with the unit vectors of each batch, its rows and the negatives that they are made of, before
            the objective's state moves on; None for nothing. It must not change them.
    """

    negatives_from_batch = True
    duplicates: Tensor
    observer: Callable[[Sequence[Tensor], Rows, Sequence[Negatives]], None] | None = None

    def __init__(
        self,
        temperature: Temperature | float,
        detach_temperature: bool = True,
        gather: Gather | None = None,
        blockwise: bool | None = None,
        hard_negative_weight: float = 0.0,
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
        self.hard_negative_weight = hard_negative_weight
        self.register_buffer("duplicates", torch.zeros((), dtype=torch.int64))

    def extra_repr(self) -> str:
        return f"detach_temperature={self.detach_temperature}, blockwise={self.blockwise}"

    def forward(self, z1: Tensor, z2: Tensor, *hard_negatives: Tensor, ids: Sequence[Tensor] | None = None) -> Tensor:
        """Mean loss over the anchors.

        Args:
            z1: anchors, (batch, dim).
            z2: their positives, the same shape, the i-th of each belonging together.
            hard_negatives: any number of them, the same shape: candidates of every anchor, and to the anchor of the
                same place its own, whose logits get ``hard_negative_weight``.
            ids: integers that name the sample behind each embedding, one tensor (batch,) for each of them. A candidate
                with the sample of the anchor or of its positive, or whose own anchor has it, is no negative. A row
                without any negative left counts as 0. The same tensor twice in front says that the embeddings are two
                views of one sample.
        """
        return self._compute((z1, z2, *hard_negatives), ids)

    def view_pairs(self, z1: Tensor, z2: Tensor, ids: Sequence[Tensor] | None) -> Pairs:
        """The pairs of unit vectors z1, z2 (n, dim) without hard negatives; ``ids`` are those of all embeddings."""
        raise NotImplementedError

    def pairs(self, z: Sequence[Tensor], ids: Sequence[Tensor] | None = None) -> tuple[Pairs, ...]:
        """The pairs of unit vectors (n, dim), in parts whose rows stand one after another."""
        pairs = self.view_pairs(z[0], z[1], ids)
        return (with_hard_negatives(pairs, z[2:], self.gather, self.hard_negative_weight, ids and ids[2:]),)

    def row_loss(self, rows: Rows, z1: Tensor, z2: Tensor) -> Tensor:
        """The loss of each row, (rows,)."""
        return info_nce_rows(rows)

    def rows_and_negatives(
        self, z: Sequence[Tensor], ids: Sequence[Tensor] | None = None
    ) -> tuple[Rows, tuple[Negatives, ...]]:
        """The rows of unit vectors (n, dim), and the pairs that their negatives' logsumexp is made of, part by part."""
        pairs = self.pairs(z, ids)
        parts = [self._rows_of(part) for part in pairs]
        rows = parts[0] if len(parts) == 1 else Rows(*(torch.cat(numbers) for numbers in zip(*parts, strict=True)))
        return rows, tuple(part.negatives for part in pairs)

    def _rows_of(self, pairs: Pairs) -> Rows:
        if pairs.ids is not None:
            found = self.gather(pairs.negatives.duplicates().unsqueeze(0)).sum()
            self.duplicates = self.duplicates.to(found.device) + found
        blockwise = blockwise_pays(pairs) if self.blockwise is None else self.blockwise
        form = blockwise_rows if blockwise else plain_rows
        return form(pairs, self.temperature, self.detach_temperature)

    def _compute(self, views: Sequence[Tensor], ids: Sequence[Tensor] | None = None) -> Tensor:
        if any(z.ndim != 2 for z in views) or len({tuple(z.shape) for z in views}) != 1:
            shapes = ", ".join(str(tuple(z.shape)) for z in views)
            raise ValueError(f"embeddings must all have one shape (batch, dim), got {shapes}")
        if ids is not None and [tuple(i.shape) for i in ids] != [(len(z),) for z in views]:
            shapes = ", ".join(str(tuple(i.shape)) for i in ids)
            raise ValueError(f"ids must be one tensor ({len(views[0])},) for each of {len(views)} embeddings: {shapes}")
        if self.negatives_from_batch and len(views[0]) * self.gather.world_size < 2 and len(views) < 3:
            raise ValueError("a batch of 1 pair has no negatives: the batch size must be at least 2")
        with torch.autocast(device_type=views[0].device.type, enabled=False):
            z = [unit_vectors(view) for view in views]
            if self.temperature.needs_mean_positive:
                self.temperature.observe(self.gather(positive_similarity(z[0], z[1]).detach()).mean())
            rows, negatives = self.rows_and_negatives(z, ids)
            if self.observer is not None:
                self.observer(z, rows, negatives)
            loss = self.row_loss(rows, z[0], z[1])
            if ids is not None:
                loss = torch.where(rows.negatives > NOTHING / 2, loss, 0)
            return loss.mean()


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
        bidirectional: each positive also has to find its anchor among all anchors; the loss is the mean of both
            directions. MultipleNegativesRankingLoss with both directions, each its own partition.

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
        blockwise: bool | None = None,
        bidirectional: bool = False,
    ) -> None:
        super().__init__(temperature, detach_temperature, gather, blockwise, hard_negative_weight)
        self.bidirectional = bidirectional

    def view_pairs(self, z1: Tensor, z2: Tensor, ids: Sequence[Tensor] | None) -> Pairs:
        return first_view_pairs(z1, z2, self.gather, ids)

    def pairs(self, z: Sequence[Tensor], ids: Sequence[Tensor] | None = None) -> tuple[Pairs, ...]:
        forth = super().pairs(z, ids)
        return (*forth, self.view_pairs(z[1], z[0], ids)) if self.bidirectional else forth


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
        hard_negative_weight: added to the logits of an anchor's own hard negatives, after the division by tau.

    Example:
        >>> loss = NTXentLoss(0.5)
        >>> z1, z2 = torch.randn(8, 16), torch.randn(8, 16)
        >>> loss(z1, z2).shape
        torch.Size([])
    """

    def view_pairs(self, z1: Tensor, z2: Tensor, ids: Sequence[Tensor] | None) -> Pairs:
        return both_view_pairs(z1, z2, self.gather, ids)


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
        hard_negative_weight: added to the logits of an anchor's own hard negatives, after the division by tau.

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
        hard_negative_weight: float = 0.0,
    ) -> None:
        super().__init__(temperature, detach_temperature, gather, blockwise, hard_negative_weight)
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
        hard_negative_weight: added to the logits of an anchor's own hard negatives, after the division by tau.

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
        hard_negative_weight: float = 0.0,
    ) -> None:
        if temperature is None:
            temperature = AlignmentAdaptiveTemperature(tau_0, alpha, a_0)
        super().__init__(temperature, detach_temperature, gather, blockwise, hard_negative_weight)
        self.both_views = both_views

    def view_pairs(self, z1: Tensor, z2: Tensor, ids: Sequence[Tensor] | None) -> Pairs:
        return (both_view_pairs if self.both_views else first_view_pairs)(z1, z2, self.gather, ids)

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

    def forward(self, queries: Tensor, keys: Tensor) -> Tensor:  # type: ignore[override]  # the queue has the negatives
        """Mean loss over the queries; both (batch, dim), the i-th of each belonging together."""
        keys = keys.detach()
        loss = self._compute((queries, keys))
        if self.training:
            new = unit_vectors(self.gather(keys)).to(self.queue.dtype)
            self.queue = torch.cat([self.queue, new])[-len(self.queue) :]
        return loss

    def rows_and_negatives(
        self, z: Sequence[Tensor], ids: Sequence[Tensor] | None = None
    ) -> tuple[Rows, tuple[Negatives, ...]]:
        query, key = z
        if query.shape[1] != self.queue.shape[1]:
            raise ValueError(f"the queue holds keys of {self.queue.shape[1]} dimensions, got {query.shape[1]}")
        queue = self.queue.to(query.dtype)
        similarities = (positive_similarity(query, key), query @ queue.T)  # (n,), (n, queue_size)
        positive, negatives = (scaled_logits(s, self.temperature, self.detach_temperature) for s in similarities)
        none_left_out = torch.empty(len(query), 0, dtype=torch.int64, device=query.device)
        return Rows(positive, negatives.logsumexp(dim=1)), (Negatives(query, queue, none_left_out),)
