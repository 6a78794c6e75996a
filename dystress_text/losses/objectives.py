"""Contrastive objectives, each for any temperature and reweighting.

DySTreSS (Manna et al.) makes the temperature of a pair a function of its cosine similarity s. The
loss of an anchor with the positive p and the negatives n is

    L = -log( exp(s_p / tau(s_p)) / (exp(s_p / tau(s_p)) + sum_n exp(s_n / tau(s_n))) ).

A low temperature near s = 0 pushes unrelated pairs apart. A higher one for similar pairs spares
near-duplicates, which may be false negatives. :meth:`ContrastiveLoss.forward` computes L as
``-logsigmoid(s_p / tau - logsumexp(s_n / tau))``. An objective defines its pairs
(:mod:`dystress_text.losses.pairs`) and a function of these two terms. Large batches are computed
block by block (:mod:`dystress_text.losses.blockwise`) with the same loss and gradients. Embeddings
need not be normalised. All computation is in fp32 (fp64 for fp64 embeddings), under autocast too. A
zero vector has similarity 0 to every other.

By default the similarity is detached before it determines tau, as in the paper's pseudocode. With
softmax probabilities p, the gradient with respect to s is then ``p / tau`` for a negative and
``-(1 - p) / tau`` for the positive. With ``detach_temperature=False`` tau has a gradient, as in the
paper's theory: ``p (tau - s tau') / tau^2`` and ``-(1 - p) (tau - s tau') / tau^2``.

For several processes, pass a :class:`~dystress_text.losses.gather.ProcessGather`. The loss is then
the mean over the process's own anchors. Its average over the processes, and the gradients that
DistributedDataParallel averages, equal those of one process with the whole batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from dystress_text.losses.blockwise import blockwise_logsumexps, blockwise_pays
from dystress_text.losses.gather import Gather, LocalGather
from dystress_text.losses.pairs import Pairs, both_view_pairs, first_view_pairs
from dystress_text.losses.registry import (
    LossError,
    LossPart,
    check_number,
    parse,
    register,
)
from dystress_text.losses.reweighting import TemperatureLike, as_reweighting
from dystress_text.losses.temperature import Temperature
from dystress_text.losses.vectors import positive_similarity, unit_vectors


class Objective(LossPart):
    """Base of all losses on the embeddings of views.

    Args:
        gather: collects rows of all processes; None for a single process.

    Examples:
        >>> isinstance(parse_loss("infonce(0.05)"), Objective)
        True
    """

    # for pre-training on images: the task, and its options that apply to this objective
    task: ClassVar[str] = "views"
    task_options: ClassVar[tuple[str, ...]] = ()

    def __init__(self, gather: Gather | None = None) -> None:
        super().__init__()
        self.gather: Gather = gather or LocalGather()

    def start(self, dim: int) -> None:
        """Allocate what depends on the dimension of embeddings; most need nothing."""

    def replace(self, **changes: Any) -> Self:
        copy = super().replace(**changes)
        if "gather" not in changes:  # a string does not have it
            copy.gather = self.gather
        return copy


def parse_loss(text: str, own_classes: bool = False) -> Objective:
    """Return the loss that a string such as ``dcl(cosine(0.1, 0.2))`` describes.

    Args:
        text: the string; ``parse_loss(str(x)) == x``.
        own_classes: whether a dotted name may import a module, as on a command line; never for a
            record.

    Raises:
        LossError: a part is unknown, incomplete or invalid.

    Examples:
        >>> dcl = parse_loss("dcl(cosine(0.1, 0.2))")
        >>> dcl
        DCLLoss(CosineTemperature(0.1, 0.2))
        >>> parse_loss(str(dcl)) == dcl
        True
    """
    part = parse(text, own_classes)
    if not isinstance(part, Objective):
        raise LossError(f"{part}: not a loss; wrap it in an objective, such as infonce({part})")
    return part


class ContrastiveLoss(Objective):
    """Base of the objectives with negatives.

    Args:
        temperature: a temperature, a number for a constant one, or a reweighting.
        detach_temperature: whether to detach the similarity before it determines the temperature.
        hard_negative_weight: added to the logits of an anchor and the hard negatives of its sample,
            after the division by tau.
        blockwise: whether to compute without the matrix of similarities; None does so for millions
            of them.
        gather: collects rows of all processes; None for a single process.

    Examples:
        >>> class Hinge(ContrastiveLoss):
        ...     def row_loss(self, positive, negatives, similarity):
        ...         return (negatives - positive + 1).clamp(min=0)
        >>> Hinge(0.5)(torch.eye(2), torch.eye(2))  # positives have the logit 2, negatives 0
        tensor(0.)
    """

    both_views = False  # whether both views are anchors, with all other views as candidates
    negatives_from_batch = True  # False for a queue

    def __init__(
        self,
        temperature: TemperatureLike,
        *,
        detach_temperature: bool = True,
        hard_negative_weight: float = 0.0,
        blockwise: bool | None = None,
        gather: Gather | None = None,
    ) -> None:
        super().__init__(gather)
        self.reweighting = as_reweighting(temperature)
        is_cross_entropy = type(self).row_loss is ContrastiveLoss.row_loss
        if getattr(self.reweighting, "weigh_positive", False) and not is_cross_entropy:
            raise ValueError("weigh_positive: needs the objective infonce, ntxent or queue")
        self.detach_temperature = detach_temperature
        self.hard_negative_weight = check_number(
            "hard_negative_weight", hard_negative_weight, "(-1e9, 1e9)"
        )
        self.blockwise = blockwise

    def forward(
        self, z1: Tensor, z2: Tensor, *hard_negatives: Tensor, texts: Tensor | None = None
    ) -> Tensor:
        """Return the mean loss over the anchors, a scalar.

        Args:
            z1: anchors, (batch, dim).
            z2: positives, (batch, dim); row i belongs to row i of ``z1``.
            hard_negatives: any number of tensors, (batch, dim). Each row is a candidate for every
                anchor; ``hard_negative_weight`` applies to row i with anchor i.
            texts: an id of each anchor and positive, (batch, 2), the same for equal texts. Samples
                that share a text are not negatives of each other, though their hard negatives are.
                ``debiased``, ``hcl`` and ``adnce`` still count them as negatives.

        Raises:
            ValueError: the shapes differ, or a single pair has no negatives.
        """
        with torch.autocast(device_type=z1.device.type, enabled=False):
            losses = []
            for pairs in self.pairs(self.prepare(z1, z2, *hard_negatives)):
                count = pairs.negative_count
                if texts is not None:
                    pairs = pairs.without_identical(texts, self.gather)
                s = positive_similarity(pairs.anchors, pairs.positives)  # (rows,)
                losses.append(self.row_losses(s, self.logsumexps(pairs), count))
            return torch.cat(losses).mean()

    def row_losses(self, similarity: Tensor, sums: Sequence[Tensor], count: int) -> Tensor:
        """Return the loss of each anchor, (rows,).

        Args:
            similarity: similarities of the positives, (rows,).
            sums: :meth:`logsumexps` of the negatives, (rows,) each.
            count: number of negatives of each anchor.
        """
        reweighting = self.reweighting
        positive = reweighting.positive_logit(similarity, self.tau(similarity))  # (rows,), s / tau
        # (rows,) each; ADNCE weighs the positive in the denominator
        negatives, log_weight = reweighting.denominator(sums, positive, similarity, count)
        return self.row_loss(positive + log_weight, negatives, similarity) + log_weight

    def tau(self, similarity: Tensor) -> Tensor:
        """Return the temperature of each pair, of the same shape."""
        if self.detach_temperature:
            similarity = similarity.detach()
        tau: Tensor = self.temperature(similarity)
        return tau

    def logsumexps(self, pairs: Pairs) -> Sequence[Tensor]:
        """Return the logsumexp over the negatives, (rows,), for each logit of the reweighting."""
        blockwise = self.blockwise
        if blockwise is None:
            blockwise = blockwise_pays(pairs)
        if blockwise:
            return blockwise_logsumexps(pairs, self.reweighting, self.detach_temperature)
        return self.logsumexps_of(pairs.similarity(), pairs)

    def logsumexps_of(self, similarity: Tensor, pairs: Pairs) -> list[Tensor]:
        """Return :meth:`logsumexps` from the matrix of similarities, (rows, columns)."""
        logits = self.reweighting.logits(similarity, self.tau(similarity))  # (rows, columns) each
        return [
            pairs.mask_logits_(x.clone(), add_weight=k == 0).logsumexp(dim=1)
            for k, x in enumerate(logits)
        ]

    def row_loss(self, positive: Tensor, negatives: Tensor, similarity: Tensor) -> Tensor:
        """Return the loss of each anchor: -log of the positive's softmax probability.

        Args:
            positive: logits of the positives, (rows,).
            negatives: logsumexps of the logits of the negatives, (rows,).
            similarity: similarities of the positives, (rows,).
        """
        return -F.logsigmoid(positive - negatives)

    @property
    def temperature(self) -> Temperature:
        """The temperature, without the reweighting around it."""
        return self.reweighting.temperature

    def argument(self, name: str) -> Any:
        return self.reweighting if name == "temperature" else super().argument(name)

    def learned(self) -> dict[str, float]:
        return self.temperature.learned()

    def prepare(self, *embeddings: Tensor) -> list[Tensor]:
        """Check and normalise embeddings, (batch, dim) each; the temperature observes them."""
        shapes = [tuple(z.shape) for z in embeddings]
        if len(set(shapes)) != 1 or len(shapes[0]) != 2:
            found = ", ".join(map(str, shapes))
            raise ValueError(f"embeddings must have the same shape (batch, dim), got {found}")
        single = len(embeddings) == 2 and len(embeddings[0]) * self.gather.world_size < 2
        if single and self.negatives_from_batch:
            raise ValueError("batch of 1 pair has no negatives: the batch size must be at least 2")
        units = [unit_vectors(z) for z in embeddings]
        if self.temperature.needs_mean_positive:
            positive = positive_similarity(units[0], units[1]).detach()
            self.temperature.observe(self.gather(positive).mean())
        return units

    def pairs(self, z: Sequence[Tensor]) -> list[Pairs]:
        """Return the pairs of unit vectors, (n, dim) each, in groups of anchors."""
        view_pairs = both_view_pairs if self.both_views else first_view_pairs
        return [self.with_hard_negatives(view_pairs(z[0], z[1], self.gather), z[2:])]

    def with_hard_negatives(self, pairs: Pairs, z: Sequence[Tensor]) -> Pairs:
        return pairs.with_hard_negatives(z, self.gather, self.hard_negative_weight)


@register("infonce")
class InfoNCELoss(ContrastiveLoss):
    """InfoNCE (van den Oord et al., 2018): find each anchor's positive in the batch.

    SimCSE's objective and the default for text. At a constant temperature it equals
    sentence-transformers' MultipleNegativesRankingLoss (scale ``1 / tau``). SimCSE uses 0.05, the
    paper's best STS row ``ShiftedCosineTemperature(tau_min=0.05, tau_max=0.07, shift=-0.4)``.

    The other arguments are those of :class:`ContrastiveLoss`.

    Args:
        temperature: a temperature, a number for a constant one, or a reweighting.
        bidirectional: whether to find each positive's anchor among all anchors too, and return the
            mean of both directions. Hard negatives are candidates in the first direction. Equals
            MultipleNegativesRankingLoss with both directions and a partition for each.

    Examples:
        >>> infonce = InfoNCELoss(0.5)
        >>> infonce(torch.eye(2), torch.eye(2))  # log(1 + exp(-1 / 0.5))
        tensor(0.1269)
        >>> infonce(torch.eye(2), torch.eye(2), -torch.eye(2))  # with hard negatives
        tensor(0.2539)
    """

    source = "InfoNCE (van den Oord et al., 2018)"

    def __init__(
        self,
        temperature: TemperatureLike,
        *,
        bidirectional: bool = False,
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
        self.bidirectional = bidirectional

    def pairs(self, z: Sequence[Tensor]) -> list[Pairs]:
        forward = super().pairs(z)
        if not self.bidirectional:
            return forward
        return [*forward, first_view_pairs(z[1], z[0], self.gather)]


@register("ntxent")
class NTXentLoss(ContrastiveLoss):
    """NT-Xent (SimCLR, Chen et al., ICML 2020): find each view's pair among all 2N - 1 others.

    The default for images. The paper's pseudocode (Alg. vanilladystress) is
    ``NTXentLoss(CosineTemperature(0.1, 0.2))``. The arguments are those of
    :class:`ContrastiveLoss`.

    Examples:
        >>> ntxent = NTXentLoss(CosineTemperature(0.1, 0.2))
        >>> z1, z2 = torch.eye(8), torch.eye(8)
        >>> ntxent(z1, z2) == ntxent(z2, z1)
        tensor(True)
    """

    source = "NT-Xent (SimCLR, Chen et al., ICML 2020)"
    both_views = True


@register("dcl")
class DCLLoss(NTXentLoss):
    """DCL (Yeh et al., ECCV 2022): NT-Xent without the positive in the denominator.

    ``-s_p / tau + logsumexp`` over the 2N - 2 negatives of both views.

    The other arguments are those of :class:`ContrastiveLoss`.

    Args:
        temperature: a temperature, a number for a constant one, or a reweighting.
        per_view: whether to sum two logsumexps instead, each over the N - 1 negatives of one view,
            as lightly's DCLLoss did before June 2025. Hard negatives join the positive's view.

    Examples:
        >>> DCLLoss(0.5)(torch.eye(2), torch.eye(2))  # log(2) - 2
        tensor(-1.3069)
    """

    source = "Decoupled contrastive loss (Yeh et al., ECCV 2022)"

    def __init__(
        self,
        temperature: TemperatureLike,
        *,
        per_view: bool = False,
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
        self.per_view = per_view

    def pairs(self, z: Sequence[Tensor]) -> list[Pairs]:
        if not self.per_view:
            return super().pairs(z)
        z1, z2, *hard_negatives = z
        across = [first_view_pairs(z1, z2, self.gather), first_view_pairs(z2, z1, self.gather)]
        return [
            *(self.with_hard_negatives(pairs, hard_negatives) for pairs in across),
            first_view_pairs(z1, z1, self.gather)._replace(positives=z2),
            first_view_pairs(z2, z2, self.gather)._replace(positives=z1),
        ]

    def row_loss(self, positive: Tensor, negatives: Tensor, similarity: Tensor) -> Tensor:
        if self.per_view:  # each anchor has two rows: their mean is half the sum
            negatives = 2 * negatives
        return negatives - positive


@register("dclw")
class DCLWLoss(DCLLoss):
    """DCL with von-Mises-Fisher weights (Yeh et al., ECCV 2022): distant positives count more.

    The positive term of pair i is multiplied by ``w_i = 2 - N softmax_i(s_p / sigma)`` over the
    global batch, detached.

    The other arguments are those of :class:`DCLLoss`.

    Args:
        temperature: a temperature, a number for a constant one, or a reweighting.
        sigma: width of the weights; positive. A large one gives DCL.

    Examples:
        >>> DCLWLoss(0.5, sigma=0.5)(torch.eye(2), torch.eye(2))  # equal positives weigh 1: as DCL
        tensor(-1.3069)
    """

    source = "DCL with von-Mises-Fisher weights (Yeh et al., ECCV 2022)"

    def __init__(
        self,
        temperature: TemperatureLike,
        sigma: float = 0.5,
        *,
        per_view: bool = False,
        detach_temperature: bool = True,
        hard_negative_weight: float = 0.0,
        blockwise: bool | None = None,
        gather: Gather | None = None,
    ) -> None:
        super().__init__(
            temperature,
            per_view=per_view,
            detach_temperature=detach_temperature,
            hard_negative_weight=hard_negative_weight,
            blockwise=blockwise,
            gather=gather,
        )
        self.sigma = check_number("sigma", sigma, "(0, inf)")

    def row_loss(self, positive: Tensor, negatives: Tensor, similarity: Tensor) -> Tensor:
        directions = 1 if self.per_view else 2  # of the rows; both have the same similarities
        of_all = self.gather(similarity[: len(similarity) // directions].detach())  # (N,)
        weight = 2 - len(of_all) * torch.softmax(of_all / self.sigma, dim=0)
        local = weight.chunk(self.gather.world_size)[self.gather.rank]  # (n,)
        return super().row_loss(local.repeat(directions) * positive, negatives, similarity)


@register("macl")
class MACLLoss(ContrastiveLoss):
    """Model-aware contrastive loss (Huang et al., ICML 2023): ``-sg(1 / (1 - P)) log P``.

    P is the softmax probability of InfoNCE. The paper's temperature for text is
    ``AlignmentAdaptiveTemperature(0.05, alpha=2, a_0=0.8)``.

    The other arguments are those of :class:`ContrastiveLoss`.

    Args:
        temperature: a temperature, a number for a constant one, or a reweighting.
        both_views: whether to use the pairs of NT-Xent.

    Examples:
        >>> macl = MACLLoss(AlignmentAdaptiveTemperature(0.05, alpha=2, a_0=0.8))
        >>> macl(torch.eye(2), torch.eye(2)).shape
        torch.Size([])
    """

    source = "Model-aware contrastive loss (Huang et al., ICML 2023)"

    def __init__(
        self,
        temperature: TemperatureLike,
        *,
        both_views: bool = False,
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
        self.both_views = both_views

    def row_loss(self, positive: Tensor, negatives: Tensor, similarity: Tensor) -> Tensor:
        """Return softplus(m) / sg(sigmoid(m)) with m = negatives - positive.

        Its derivative by m is exactly 1, and below m = -40 its value is 1 in every precision. Value
        and derivative are computed separately, so that nothing underflows.
        """
        margin = negatives - positive
        safe = margin.detach().clamp(min=-40)
        value = F.logsigmoid(-safe).neg() / torch.sigmoid(safe)
        return value + (margin - margin.detach())
