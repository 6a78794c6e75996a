"""Rules: what becomes of similarities and temperatures. The plain one divides; those of other
papers weigh negatives.

A rule maps a similarity s and its temperature tau to logits, ``s / tau`` by default. The objective
stays what it is. Each paper's loss is :class:`~dystress_text.losses.objectives.InfoNCELoss` or
``NTXentLoss`` with its rule and a constant temperature. A rule with two logits returns to the
objective what their two logsumexps amount to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from dystress_text.losses.registry import LossPart, check_flag, check_number, register
from dystress_text.losses.temperature import Temperature, as_temperature


class Rule(LossPart):
    """Logits ``s / tau``; the base of the other rules.

    Examples:
        >>> class Margin(Rule):
        ...     def positive_logit(self, similarity, tau):
        ...         return (similarity - 0.1) / tau
        >>> InfoNCELoss(Margin(0.5))(torch.eye(2), torch.eye(2))  # log(1 + exp(-0.9 / 0.5))
        tensor(0.1530)
    """

    def __init__(self, temperature: Temperature | float) -> None:
        super().__init__()
        if isinstance(temperature, Rule):
            raise ValueError(f"temperature must be no rule itself, got {temperature}")
        self.temperature = as_temperature(temperature)

    def as_argument(self) -> LossPart | float:
        return self.temperature.as_argument() if type(self) is Rule else self

    def logits(self, similarity: Tensor, tau: Tensor) -> tuple[Tensor, ...]:
        """The logits of negatives, whose logsumexps over each row :meth:`negatives_logsumexp`
        receives.
        """
        return (similarity / tau,)

    def positive_logit(self, similarity: Tensor, tau: Tensor) -> Tensor:
        """The logits of positives, (rows,)."""
        return similarity / tau

    def negatives_logsumexp(
        self, sums: Sequence[Tensor], positive: Tensor, similarity: Tensor, count: int
    ) -> Tensor:
        """The logarithm of what the negatives add to the softmax's denominator, (rows,).

        Args:
            sums: logsumexps of :meth:`logits` over each row's negatives, (rows,) each.
            positive: logits of the positives, (rows,).
            similarity: of the positives, (rows,).
            count: negatives in a row.
        """
        return sums[0]

    def positive_log_weight(
        self, sums: Sequence[Tensor], similarity: Tensor, count: int
    ) -> Tensor | None:
        """The logarithm of the positive's weight in the softmax's denominator, (rows,) without a
        gradient; None where it has none.

        The similarity is that of the positives, (rows,); the rest is as for
        :meth:`negatives_logsumexp`.
        """
        return None


def as_rule(temperature: Rule | Temperature | float) -> Rule:
    """A rule as it is; a temperature or a number in the plain rule."""
    return temperature if isinstance(temperature, Rule) else Rule(temperature)


@register("hcl")
class HardNegativeRule(Rule):
    """HCL, contrastive learning with hard negatives (Robinson et al., ICLR 2021): negatives weigh
    ``exp(beta l)``.

    n negatives count as ``N = max((S - tau_plus n exp(l_p)) / (1 - tau_plus), n exp(l(-1)))`` with
    ``S = sum w exp(l) / mean w``: some of them are really positives. As in the authors' code, beta
    multiplies the logit, and the weights and their mean are part of the gradient. Published for
    images: beta 1 and tau_plus 0.1 at the temperature 0.5. At text's 0.05 a row is soon at the
    bound, where its negatives get no gradient.

    Args:
        beta: concentration of the weights on hard negatives; not negative. With 0 it is the
            debiased loss.
        tau_plus: probability that a negative is of the anchor's class; in [0, 1).

    Examples:
        >>> hcl = InfoNCELoss(HardNegativeRule(0.5, beta=1.0, tau_plus=0.1))
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
        check_number("tau_plus", tau_plus, "[0, 1)")
        check_number("beta", beta, "[0, inf)")
        self.beta = beta
        self.tau_plus = tau_plus

    def logits(self, similarity: Tensor, tau: Tensor) -> tuple[Tensor, ...]:
        logit = similarity / tau
        return (1 + self.beta) * logit, self.beta * logit

    def negatives_logsumexp(
        self, sums: Sequence[Tensor], positive: Tensor, similarity: Tensor, count: int
    ) -> Tensor:
        total = sums[0] - sums[1] + math.log(count)  # log S
        if self.tau_plus == 0:
            return total
        # of the false negatives in S
        log_share = math.log(self.tau_plus * count) + positive - total
        below = torch.where(log_share < 0, log_share, -1.0)  # elsewhere the bound holds
        estimate = total + torch.log1p(-below.exp()) - math.log1p(-self.tau_plus)
        least = torch.full_like(total, -1.0)
        bound = math.log(count) + least / self.temperature(least)
        return torch.where((log_share < 0) & (estimate > bound), estimate, bound)


@register("debiased")
class DebiasedRule(HardNegativeRule):
    """Debiased contrastive loss (Chuang et al., NeurIPS 2020): :class:`HardNegativeRule` with
    ``beta=0``.

    Examples:
        >>> DebiasedRule(0.5, tau_plus=0.1)
        DebiasedRule(0.5, tau_plus=0.1)
        >>> without = InfoNCELoss(DebiasedRule(0.5, tau_plus=0.0))  # is InfoNCE
        >>> z = torch.eye(4)
        >>> torch.allclose(without(z, z), InfoNCELoss(0.5)(z, z))
        True
    """

    source = "Debiased contrastive loss (Chuang et al., NeurIPS 2020)"

    def __init__(self, temperature: Temperature | float, tau_plus: float = 0.1) -> None:
        super().__init__(temperature, 0.0, tau_plus)


@register("focal")
class FocalRule(Rule):
    """Focal-InfoNCE (Hou and Li, Findings of EMNLP 2023): logits ``s (s + margin) / tau``, positive
    ``p^2 / tau``.

    Nothing but the temperature is detached. The logit falls for ``s < -margin / 2``. Published for
    text: margin 0.3 at the temperature 0.05.

    Examples:
        >>> # as InfoNCE: 1 squared is 1, 0 is 0
        >>> InfoNCELoss(FocalRule(0.5, margin=0.3))(torch.eye(2), torch.eye(2))
        tensor(0.1269)
    """

    source = "Focal-InfoNCE (Hou and Li, Findings of EMNLP 2023)"

    def __init__(self, temperature: Temperature | float, margin: float = 0.3) -> None:
        super().__init__(temperature)
        check_number("margin", margin, "[-2, 2)")
        self.margin = margin

    def logits(self, similarity: Tensor, tau: Tensor) -> tuple[Tensor, ...]:
        return (similarity / tau * (similarity + self.margin),)

    def positive_logit(self, similarity: Tensor, tau: Tensor) -> Tensor:
        return similarity / tau * similarity


@register("adnce")
class ADNCERule(Rule):
    """ADNCE (Wu et al., NeurIPS 2023): negatives weigh a Gaussian of their similarity, which has no
    gradient.

    ``sum w exp(l)`` with ``w = g(s) / mean g`` over the row's negatives, ``g(s) = exp(-(s - mu)^2 /
    (2 sigma^2))``, as in the authors' code for images. In their code for sentences the positive of
    the denominator weighs too, and the mean is over it and the negatives: ``-l_p + log sum w
    exp(l)``, which may be below 0. Published with this form: mu 0.4 and sigma 1 at the temperature
    0.07 (BERT-base).

    ``weigh_positive`` is the form for sentences, for objectives with the positive in the
    denominator.

    Examples:
        >>> str(InfoNCELoss(ADNCERule(0.07, mu=0.4, sigma=1.0, weigh_positive=True)))
        'infonce(adnce(0.07, mu=0.4, sigma=1, weigh_positive=True))'
        >>> # a single negative weighs 1: as InfoNCE
        >>> InfoNCELoss(ADNCERule(0.5))(torch.eye(2), torch.eye(2))
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
        check_number("mu", mu, "(-1e3, 1e3)")
        check_number("sigma", sigma, "[1e-6, inf)")  # its square divides
        check_flag("weigh_positive", weigh_positive)
        self.mu = mu
        self.sigma = sigma
        self.weigh_positive = weigh_positive

    def log_height(self, similarity: Tensor) -> Tensor:
        """log g(s), of the same shape."""
        return (similarity.detach() - self.mu).square().mul(-0.5 / self.sigma**2)

    def logits(self, similarity: Tensor, tau: Tensor) -> tuple[Tensor, ...]:
        log_height = self.log_height(similarity)
        return similarity / tau + log_height, log_height

    def negatives_logsumexp(
        self, sums: Sequence[Tensor], positive: Tensor, similarity: Tensor, count: int
    ) -> Tensor:
        return sums[0] - self.log_mean(sums, similarity, count)

    def positive_log_weight(
        self, sums: Sequence[Tensor], similarity: Tensor, count: int
    ) -> Tensor | None:
        if not self.weigh_positive:
            return None
        return self.log_height(similarity) - self.log_mean(sums, similarity, count)

    def log_mean(self, sums: Sequence[Tensor], similarity: Tensor, count: int) -> Tensor:
        """The logarithm of the mean g of each row, (rows,)."""
        if not self.weigh_positive:
            return sums[1] - math.log(count)
        total = torch.logaddexp(self.log_height(similarity), sums[1].detach())
        return total - math.log(count + 1)


@register("hardness")
class HardnessRule(Rule):
    """Hardness weights (Lan et al., "LLaVE", 2025, Eq. 5): logits ``l + strength sg(s)``.

    As sentence-transformers' MultipleNegativesRankingLoss with ``hardness_mode="all_negatives"``.
    It cites LLaVE with the strength 9, and Schechter Vera et al., "EmbeddingGemma" (2025), with 5.
    Its scale is 20, the temperature 0.05.

    Examples:
        >>> hardness = InfoNCELoss(HardnessRule(0.5, hardness_strength=9.0))
        >>> hardness(torch.eye(2), torch.eye(2))  # s = 0 adds nothing
        tensor(0.1269)
    """

    source = 'Hardness weights (Lan et al., "LLaVE", 2025, Eq. 5)'

    def __init__(self, temperature: Temperature | float, hardness_strength: float = 9.0) -> None:
        super().__init__(temperature)
        check_number("hardness_strength", hardness_strength, "[0, inf)")
        self.hardness_strength = hardness_strength

    def logits(self, similarity: Tensor, tau: Tensor) -> tuple[Tensor, ...]:
        return (similarity / tau + self.hardness_strength * similarity.detach(),)
