"""Contrastive objectives; each takes any temperature of :mod:`dystress_text.core.temperature`.

A loss module defines its pairs (this process's anchors with the candidates of all processes) and the loss of each
anchor's row (:mod:`dystress_text.core.rows`). Rows are computed from the whole matrix of similarities or, above a size,
without it (:mod:`dystress_text.core.blockwise`); loss and gradients are the same. Embeddings need not be normalised.
Similarities, temperatures and logsumexp run in fp32 (fp64 for fp64 embeddings), under autocast too. A zero vector has
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
from dystress_text.core.guide import Guide, guided
from dystress_text.core.rows import (
    NOTHING,
    Negatives,
    Pairs,
    both_view_pairs,
    decoupled_rows,
    first_view_pairs,
    info_nce_rows,
    own_columns,
    plain_rows,
    positive_similarity,
    reweighted_rows,
    unit_vectors,
    with_hard_negatives,
)
from dystress_text.core.rule import PairRule, RowLoss, Rows, RowSums
from dystress_text.core.run_temperatures import AlignmentAdaptiveTemperature
from dystress_text.core.temperature import constant_if_number

Observer = Callable[[Sequence[Tensor], RowSums, Sequence[Negatives], RowLoss], None]


class ContrastiveLoss(nn.Module):
    """Base of all objectives: temperature, gathering, fp32 under autocast, and the checks of the arguments.

    Attributes:
        duplicates: the number of pairs, of all processes and batches so far, that were left out because their samples
            are the same; a scalar.
        guided: the number of further pairs that were left out because of a guide, (1,); None until a guide is expected.
        observer: a function that is called for each batch with the unit vectors, the rows' sums, the negatives behind
            them, and the function that makes the rows' losses of the sums. It must not change its arguments. None for
            no observer.
    """

    negatives_from_batch = True
    duplicates: Tensor
    guided: Tensor | None
    observer: Observer | None = None

    def __init__(
        self,
        temperature: PairRule | float,
        detach_temperature: bool = True,
        gather: Gather | None = None,
        blockwise: bool | None = None,
        hard_negative_weight: float = 0.0,
    ) -> None:
        super().__init__()
        temperature = constant_if_number(temperature)
        if not isinstance(temperature, PairRule):
            raise TypeError(f"temperature must be a Temperature, a rule or a number, got {type(temperature).__name__}")
        self.temperature = temperature
        self.detach_temperature = detach_temperature
        self.gather: Gather = gather or LocalGather()
        self.blockwise = blockwise
        self.hard_negative_weight = hard_negative_weight
        self.register_buffer("duplicates", torch.zeros((), dtype=torch.int64))
        self.register_buffer("guided", None)  # so that the checkpoints of runs without a guide stay as they are

    def extra_repr(self) -> str:
        return f"detach_temperature={self.detach_temperature}, blockwise={self.blockwise}"

    def forward(
        self,
        z1: Tensor,
        z2: Tensor,
        *hard_negatives: Tensor,
        ids: Sequence[Tensor] | None = None,
        samples: Tensor | None = None,
        guide: Guide | None = None,
    ) -> Tensor:
        """Mean loss over the anchors.

        Args:
            z1: anchors, (batch, dim).
            z2: positives of the same shape; row i belongs to row i of ``z1``.
            hard_negatives: any number of tensors of the same shape. Each of their rows is a candidate of every anchor.
                ``hard_negative_weight`` is added to the logits of anchor i with row i.
            ids: integers that name the sample of each embedding, one tensor (batch,) for each argument above. A
                candidate is not a negative of an anchor if it, or the anchor that it is the positive of, has the id of
                the anchor or of the anchor's positive. The loss of a row without negatives is 0. If the first two
                tensors are the same object, ``z1`` and ``z2`` are two views of one sample.
            samples: the places of the anchors in the data set, (batch,), for a rule with one temperature a sample.
            guide: its vectors, one tensor (batch, any dim) for each embedding above. A candidate that is more alike to
                the anchor than the threshold is no negative of it. The loss of a row without negatives is 0.
        """
        return self._compute((z1, z2, *hard_negatives), ids, samples, guide)

    def view_pairs(self, z1: Tensor, z2: Tensor, ids: Sequence[Tensor] | None) -> Pairs:
        """The pairs of unit vectors z1, z2 (n, dim) without hard negatives; ``ids`` as in :meth:`forward`."""
        raise NotImplementedError

    def pairs(self, z: Sequence[Tensor], ids: Sequence[Tensor] | None = None) -> tuple[Pairs, ...]:
        """The pairs of unit vectors (n, dim), in groups whose rows follow one another."""
        pairs = self.view_pairs(z[0], z[1], ids)
        return (with_hard_negatives(pairs, z[2:], self.gather, self.hard_negative_weight, ids and ids[2:]),)

    def row_loss(self, rows: Rows, z1: Tensor, z2: Tensor) -> Tensor:
        """The loss of each row, (rows,); rows of shape (..., rows) have losses of this shape."""
        return info_nce_rows(rows)

    def reference_rows(self, rows: Rows, z1: Tensor, z2: Tensor) -> Tensor:
        """The loss of each row under a constant temperature that this objective's rule is compared with, (..., rows).

        The objective's own, unless the objective is itself a rule.
        """
        return self.row_loss(rows, z1, z2)

    def sums_and_negatives(
        self,
        z: Sequence[Tensor],
        ids: Sequence[Tensor] | None = None,
        samples: Tensor | None = None,
        guide: Guide | None = None,
    ) -> tuple[RowSums, tuple[Negatives, ...]]:
        """The sums of each row of unit vectors (n, dim), and the negatives of each group of pairs."""
        groups = self.pairs(z, ids)
        if guide is not None:  # whose vectors have the places of the embeddings in rows and columns
            of_guide = self.pairs(guide.vectors)
            groups = tuple(guided(*both, guide.threshold) for both in zip(groups, of_guide, strict=True))
        if samples is not None:
            tau = self.temperature.anchor_temperatures(samples).to(z[0].dtype)  # (n, 1)
            groups = tuple(pairs._replace(tau=tau.repeat(len(pairs.anchors) // len(tau), 1)) for pairs in groups)
        by_group = [self._sums_of(pairs) for pairs in groups]
        if samples is not None:
            by_group = [sums._replace(samples=samples.repeat(len(sums.positive) // len(samples))) for sums in by_group]
        if len(by_group) == 1:
            return by_group[0], (groups[0].negatives,)
        return RowSums.of_all(by_group), tuple(pairs.negatives for pairs in groups)

    def _sums_of(self, pairs: Pairs) -> RowSums:
        if pairs.spared.any:
            counts = self.gather(torch.stack(pairs.negatives.spared_counts()).unsqueeze(0)).sum(0)  # (2,)
            self.duplicates = self.duplicates.to(counts.device) + counts[0]
            if self.guided is not None:
                self.guided = self.guided.to(counts.device) + counts[1:]
        blockwise = blockwise_pays(pairs) if self.blockwise is None else self.blockwise
        form = blockwise_rows if blockwise else plain_rows
        return form(pairs, self.temperature, self.detach_temperature)

    def _compute(
        self,
        views: Sequence[Tensor],
        ids: Sequence[Tensor] | None = None,
        samples: Tensor | None = None,
        guide: Guide | None = None,
    ) -> Tensor:
        rule = self.temperature
        if any(z.ndim != 2 for z in views) or len({tuple(z.shape) for z in views}) != 1:
            shapes = ", ".join(str(tuple(z.shape)) for z in views)
            raise ValueError(f"embeddings must all have one shape (batch, dim), got {shapes}")
        if ids is not None and [tuple(i.shape) for i in ids] != [(len(z),) for z in views]:
            shapes = ", ".join(str(tuple(i.shape)) for i in ids)
            raise ValueError(f"ids must be one tensor ({len(views[0])},) for each of {len(views)} embeddings: {shapes}")
        if guide is not None and [len(g) for g in guide.vectors] != [len(z) for z in views]:
            shapes = ", ".join(str(tuple(g.shape)) for g in guide.vectors)
            raise ValueError(
                f"guide vectors: one ({len(views[0])}, any dim) for each of {len(views)} embeddings: {shapes}"
            )
        if self.negatives_from_batch and len(views[0]) * self.gather.world_size < 2 and len(views) < 3:
            raise ValueError("a batch of 1 pair has no negatives: the batch size must be at least 2")
        if rule.by_sample and (samples is None or tuple(samples.shape) != (len(views[0]),)):
            raise ValueError(
                f"{type(rule).__name__} needs samples=, the numbers ({len(views[0])},) of the batch's samples"
            )
        with torch.autocast(device_type=views[0].device.type, enabled=False):
            z = [unit_vectors(view) for view in views]
            if rule.needs_mean_positive:
                rule.observe(self.gather(positive_similarity(z[0], z[1]).detach()).mean())
            sums, negatives = self.sums_and_negatives(z, ids, samples if rule.by_sample else None, guide)
            weights = rule.weights(sums)

            def row_loss(sums: RowSums) -> Tensor:
                loss = self.row_loss(rule.rows(sums), z[0], z[1])
                return loss if weights is None else weights * loss

            if self.observer is not None:
                self.observer(z, sums, negatives, row_loss)
            loss = row_loss(sums)
            if ids is not None or guide is not None:
                loss = torch.where(sums.sums[:, 0] > NOTHING / 2, loss, 0)
            own = rule.own_loss(sums)
            if samples is not None and self.training:
                rule.update(sums, samples, self.gather)
            return loss.mean() if own is None else loss.mean() + own


class InfoNCELoss(ContrastiveLoss):
    """InfoNCE in one direction: find each anchor's positive among all positives of the batch.

    SimCSE's objective and the default for text. Equals sentence-transformers' MultipleNegativesRankingLoss (scale
    ``1 / tau``) at a constant temperature.

    Args:
        temperature: any temperature, or a number for a constant one. The paper's best STS row is
            ``ShiftedCosineTemperature(tau_min=0.05, tau_max=0.07, shift=-0.4)``; SimCSE's is 0.05.
        detach_temperature: whether the temperature is detached from the gradient.
        gather: the other processes; None for one process.
        hard_negative_weight: added to the logits of an anchor's own hard negatives, after the division by tau.
        blockwise: whether to compute the rows without the matrix of similarities; None does so above
            some millions of similarities.
        bidirectional: each positive also has to find its anchor among all anchors; the loss is the mean of both
            directions. Equals MultipleNegativesRankingLoss with both directions and a partition for each.

    Examples:
        >>> loss = InfoNCELoss(0.05)
        >>> z1, z2 = torch.randn(8, 16), torch.randn(8, 16)
        >>> loss(z1, z2).shape
        torch.Size([])
    """

    def __init__(
        self,
        temperature: PairRule | float,
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
        forward = super().pairs(z, ids)
        return (*forward, self.view_pairs(z[1], z[0], ids)) if self.bidirectional else forward


class NTXentLoss(ContrastiveLoss):
    """NT-Xent (SimCLR): both views are anchors, all other 2N - 1 views are candidates.

    The default for vision; the paper's pseudocode (Alg. vanilladystress) is
    ``NTXentLoss(CosineTemperature(0.1, 0.2), detach_temperature=True)``.

    Args:
        temperature: any temperature, or a number for a constant one.
        detach_temperature: whether the temperature is detached from the gradient.
        gather: the other processes; None for one process.
        blockwise: whether to compute the rows without the matrix of similarities; None does so above
            some millions of similarities.
        hard_negative_weight: added to the logits of an anchor's own hard negatives, after the division by tau.

    Examples:
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

    Examples:
        >>> loss = DCLLoss(0.1)
        >>> z1, z2 = torch.randn(8, 16), torch.randn(8, 16)
        >>> loss(z1, z2).shape
        torch.Size([])
    """

    def row_loss(self, rows: Rows, z1: Tensor, z2: Tensor) -> Tensor:
        return decoupled_rows(rows)


class DCLWLoss(DCLLoss):
    """DCL with von-Mises-Fisher weights (Yeh et al., ECCV 2022): far positives count more.

    The positive term of pair i is multiplied by ``w_i = 2 - N softmax_i(s_p / sigma)`` over the global batch, detached.

    Args:
        temperature: any temperature, or a number for a constant one.
        sigma: the width of the weights; positive. A large one gives DCL.
        detach_temperature: whether the temperature is detached from the gradient.
        gather: the other processes; None for one process.
        blockwise: whether to compute the rows without the matrix of similarities; None does so above
            some millions of similarities.
        hard_negative_weight: added to the logits of an anchor's own hard negatives, after the division by tau.

    Examples:
        >>> loss = DCLWLoss(0.1, sigma=0.5)
        >>> z1, z2 = torch.randn(8, 16), torch.randn(8, 16)
        >>> loss(z1, z2).shape
        torch.Size([])
    """

    def __init__(
        self,
        temperature: PairRule | float,
        sigma: float = 0.5,
        detach_temperature: bool = True,
        gather: Gather | None = None,
        blockwise: bool | None = None,
        hard_negative_weight: float = 0.0,
    ) -> None:
        super().__init__(temperature, detach_temperature, gather, blockwise, hard_negative_weight)
        if isinstance(sigma, bool) or not sigma > 0:  # True was probably meant for detach_temperature
            raise ValueError(f"sigma must be a positive number, got {sigma}")
        self.sigma = sigma

    def row_loss(self, rows: Rows, z1: Tensor, z2: Tensor) -> Tensor:
        similarity = self.gather(positive_similarity(z1, z2).detach())  # (N,)
        weight = 2 - len(similarity) * torch.softmax(similarity / self.sigma, dim=0)
        local = weight[own_columns(len(z1), self.gather, z1.device)]  # (n,)
        return decoupled_rows(rows, torch.cat([local, local]))


class MACLLoss(ContrastiveLoss):
    """Model-aware contrastive loss (Huang et al., ICML 2023): ``-sg(1 / (1 - P)) log P`` on the rows of InfoNCE.

    ``MACLLoss(tau_0, alpha, a_0)`` uses :class:`AlignmentAdaptiveTemperature`, as its paper does; the reweighting works
    with any other temperature too. Text: 0.05, 2, 0.8.

    Args:
        tau_0: temperature at the reference alignment.
        alpha: how strongly the temperature follows the alignment.
        a_0: the reference alignment.
        both_views: use the rows of NT-Xent instead.
        temperature: replaces the alignment-adaptive temperature and its three parameters.
        detach_temperature: whether the temperature is detached from the gradient.
        gather: the other processes; None for one process.
        blockwise: whether to compute the rows without the matrix of similarities; None does so above
            some millions of similarities.
        hard_negative_weight: added to the logits of an anchor's own hard negatives, after the division by tau.

    Raises:
        TemperatureError: when the adaptive temperature reaches 0, at a mean positive similarity of a_0 - 1/alpha.

    Examples:
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
        temperature: PairRule | float | None = None,
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

    def reference_rows(self, rows: Rows, z1: Tensor, z2: Tensor) -> Tensor:
        return info_nce_rows(rows)
