"""Reweighting of negatives, as other papers do it.

A reweighting maps a similarity s and its temperature tau to logits, ``s / tau`` by default. Each
paper's loss is :class:`~dystress_text.losses.objectives.InfoNCELoss` or ``NTXentLoss`` with its
reweighting and a constant temperature. A reweighting may have two logits, whose logsumexps
:meth:`Reweighting.denominator` combines.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dystress_text.losses.registry import LossPart, check_number, register
from dystress_text.losses.temperature import Temperature, as_temperature


class Reweighting(LossPart):
    """Logits ``s / tau``; the base of all reweightings.

    Args:
        temperature: a temperature, or a number for a constant one.

    Examples:
        >>> class Margin(Reweighting):
        ...     def positive_logit(self, similarity, tau):
        ...         return (similarity - 0.1) / tau
        >>> InfoNCELoss(Margin(0.5))(torch.eye(2), torch.eye(2))  # log(1 + exp(-0.9 / 0.5))
        tensor(0.1530)
    """

    def __init__(self, temperature: Temperature | float) -> None:
        super().__init__()
        if isinstance(temperature, Reweighting):
            raise ValueError(f"temperature must not be a reweighting, got {temperature}")
        self.temperature = as_temperature(temperature)

    def as_argument(self) -> LossPart | float:
        return self.temperature.as_argument() if type(self) is Reweighting else self

    def logits(self, similarity: Tensor, tau: Tensor) -> tuple[Tensor, ...]:
        """Return the logits of negatives, each of the shape of ``similarity``.

        Their logsumexps over each row go to :meth:`denominator`.
        """
        return (similarity / tau,)

    def positive_logit(self, similarity: Tensor, tau: Tensor) -> Tensor:
        """Return the logits of positives, (rows,)."""
        return similarity / tau

    def denominator(
        self, sums: Sequence[Tensor], positive: Tensor, similarity: Tensor, count: int
    ) -> tuple[Tensor, Tensor | float]:
        """Return the logarithms of the two parts of the softmax denominator.

        The first is the sum over the negatives, (rows,). The second is the weight of the positive,
        (rows,) or 0, without a gradient.

        Args:
            sums: logsumexps of :meth:`logits` over each row's negatives, (rows,) each.
            positive: logits of the positives, (rows,).
            similarity: similarities of the positives, (rows,).
            count: number of negatives in a row.
        """
        return sums[0], 0.0


TemperatureLike = Reweighting | Temperature | float


def as_reweighting(temperature: TemperatureLike) -> Reweighting:
    """Wrap a temperature or number in the plain reweighting; return a reweighting unchanged."""
    return temperature if isinstance(temperature, Reweighting) else Reweighting(temperature)


@register("hcl")
class HCLReweighting(Reweighting):
    """HCL (Robinson et al., ICLR 2021): weigh negatives by ``exp(beta l)``.

    Since some of the n negatives are really positives, the denominator has
    ``max((S - tau_plus n exp(l_p)) / (1 - tau_plus), n exp(l(-1)))`` with
    ``S = sum w exp(l) / mean w``. As in the authors' code, beta multiplies the logit, and the
    weights and their mean have a gradient. Published for images: beta 1 and tau_plus 0.1 at the
    temperature 0.5. At 0.05, usual for text, a row soon reaches the lower bound, where its
    negatives get no gradient.

    Args:
        temperature: a temperature, or a number for a constant one.
        beta: concentration of the weights on hard negatives; not negative. 0 gives the debiased
            loss.
        tau_plus: probability that a negative is of the anchor's class; in [0, 1).

    Examples:
        >>> hcl = InfoNCELoss(HCLReweighting(0.5, beta=1.0, tau_plus=0.1))
        >>> # S = 3, N = (3 - 0.3 exp(2)) / 0.9, log(1 + N / exp(2))
        >>> hcl(torch.eye(4), torch.eye(4))
        tensor(0.1113)
        >>> str(hcl)
        'infonce(hcl(0.5, beta=1, tau_plus=0.1))'
    """

    source = "HCL, contrastive learning with hard negatives (Robinson et al., ICLR 2021)"

    def __init__(
        self, temperature: Temperature | float, beta: float = 1.0, tau_plus: float = 0.1
    ) -> None:
        super().__init__(temperature)
        self.beta = check_number("beta", beta, "[0, inf)")
        self.tau_plus = check_number("tau_plus", tau_plus, "[0, 1)")

    def logits(self, similarity: Tensor, tau: Tensor) -> tuple[Tensor, ...]:
        logit = similarity / tau
        return (1 + self.beta) * logit, self.beta * logit

    def denominator(
        self, sums: Sequence[Tensor], positive: Tensor, similarity: Tensor, count: int
    ) -> tuple[Tensor, Tensor | float]:
        total = sums[0] - sums[1] + math.log(count)  # log S
        if self.tau_plus == 0:
            return total, 0.0
        # the false negatives' share of S
        log_share = math.log(self.tau_plus * count) + positive - total
        below = torch.where(log_share < 0, log_share, -1.0)  # elsewhere the bound applies
        estimate = total + torch.log1p(-below.exp()) - math.log1p(-self.tau_plus)
        least = torch.full_like(total, -1.0)
        bound = math.log(count) + least / self.temperature(least)
        return torch.where((log_share < 0) & (estimate > bound), estimate, bound), 0.0


@register("debiased")
class DebiasedReweighting(HCLReweighting):
    """Debiased contrastive loss (Chuang et al., NeurIPS 2020), the case ``beta=0`` of HCL.

    Args:
        temperature: a temperature, or a number for a constant one.
        tau_plus: probability that a negative is of the anchor's class; in [0, 1).

    Examples:
        >>> DebiasedReweighting(0.5, tau_plus=0.1)
        DebiasedReweighting(0.5, tau_plus=0.1)
        >>> without = InfoNCELoss(DebiasedReweighting(0.5, tau_plus=0.0))  # is InfoNCE
        >>> z = torch.eye(4)
        >>> torch.allclose(without(z, z), InfoNCELoss(0.5)(z, z))
        True
    """

    source = "Debiased contrastive loss (Chuang et al., NeurIPS 2020)"

    def __init__(self, temperature: Temperature | float, tau_plus: float = 0.1) -> None:
        super().__init__(temperature, 0.0, tau_plus)


@register("focal")
class FocalReweighting(Reweighting):
    """Focal-InfoNCE (Hou and Li, Findings of EMNLP 2023): logits ``s (s + margin) / tau``.

    The positive's logit is ``s^2 / tau``. Only the temperature is detached. The logit falls for
    ``s < -margin / 2``. Published for text: margin 0.3 at the temperature 0.05.

    Args:
        temperature: a temperature, or a number for a constant one.
        margin: added to the similarity; in [-2, 2).

    Examples:
        >>> # as InfoNCE: 1 squared is 1, 0 is 0
        >>> InfoNCELoss(FocalReweighting(0.5, margin=0.3))(torch.eye(2), torch.eye(2))
        tensor(0.1269)
    """

    source = "Focal-InfoNCE (Hou and Li, Findings of EMNLP 2023)"

    def __init__(self, temperature: Temperature | float, margin: float = 0.3) -> None:
        super().__init__(temperature)
        self.margin = check_number("margin", margin, "[-2, 2)")

    def logits(self, similarity: Tensor, tau: Tensor) -> tuple[Tensor, ...]:
        return (similarity / tau * (similarity + self.margin),)

    def positive_logit(self, similarity: Tensor, tau: Tensor) -> Tensor:
        return similarity / tau * similarity


@register("adnce")
class ADNCEReweighting(Reweighting):
    """ADNCE (Wu et al., NeurIPS 2023): weigh negatives by a Gaussian of their similarity.

    The negatives add ``sum w exp(l)`` to the denominator, with ``w = g(s) / mean g`` and ``g(s) =
    exp(-(s - mu)^2 / (2 sigma^2))``, detached. This is the authors' code for images. Published for
    sentences, with ``weigh_positive``: mu 0.4 and sigma 1 at the temperature 0.07 (BERT-base).

    Args:
        temperature: a temperature, or a number for a constant one.
        mu: similarity of the largest weight.
        sigma: width of the Gaussian; at least 1e-6.
        weigh_positive: whether the positive in the denominator has a weight too, and counts in the
            mean, as in the authors' code for sentences. The loss may then be negative. Needs
            ``infonce``, ``ntxent`` or ``queue``.

    Examples:
        >>> str(InfoNCELoss(ADNCEReweighting(0.07, mu=0.4, sigma=1.0, weigh_positive=True)))
        'infonce(adnce(0.07, mu=0.4, sigma=1, weigh_positive=True))'
        >>> # a single negative weighs 1: as InfoNCE
        >>> InfoNCELoss(ADNCEReweighting(0.5))(torch.eye(2), torch.eye(2))
        tensor(0.1269)
    """

    source = "ADNCE (Wu et al., NeurIPS 2023)"

    def __init__(
        self,
        temperature: Temperature | float,
        mu: float = 0.4,
        sigma: float = 1.0,
        *,
        weigh_positive: bool = False,
    ) -> None:
        super().__init__(temperature)
        self.mu = check_number("mu", mu, "(-1e3, 1e3)")
        self.sigma = check_number("sigma", sigma, "[1e-6, inf)")
        self.weigh_positive = weigh_positive

    def log_height(self, similarity: Tensor) -> Tensor:
        """Return the logarithm of the Gaussian, of the shape of ``similarity``."""
        return (similarity.detach() - self.mu).square().mul(-0.5 / self.sigma**2)

    def logits(self, similarity: Tensor, tau: Tensor) -> tuple[Tensor, ...]:
        log_height = self.log_height(similarity)
        return similarity / tau + log_height, log_height

    def denominator(
        self, sums: Sequence[Tensor], positive: Tensor, similarity: Tensor, count: int
    ) -> tuple[Tensor, Tensor | float]:
        if not self.weigh_positive:
            return sums[0] - (sums[1] - math.log(count)), 0.0
        log_height = self.log_height(similarity)
        total = torch.logaddexp(log_height, sums[1].detach())
        log_mean = total - math.log(count + 1)
        return sums[0] - log_mean, log_height - log_mean


@register("hardness")
class HardnessReweighting(Reweighting):
    """Hardness weights (Lan et al., "LLaVE", 2025, Eq. 5): logits ``l + strength sg(s)``.

    Equals sentence-transformers' MultipleNegativesRankingLoss with
    ``hardness_mode="all_negatives"`` at the temperature 0.05 (scale 20). LLaVE uses the strength 9,
    EmbeddingGemma (Schechter Vera et al., 2025) 5.

    Args:
        temperature: a temperature, or a number for a constant one.
        hardness_strength: factor of the detached similarity; not negative.

    Examples:
        >>> hardness = InfoNCELoss(HardnessReweighting(0.5, hardness_strength=9.0))
        >>> hardness(torch.eye(2), torch.eye(2))  # s = 0 adds nothing
        tensor(0.1269)
    """

    source = 'Hardness weights (Lan et al., "LLaVE", 2025, Eq. 5)'

    def __init__(self, temperature: Temperature | float, hardness_strength: float = 9.0) -> None:
        super().__init__(temperature)
        self.hardness_strength = check_number("hardness_strength", hardness_strength, "[0, inf)")

    def logits(self, similarity: Tensor, tau: Tensor) -> tuple[Tensor, ...]:
        return (similarity / tau + self.hardness_strength * similarity.detach(),)


@register("arctanh")
class ArctanhReweighting(Reweighting):
    """A loss without a temperature (Kim and Kim, 2025): logits ``ln((1 + s) / (1 - s))``.

    This is ``2 arctanh(s)``, for the positive too. Similarities are clamped to ``1 - 1e-6`` in
    absolute value, where the logit is 14.5; beyond, they have no gradient.

    Args:
        temperature: divides the logit. At 1, the default, the loss is the published one.

    Examples:
        >>> # the positives' logit is 14.5, that of the negatives 0
        >>> float(InfoNCELoss(ArctanhReweighting())(torch.eye(2), torch.eye(2))) < 1e-6
        True
    """

    source = "Temperature-free loss (Kim and Kim, 2025, arXiv 2501.17683)"

    def __init__(self, temperature: Temperature | float = 1.0) -> None:
        super().__init__(temperature)

    def logits(self, similarity: Tensor, tau: Tensor) -> tuple[Tensor, ...]:
        return (self.positive_logit(similarity, tau),)

    def positive_logit(self, similarity: Tensor, tau: Tensor) -> Tensor:
        most = 1 - 1e-6
        return 2 * similarity.clamp(-most, most).atanh() / tau
