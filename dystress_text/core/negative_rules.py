"""Rules that change what the negatives of a temperature weigh: each wraps a temperature and is used in its place.

``n`` negatives of similarity ``s``, a positive of similarity ``p``, and the temperature's logit ``l(s) = s / tau(s)``.
A rule replaces ``N = sum exp(l(s))`` or one of its logits; the objective stays what it is. The published losses are
those of :class:`~dystress_text.core.objectives.InfoNCELoss` or ``NTXentLoss`` with a constant temperature.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dystress_text.core.registry import Temperature
from dystress_text.core.rule import PairRule, Pull, Rows, RowSums
from dystress_text.core.temperature import constant_if_number


class NegativeRule(PairRule):
    """Base of these rules: a temperature, and what the rule does with its logits.

    Args:
        temperature: any temperature with one number for each pair, or a number for a constant one.

    Raises:
        ValueError: the temperature is one that is fitted to the batch itself.
    """

    def __init__(self, temperature: Temperature | float) -> None:
        super().__init__()
        temperature = constant_if_number(temperature)
        if not isinstance(temperature, Temperature) or temperature.sums > 1:
            raise ValueError(f"{type(self).__name__} cannot wrap {type(temperature).__name__}")
        self.temperature = temperature

    def forward(self, similarity: Tensor) -> Tensor:
        tau: Tensor = self.temperature(similarity)
        return tau

    def logits(self, similarity: Tensor, detach: bool = True, tau: Tensor | None = None) -> tuple[Tensor, ...]:
        return self.temperature.logits(similarity, detach, tau)

    def positive_logit(self, similarity: Tensor, detach: bool = True, tau: Tensor | None = None) -> Tensor:
        return self.temperature.positive_logit(similarity, detach, tau)

    def observe(self, mean_positive: Tensor) -> None:
        self.temperature.observe(mean_positive)

    def advance(self, epoch: float, run_fraction: float) -> None:
        self.temperature.advance(epoch, run_fraction)

    def keep(self) -> None:
        self.temperature.keep()

    def go_back(self) -> None:
        self.temperature.go_back()

    def end_points(self) -> dict[str, float]:
        return self.temperature.end_points()

    def own_values(self) -> dict[str, float]:
        """The rule's own parameters by option name."""
        return {}

    def values(self) -> dict[str, Any]:
        return {**self.own_values(), "temperature": type(self.temperature).__name__, **self.temperature.values()}

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.extra_repr()})"

    @property
    def needs_mean_positive(self) -> bool:
        return self.temperature.needs_mean_positive

    @property
    def needs_progress(self) -> bool:
        return self.temperature.needs_progress


class DebiasedRule(NegativeRule):
    """Debiased contrastive loss (Chuang et al., NeurIPS 2020): some negatives are really positives.

    ``N = max((sum exp(l) - tau_plus n exp(l_p)) / (1 - tau_plus), n exp(l(-1)))``, as in the authors' code; nothing is
    detached. Published for images: 0.1 at the temperature 0.5. At text's 0.05 the bound is reached as soon as
    ``tau log mean exp(l) < p - 0.115``, and a row at the bound gives no gradient to its negatives.

    Args:
        temperature: any temperature, or a number for a constant one.
        tau_plus: the probability that a negative is of the anchor's class; in [0, 1).
    """

    needs_counts = True

    def __init__(self, temperature: Temperature | float = 0.5, tau_plus: float = 0.1) -> None:
        super().__init__(temperature)
        _check("tau_plus", tau_plus, 0, 1, "it is a probability")
        self.tau_plus = tau_plus

    def pullback(self, similarity: Tensor, detach: bool = True, tau: Tensor | None = None) -> tuple[list[Tensor], Pull]:
        return self.temperature.pullback(similarity, detach, tau)

    def rows(self, sums: RowSums) -> Rows:
        return Rows(sums.positive, self._debiased(sums.sums[:, 0], sums.positive, sums.log_counts))

    def own_values(self) -> dict[str, float]:
        return {"tau_plus": self.tau_plus}

    def _debiased(self, total: Tensor, positive: Tensor, log_counts: Tensor) -> Tensor:
        """The logarithm of N, (rows,), from the logarithm of the sum over the negatives."""
        if self.tau_plus == 0:
            return total
        log_share = math.log(self.tau_plus) + log_counts + positive - total  # (rows,)
        below = torch.where(log_share < 0, log_share, -1.0)  # elsewhere the bound holds
        estimate = total + torch.log1p(-below.exp()) - math.log1p(-self.tau_plus)
        bound = log_counts + self.temperature.logits(torch.full_like(total, -1.0))[0]
        return torch.where((log_share < 0) & (estimate > bound), estimate, bound)


class HardNegativeRule(DebiasedRule):
    """HCL, contrastive learning with hard negatives (Robinson et al., ICLR 2021): negatives weigh ``exp(beta l(s))``.

    ``N`` is that of :class:`DebiasedRule` with ``sum w exp(l) / mean w`` in place of ``sum exp(l)``. As in the authors'
    code, beta multiplies the logit, and the weights and their mean are part of the gradient. Published for images: beta
    1 and tau_plus 0.1 at the temperature 0.5.

    Args:
        temperature: any temperature, or a number for a constant one.
        beta: the concentration of the weights; not negative. With 0 it is the debiased loss.
        tau_plus: the probability that a negative is of the anchor's class; in [0, 1).
    """

    sums = 2

    def __init__(self, temperature: Temperature | float = 0.5, beta: float = 1.0, tau_plus: float = 0.1) -> None:
        super().__init__(temperature, tau_plus)
        _check("beta", beta, 0, math.inf, "with 0 all negatives weigh the same")
        self.beta = beta

    def logits(self, similarity: Tensor, detach: bool = True, tau: Tensor | None = None) -> tuple[Tensor, ...]:
        logit = self.temperature.logits(similarity, detach, tau)[0]
        return (1 + self.beta) * logit, self.beta * logit

    def pullback(self, similarity: Tensor, detach: bool = True, tau: Tensor | None = None) -> tuple[list[Tensor], Pull]:
        (logit,), pull = self.temperature.pullback(similarity, detach, tau)
        beta = self.beta
        return (
            [(1 + beta) * logit, beta * logit],
            lambda gradients: pull([gradients[0].mul_(1 + beta).add_(gradients[1], alpha=beta)]),
        )

    def rows(self, sums: RowSums) -> Rows:
        log_counts = sums.log_counts
        total = sums.sums[:, 0] - sums.sums[:, 1] + log_counts
        return Rows(sums.positive, self._debiased(total, sums.positive, log_counts))

    def own_values(self) -> dict[str, float]:
        return {"beta": self.beta, "tau_plus": self.tau_plus}


class FocalRule(NegativeRule):
    """Focal-InfoNCE (Hou and Li, Findings of EMNLP 2023): logits ``s (s + margin) / tau``, positive ``p^2 / tau``.

    Nothing but the temperature is detached. The logit falls for ``s < -margin / 2``. Published for text: margin 0.3 at
    the temperature 0.05.

    Args:
        temperature: any temperature, or a number for a constant one.
        margin: the similarity at which a negative has the logit of a plain one is ``1 - margin``.
    """

    def __init__(self, temperature: Temperature | float = 0.05, margin: float = 0.3) -> None:
        super().__init__(temperature)
        _check("margin", margin, -2, 2, "it is added to a cosine similarity")
        self.margin = margin
        _warn_if_logit_falls(self)

    def logits(self, similarity: Tensor, detach: bool = True, tau: Tensor | None = None) -> tuple[Tensor, ...]:
        return (self.temperature.logits(similarity, detach, tau)[0] * (similarity + self.margin),)

    def positive_logit(self, similarity: Tensor, detach: bool = True, tau: Tensor | None = None) -> Tensor:
        return self.temperature.positive_logit(similarity, detach, tau) * similarity

    def pullback(self, similarity: Tensor, detach: bool = True, tau: Tensor | None = None) -> tuple[list[Tensor], Pull]:
        (logit,), pull = self.temperature.pullback(similarity, detach, tau)
        shifted = similarity + self.margin
        plain = logit.clone()

        def pull_both(gradients: Sequence[Tensor]) -> tuple[Tensor, list[Tensor | None]]:
            direct = gradients[0] * plain
            through_logit, more = pull([gradients[0] * shifted])
            return through_logit.add_(direct), more

        return [logit.mul_(shifted)], pull_both

    def own_values(self) -> dict[str, float]:
        return {"margin": self.margin}


class ADNCERule(NegativeRule):
    """ADNCE (Wu et al., NeurIPS 2023): negatives weigh a Gaussian of their similarity, which has no gradient.

    ``N = sum w exp(l)`` with ``w = g(s) / mean g`` over the row's negatives, ``g(s) = exp(-(s - mu)^2 / (2 sigma^2))``,
    as in the authors' code for images. Their code for sentences weighs the positive too and adds a hard negative's
    weight before the Gaussian. Published for text: mu 0.4 and sigma 1 at the temperature 0.07 (BERT-base).

    Args:
        temperature: any temperature, or a number for a constant one.
        mu: the similarity with the largest weight.
        sigma: width of the Gaussian; positive.
    """

    sums = 2
    needs_counts = True

    def __init__(self, temperature: Temperature | float = 0.07, mu: float = 0.4, sigma: float = 1.0) -> None:
        super().__init__(temperature)
        if not math.isfinite(mu):
            raise ValueError(f"mu must be a finite number, got {mu}")
        if isinstance(sigma, bool) or not 0 < sigma < math.inf:
            raise ValueError(f"sigma must be a positive number, got {sigma}")
        self.mu, self.sigma = mu, sigma
        _warn_if_logit_falls(self)

    def logits(self, similarity: Tensor, detach: bool = True, tau: Tensor | None = None) -> tuple[Tensor, ...]:
        weight = self._log_weight(similarity.detach())
        return self.temperature.logits(similarity, detach, tau)[0] + weight, weight

    def pullback(self, similarity: Tensor, detach: bool = True, tau: Tensor | None = None) -> tuple[list[Tensor], Pull]:
        (logit,), pull = self.temperature.pullback(similarity, detach, tau)
        return [logit.add_(self._log_weight(similarity))], pull

    def rows(self, sums: RowSums) -> Rows:
        return Rows(sums.positive, sums.sums[:, 0] - sums.sums[:, 1] + sums.log_counts)

    def own_values(self) -> dict[str, float]:
        return {"mu": self.mu, "sigma": self.sigma}

    def _log_weight(self, similarity: Tensor) -> Tensor:
        return (similarity - self.mu).square_().mul_(-0.5 / self.sigma**2)


class HardnessRule(NegativeRule):
    """The hardness weights of sentence-transformers' MultipleNegativesRankingLoss: logits ``l(s) + strength sg(s)``.

    Of all negatives, as with its ``hardness_mode="all_negatives"``. It cites Lan et al., "LLaVE" (2025, Eq. 5), with
    the strength 9, and Schechter Vera et al., "EmbeddingGemma" (2025), with 5. Its scale is 20, the temperature 0.05.

    Args:
        temperature: any temperature, or a number for a constant one.
        hardness_strength: of the penalty, which has no gradient; not negative.
    """

    def __init__(self, temperature: Temperature | float = 0.05, hardness_strength: float = 9.0) -> None:
        super().__init__(temperature)
        _check("hardness_strength", hardness_strength, 0, math.inf, "with 0 there is no penalty")
        self.hardness_strength = hardness_strength

    def logits(self, similarity: Tensor, detach: bool = True, tau: Tensor | None = None) -> tuple[Tensor, ...]:
        return (self.temperature.logits(similarity, detach, tau)[0] + self.hardness_strength * similarity.detach(),)

    def pullback(self, similarity: Tensor, detach: bool = True, tau: Tensor | None = None) -> tuple[list[Tensor], Pull]:
        (logit,), pull = self.temperature.pullback(similarity, detach, tau)
        return [logit.add_(similarity, alpha=self.hardness_strength)], pull

    def own_values(self) -> dict[str, float]:
        return {"hardness_strength": self.hardness_strength}


NEGATIVE_RULES: dict[str, type[NegativeRule]] = {
    "debiased": DebiasedRule,
    "hcl": HardNegativeRule,
    "focal": FocalRule,
    "adnce": ADNCERule,
    "hardness": HardnessRule,
}


def _check(name: str, value: float, low: float, high: float, why: str) -> None:
    if isinstance(value, bool) or not low <= value < high:
        raise ValueError(f"{name} must lie in [{low:g}, {high:g}), got {value}: {why}")


@torch.no_grad()
def _warn_if_logit_falls(rule: NegativeRule) -> None:
    """Warn where a rule's logit falls while the similarity rises; not for what its temperature says already."""
    grid = torch.linspace(-1, 1, 4001, dtype=torch.float64)
    slopes, plain = (one.logits(grid)[0].diff() for one in (rule, rule.temperature))
    falling = grid[1:][(slopes < -1e-9) & (plain > 0)]
    if len(falling) > 0:
        warnings.warn(
            f"{rule!r}: a negative's logit falls as s rises, between s = {float(falling[0]):.2f} and "
            f"{float(falling[-1]):.2f}",
            stacklevel=4,
        )
