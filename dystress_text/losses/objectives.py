"""Contrastive objectives; each takes any temperature, alone or in a reweighting of
:mod:`dystress_text.losses.reweighting`.

DySTreSS (Manna et al.) gives each pair a temperature of its own, a function of the pair's cosine
similarity s. The loss of an anchor with the positive p and the negatives n is

    L = -log( exp(s_p / tau(s_p)) / (exp(s_p / tau(s_p)) + sum_n exp(s_n / tau(s_n))) ).

A low temperature near s = 0 pushes unrelated pairs apart; a higher one for similar pairs spares
near-duplicates, which may be false negatives. :meth:`ContrastiveLoss.forward` computes L as
``-logsigmoid(s_p / tau - logsumexp(s_n / tau))``. An objective says which pairs it has
(:mod:`dystress_text.losses.pairs`) and what it makes of these two numbers. Above a size, the
similarities are formed block by block (:mod:`dystress_text.losses.blockwise`); loss and gradients
are the same. Embeddings need not be normalised. Everything runs in fp32 (fp64 for fp64 embeddings),
under autocast too. A zero vector has similarity 0 to everything.

By default the similarity is detached before tau is computed of it, as in the paper's pseudocode:
per anchor, the gradients by s are then ``p / tau`` for a negative and ``-(1 - p) / tau`` for the
positive, p being the softmax's probabilities. With ``detach_temperature=False`` tau is a part of
the gradient, as in the paper's theory: ``p (tau - s tau') / tau^2`` and ``-(1 - p) (tau - s tau') /
tau^2``.

Across processes, pass a :class:`~dystress_text.losses.gather.ProcessGather`. The loss is then the
mean over the process's own anchors; its average over the processes, and every parameter's gradient
after DistributedDataParallel's averaging, equal those of one process with the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from dystress_text.losses.blockwise import blockwise_logsumexps, blockwise_pays
from dystress_text.losses.gather import Gather, LocalGather
from dystress_text.losses.pairs import Pairs, both_view_pairs, first_view_pairs
from dystress_text.losses.registry import (
    LossError,
    LossPart,
    check_flag,
    check_number,
    parse,
    register,
)
from dystress_text.losses.reweighting import ADNCEReweighting, Reweighting, as_reweighting
from dystress_text.losses.run_temperatures import AlignmentAdaptiveTemperature
from dystress_text.losses.temperature import Temperature
from dystress_text.losses.vectors import positive_similarity, unit_vectors


class Objective(LossPart):
    """Base of all losses of the embeddings of views; without a ``gather`` there is one process.

    Examples:
        >>> isinstance(loss("infonce(0.05)"), Objective)
        True
    """

    def __init__(self, gather: Gather | None = None) -> None:
        super().__init__()
        self.gather: Gather = gather or LocalGather()


def loss(text: str, own_classes: bool = False) -> Objective:
    """The loss that a text such as ``dcl(cosine(0.1, 0.2))`` describes: ``loss(str(x)) == x``.

    Errors and ``own_classes`` are those of :func:`dystress_text.losses.registry.parse`.

    Examples:
        >>> dcl = loss("dcl(cosine(0.1, 0.2))")
        >>> dcl
        DCLLoss(CosineTemperature(0.1, 0.2))
        >>> loss(str(dcl)) == dcl
        True
    """
    part = parse(text, own_classes)
    if not isinstance(part, Objective):
        raise LossError(f"{part}: no loss by itself; an objective takes it, as in infonce({part})")
    return part


class ContrastiveLoss(Objective):
    """Base of the objectives with negatives: from embeddings to the mean loss of the anchors, for
    any temperature.

    Args:
        temperature: any temperature, or a number for a constant one; or a reweighting with its
            temperature.
        detach_temperature: whether the similarity is detached before the temperature is computed of
            it.
        gather: the other processes.
        blockwise: whether to compute without the matrix of similarities; None does so above some
            millions of them.
        hard_negative_weight: added to the logits of an anchor's own hard negatives, after the
            division by tau.

    Examples:
        >>> class Hinge(ContrastiveLoss):
        ...     def row_loss(self, positive, negatives, similarity):
        ...         return (negatives - positive + 1).clamp(min=0)
        >>> Hinge(0.5)(torch.eye(2), torch.eye(2))  # positives have the logit 2, negatives 0
        tensor(0.)
    """

    both_views = False  # whether both views are anchors, and all other views candidates
    negatives_from_batch = True  # not from a queue
    positive_in_denominator = False  # whether it is in row_loss's, where a reweighting may weigh it

    def __init__(
        self,
        temperature: Reweighting | Temperature | float,
        *,
        detach_temperature: bool = True,
        hard_negative_weight: float = 0.0,
        blockwise: bool | None = None,
        gather: Gather | None = None,
    ) -> None:
        super().__init__(gather)
        self.reweighting = as_reweighting(temperature)
        weighs = isinstance(self.reweighting, ADNCEReweighting) and self.reweighting.weigh_positive
        if weighs and not self.positive_in_denominator:
            name = type(self).__name__
            raise ValueError(f"weigh_positive: {name} has no positive in the denominator to weigh")
        check_flag("detach_temperature", detach_temperature)
        self.detach_temperature = detach_temperature
        check_number("hard_negative_weight", hard_negative_weight, "(-1e9, 1e9)")
        self.hard_negative_weight = hard_negative_weight
        if blockwise is not None:
            check_flag("blockwise", blockwise)
        self.blockwise = blockwise

    def forward(self, z1: Tensor, z2: Tensor, *hard_negatives: Tensor) -> Tensor:
        """Mean loss over the anchors.

        Args:
            z1: anchors, (batch, dim).
            z2: positives of the same shape; row i belongs to row i of ``z1``.
            hard_negatives: any number of tensors of the same shape. Each of their rows is a
                candidate of every anchor. ``hard_negative_weight`` is added to the logits of anchor
                i with row i.
        """
        with torch.autocast(device_type=z1.device.type, enabled=False):
            losses = []
            for pairs in self.pairs(self.prepare(z1, z2, *hard_negatives)):
                s = positive_similarity(pairs.anchors, pairs.positives)  # (rows,)
                losses.append(self.row_losses(s, self.logsumexps(pairs), pairs.negative_count))
            return torch.cat(losses).mean()

    def row_losses(self, similarity: Tensor, sums: Sequence[Tensor], count: int) -> Tensor:
        """The loss of each anchor, (rows,).

        Args:
            similarity: of its positive, (rows,).
            sums: :meth:`logsumexps` of its negatives, (rows,) each.
            count: its negatives.
        """
        positive = self.reweighting.positive_logit(
            similarity, self.tau(similarity)
        )  # (rows,), s / tau
        negatives = self.reweighting.negatives_logsumexp(
            sums, positive, similarity, count
        )  # (rows,)
        log_weight = self.reweighting.positive_log_weight(sums, similarity, count)
        if log_weight is None:
            return self.row_loss(positive, negatives, similarity)  # InfoNCE's: the cross-entropy
        return self.weighted_row_loss(positive, negatives, similarity, log_weight)

    def tau(self, similarity: Tensor) -> Tensor:
        """Temperature of each pair, of the same shape; by default without a gradient by the
        similarity.
        """
        if self.detach_temperature:
            similarity = similarity.detach()
        tau: Tensor = self.temperature(similarity)
        return tau

    def logsumexps(self, pairs: Pairs) -> Sequence[Tensor]:
        """The logsumexp of each row's negative logits, (rows,); a few of them for reweightings of other
        papers.
        """
        blockwise = self.blockwise
        if blockwise is None:
            blockwise = blockwise_pays(pairs)
        if blockwise:
            return blockwise_logsumexps(pairs, self.reweighting, self.detach_temperature)
        return self.logsumexps_of(pairs.similarity(), pairs)

    def logsumexps_of(self, similarity: Tensor, pairs: Pairs) -> list[Tensor]:
        """The same from the matrix of similarities, (rows, columns)."""
        logits = self.reweighting.logits(
            similarity, self.tau(similarity)
        )  # (rows, columns), s / tau
        return [
            pairs.mask_logits_(x.clone(), add_weight=k == 0).logsumexp(dim=1)
            for k, x in enumerate(logits)
        ]

    def row_loss(self, positive: Tensor, negatives: Tensor, similarity: Tensor) -> Tensor:
        """The loss of each anchor, (rows,): -log P, P the softmax probability of the positive among
        all candidates.

        Args:
            positive: its logit, (rows,); (..., rows) give losses of this shape.
            negatives: logsumexp of the logits of the negatives, same shape.
            similarity: of the positive, (rows,).
        """
        return -F.logsigmoid(positive - negatives)

    def weighted_row_loss(
        self, positive: Tensor, negatives: Tensor, similarity: Tensor, log_weight: Tensor
    ) -> Tensor:
        """:meth:`row_loss` where the positive weighs ``exp(log_weight)``, (rows,) without a
        gradient, in the denominator alone.
        """
        return self.row_loss(positive + log_weight, negatives, similarity) + log_weight

    @property
    def temperature(self) -> Temperature:
        """The temperature of all pairs."""
        return self.reweighting.temperature

    def argument(self, name: str) -> Any:
        return self.reweighting if name == "temperature" else super().argument(name)

    def learned(self) -> dict[str, float]:
        return self.temperature.learned()

    def prepare(self, *embeddings: Tensor) -> list[Tensor]:
        """Checked and normalised embeddings, (batch, dim) each; the temperature observes their mean
        similarity.
        """
        shapes = [tuple(z.shape) for z in embeddings]
        if len(set(shapes)) != 1 or len(shapes[0]) != 2:
            found = ", ".join(map(str, shapes))
            raise ValueError(f"embeddings must all have one shape (batch, dim), got {found}")
        single = len(embeddings) == 2 and len(embeddings[0]) * self.gather.world_size < 2
        if single and self.negatives_from_batch:
            raise ValueError("batch of 1 pair has no negatives: the batch size must be at least 2")
        units = [unit_vectors(z) for z in embeddings]
        if self.temperature.needs_mean_positive:
            positive = positive_similarity(units[0], units[1]).detach()
            self.temperature.observe(self.gather(positive).mean())
        return units

    def pairs(self, z: Sequence[Tensor]) -> list[Pairs]:
        """The pairs of unit vectors (n, dim), in groups."""
        view_pairs = both_view_pairs if self.both_views else first_view_pairs
        return [view_pairs(z[0], z[1], z[2:], self.gather, self.hard_negative_weight)]


@register("infonce")
class InfoNCELoss(ContrastiveLoss):
    """InfoNCE (van den Oord et al., 2018) in one direction: find each anchor's positive among those
    of the batch.

    SimCSE's objective and the default for text. Equals sentence-transformers'
    MultipleNegativesRankingLoss (scale ``1 / tau``) at a constant temperature.

    The paper's best STS row has ``ShiftedCosineTemperature(tau_min=0.05, tau_max=0.07,
    shift=-0.4)``, SimCSE 0.05.

    Args:
        temperature: as for :class:`ContrastiveLoss`, like the options that are not named here.
        bidirectional: each positive also has to find its anchor among all anchors; the loss is the
            mean of both directions; hard negatives are candidates of the first alone. Equals
            MultipleNegativesRankingLoss with both directions and a partition for each.

    Examples:
        >>> infonce = InfoNCELoss(0.5)
        >>> infonce(torch.eye(2), torch.eye(2))  # log(1 + exp(-1 / 0.5))
        tensor(0.1269)
        >>> infonce(torch.eye(2), torch.eye(2), -torch.eye(2))  # with hard negatives
        tensor(0.2539)
    """

    source = "InfoNCE (van den Oord et al., 2018)"
    positive_in_denominator = True

    def __init__(
        self,
        temperature: Reweighting | Temperature | float,
        *,
        bidirectional: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(temperature, **options)
        check_flag("bidirectional", bidirectional)
        self.bidirectional = bidirectional

    def pairs(self, z: Sequence[Tensor]) -> list[Pairs]:
        forward = super().pairs(z)
        if not self.bidirectional:
            return forward
        return [*forward, first_view_pairs(z[1], z[0], (), self.gather)]


@register("ntxent")
class NTXentLoss(ContrastiveLoss):
    """NT-Xent (SimCLR, Chen et al., ICML 2020): both views are anchors, all other 2N - 1 views are
    candidates.

    The default for vision; the paper's pseudocode (Alg. vanilladystress) is
    ``NTXentLoss(CosineTemperature(0.1, 0.2), detach_temperature=True)``.

    Examples:
        >>> ntxent = NTXentLoss(CosineTemperature(0.1, 0.2))
        >>> z1, z2 = torch.eye(8), torch.eye(8)
        >>> ntxent(z1, z2) == ntxent(z2, z1)
        tensor(True)
    """

    source = "NT-Xent (SimCLR, Chen et al., ICML 2020)"

    both_views = True
    positive_in_denominator = True


@register("dcl")
class DCLLoss(NTXentLoss):
    """Decoupled contrastive loss (Yeh et al., ECCV 2022): NT-Xent without the positive in the
    denominator.

    ``-s_p / tau + logsumexp`` over the 2N - 2 negatives of both views jointly, mean over both
    directions.

    Args:
        temperature: as for :class:`ContrastiveLoss`, like the options that are not named here.
        per_view: sum two logsumexps instead, each over the N - 1 negatives of one view, as DCLLoss
            of lightly did before June 2025. Hard negatives join those of the positive's view.

    Examples:
        >>> DCLLoss(0.5)(torch.eye(2), torch.eye(2))  # log(2) - 2
        tensor(-1.3069)
    """

    source = "Decoupled contrastive loss (Yeh et al., ECCV 2022)"
    positive_in_denominator = False

    def __init__(
        self,
        temperature: Reweighting | Temperature | float,
        *,
        per_view: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(temperature, **options)
        check_flag("per_view", per_view)
        self.per_view = per_view

    def pairs(self, z: Sequence[Tensor]) -> list[Pairs]:
        if not self.per_view:
            return super().pairs(z)
        if len(z[0]) * self.gather.world_size < 2:
            raise ValueError("per_view: batch of 1 pair has no negatives in the anchor's view")
        z1, z2, *hard_negatives = z
        weight = self.hard_negative_weight
        return [
            first_view_pairs(z1, z2, hard_negatives, self.gather, weight),
            first_view_pairs(z2, z1, hard_negatives, self.gather, weight),
            first_view_pairs(z1, z1, (), self.gather)._replace(positives=z2),
            first_view_pairs(z2, z2, (), self.gather)._replace(positives=z1),
        ]

    def row_loss(self, positive: Tensor, negatives: Tensor, similarity: Tensor) -> Tensor:
        # per view, the mean is over two rows of each anchor: half of this sum
        if self.per_view:
            negatives = 2 * negatives
        return negatives - positive


@register("dclw")
class DCLWLoss(DCLLoss):
    """DCL with von-Mises-Fisher weights (Yeh et al., ECCV 2022): far positives count more.

    The positive term of pair i is multiplied by ``w_i = 2 - N softmax_i(s_p / sigma)`` over the
    global batch, detached. ``per_view`` is that of :class:`DCLLoss`.

    Args:
        temperature: as for :class:`ContrastiveLoss`, like the options that are not named here.
        sigma: width of the weights; positive. A large one gives DCL.

    Examples:
        >>> DCLWLoss(0.5, sigma=0.5)(torch.eye(2), torch.eye(2))  # equal positives weigh 1: as DCL
        tensor(-1.3069)
    """

    source = "DCL with von-Mises-Fisher weights (Yeh et al., ECCV 2022)"

    def __init__(
        self, temperature: Reweighting | Temperature | float, sigma: float = 0.5, **options: Any
    ) -> None:
        super().__init__(temperature, **options)
        if isinstance(self.reweighting, ADNCEReweighting):
            raise ValueError("adnce does not go with dclw: each has a sigma for weights of its own")
        check_number("sigma", sigma, "(0, inf)")
        self.sigma = sigma

    def row_loss(self, positive: Tensor, negatives: Tensor, similarity: Tensor) -> Tensor:
        directions = 1 if self.per_view else 2  # among the rows; both have the same similarities
        of_all = self.gather(similarity[: len(similarity) // directions].detach())  # (N,)
        weight = 2 - len(of_all) * torch.softmax(of_all / self.sigma, dim=0)
        own = weight.chunk(self.gather.world_size)[self.gather.rank]  # (n,)
        return super().row_loss(own.repeat(directions) * positive, negatives, similarity)


@register("macl")
class MACLLoss(ContrastiveLoss):
    """Model-aware contrastive loss (Huang et al., ICML 2023): ``-sg(1 / (1 - P)) log P`` on the
    rows of InfoNCE.

    ``MACLLoss(tau_0, alpha, a_0)`` uses :class:`AlignmentAdaptiveTemperature`, as its paper does;
    the reweighting works with any other temperature too. Text: 0.05, 2, 0.8. The adaptive
    temperature raises a TemperatureError when it reaches 0, at a mean positive similarity of a_0 -
    1/alpha.

    Args:
        tau_0: the alignment-adaptive temperature where the mean positive similarity is ``a_0``.
        alpha: its relative slope.
        a_0: the similarity at ``tau_0``.
        both_views: use the rows of NT-Xent instead.
        temperature: replaces the alignment-adaptive temperature and its three parameters.
        options: as for :class:`ContrastiveLoss`.

    Examples:
        >>> macl = MACLLoss(0.05, alpha=2, a_0=0.8)
        >>> macl(torch.eye(2), torch.eye(2)).shape
        torch.Size([])
        >>> str(MACLLoss(temperature=CosineTemperature(0.05, 0.07)))
        'macl(temperature=cosine(0.05, 0.07))'
    """

    source = "Model-aware contrastive loss (Huang et al., ICML 2023)"
    positive_in_denominator = True

    def __init__(
        self,
        tau_0: float = 0.05,
        alpha: float = 2.0,
        a_0: float = 0.8,
        *,
        both_views: bool = False,
        temperature: Reweighting | Temperature | float | None = None,
        **options: Any,
    ) -> None:
        adaptive = AlignmentAdaptiveTemperature(tau_0, alpha, a_0)
        super().__init__(adaptive if temperature is None else temperature, **options)
        check_flag("both_views", both_views)
        self.tau_0 = tau_0
        self.alpha = alpha
        self.a_0 = a_0
        self.both_views = both_views
        self.of_paper = temperature is None

    def argument(self, name: str) -> Any:
        unused = ["temperature"] if self.of_paper else ["tau_0", "alpha", "a_0"]
        return None if name in unused else super().argument(name)

    def row_loss(self, positive: Tensor, negatives: Tensor, similarity: Tensor) -> Tensor:
        """With m = negatives - positive this is softplus(m) / sg(sigmoid(m)).

        Its derivative by m is exactly 1, and below m = -40 its value is 1 in every precision, so
        value and derivative are set apart: nothing can underflow.
        """
        margin = negatives - positive
        safe = margin.detach().clamp(min=-40)
        value = F.logsigmoid(-safe).neg() / torch.sigmoid(safe)
        return value + (margin - margin.detach())

    def weighted_row_loss(
        self, positive: Tensor, negatives: Tensor, similarity: Tensor, log_weight: Tensor
    ) -> Tensor:
        """P is the positive's share of the denominator, its weight included."""
        weighted = positive + log_weight
        others = torch.sigmoid((negatives - weighted).detach().clamp(min=-40))  # 1 - P
        return self.row_loss(weighted, negatives, similarity) + log_weight / others
