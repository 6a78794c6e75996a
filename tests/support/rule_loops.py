"""Published rules for contrastive pairs as loops over scalars of torch in fp64, which the tests hold the code to.

A row is an anchor's similarity to its positive and the list of those to its negatives. Each rule returns the loss of
one row. `.detach()` or `.item()` stands where its authors detach, so that autograd through the loop gives their
gradient. Nothing here uses the package under test.
"""

import math

import torch
from torch import Tensor

Row = tuple[Tensor, list[Tensor]]


# ---- rows -----------------------------------------------------------------------------------------------------------


def similarity(x: Tensor, y: Tensor) -> Tensor:
    return (x * y).sum() / ((x * x).sum().sqrt() * (y * y).sum().sqrt())


def simcse_rows(z1: Tensor, z2: Tensor) -> list[Row]:
    """N anchors: z1_i with z2_i as its positive, all other z2_j as its negatives, in the order of j."""
    n = len(z1)
    return [(similarity(z1[i], z2[i]), [similarity(z1[i], z2[j]) for j in range(n) if j != i]) for i in range(n)]


def simclr_rows(z1: Tensor, z2: Tensor) -> list[Row]:
    """2N anchors: both views, each with the other view as its positive and the 2N - 2 views of others as negatives."""
    n, z = len(z1), [*z1, *z2]
    rows = []
    for a in range(2 * n):
        twin = (a + n) % (2 * n)
        rows.append((similarity(z[a], z[twin]), [similarity(z[a], z[b]) for b in range(2 * n) if b not in (a, twin)]))
    return rows


def total(values: list[Tensor]) -> Tensor:
    result = values[0]
    for value in values[1:]:
        result = result + value
    return result


def mean(values: list[Tensor]) -> Tensor:
    return total(values) / len(values)


def info_nce(positive_logit: Tensor, effective_negatives: Tensor) -> Tensor:
    """-log(e^p / (e^p + negatives)), exact where the negatives are next to nothing."""
    return torch.log1p(effective_negatives / positive_logit.exp())


# ---- weights and corrections of the negatives -----------------------------------------------------------------------


def corrected(pos: Tensor, negatives: Tensor, count: int, tau: float, tau_plus: float) -> Tensor:
    """What is left of the negatives' sum without its false negatives; at least its value at similarity -1."""
    estimate = (negatives - tau_plus * count * (pos / tau).exp()) / (1 - tau_plus)
    least = torch.tensor(count * math.exp(-1 / tau), dtype=torch.float64)
    return estimate if estimate > least else least


def debiased(pos: Tensor, negs: list[Tensor], tau: float, tau_plus: float) -> Tensor:
    """Chuang et al., Debiased contrastive learning, NeurIPS 2020. Nothing is detached."""
    negatives = total([(s / tau).exp() for s in negs])
    return info_nce(pos / tau, corrected(pos, negatives, len(negs), tau, tau_plus))


def hcl(pos: Tensor, negs: list[Tensor], tau: float, tau_plus: float, beta: float) -> Tensor:
    """Robinson et al., Contrastive learning with hard negative samples, ICLR 2021.

    Nothing is detached: the weights and their mean have a gradient. beta multiplies the logit s / tau.
    """
    weights = [(beta * s / tau).exp() for s in negs]
    weighted = total([w * (s / tau).exp() for w, s in zip(weights, negs, strict=True)])
    return info_nce(pos / tau, corrected(pos, weighted / mean(weights), len(negs), tau, tau_plus))


def focal(pos: Tensor, negs: list[Tensor], tau: float, margin: float) -> Tensor:
    """Hou and Li, Focal-InfoNCE, Findings of EMNLP 2023. Nothing is detached."""
    return info_nce(pos * pos / tau, total([(s * (s + margin) / tau).exp() for s in negs]))


def adnce(pos: Tensor, negs: list[Tensor], tau: float, mu: float, sigma: float, with_positive: bool = False) -> Tensor:
    """Wu et al., Understanding contrastive learning via distributionally robust optimization, NeurIPS 2023.

    The weights are detached and have a mean of 1 over the negatives. Their code for sentences weighs the positive in
    the denominator too, and takes the mean over all pairs: `with_positive`.
    """
    pairs = [pos, *negs] if with_positive else negs
    heights = [math.exp(-((s.item() - mu) ** 2) / (2 * sigma**2)) for s in pairs]
    average = math.fsum(heights) / len(heights)
    weighted = total([height / average * (s / tau).exp() for height, s in zip(heights, pairs, strict=True)])
    if with_positive:
        return weighted.log() - pos / tau
    return info_nce(pos / tau, weighted)


def hardness(pos: Tensor, negs: list[Tensor], tau: float, strength: float) -> Tensor:
    """sentence-transformers' MultipleNegativesRankingLoss with hardness weights, after Lan et al. 2025, eq. 5.

    The penalty is detached and is not divided by the temperature.
    """
    return info_nce(pos / tau, total([(s / tau + strength * s.detach()).exp() for s in negs]))


# ---- other losses of a row ------------------------------------------------------------------------------------------


def rince(pos: Tensor, negs: list[Tensor], tau: float, q: float, lam: float) -> Tensor:
    """Chuang et al., Robust contrastive learning against noisy views, CVPR 2022. Nothing is detached."""
    everything = total([(s / tau).exp() for s in [pos, *negs]])
    return -((pos / tau).exp() ** q) / q + (lam * everything) ** q / q


def siglip(pos: Tensor, negs: list[Tensor], scale: Tensor, bias: Tensor) -> Tensor:
    """Zhai et al., Sigmoid loss for language image pre-training, ICCV 2023: the sum over the row's pairs.

    The loss is the mean over rows, so that the sum over all pairs is divided by n.
    """

    def cost(agreement: Tensor) -> Tensor:  # -log sigmoid
        return torch.log1p((-agreement).exp())

    return cost(scale * pos + bias) + total([cost(-(scale * s + bias)) for s in negs])


# ---- robust temperatures --------------------------------------------------------------------------------------------


def robust(pos: Tensor, negs: list[Tensor], tau: Tensor, rho: float) -> Tensor:
    """Robust global contrastive loss of a row: Qiu et al., ICML 2023; with one tau for all Wei et al., FastCLIP."""
    return tau * mean([((s - pos) / tau).exp() for s in negs]).log() + tau * rho


def robust_kl(negs: list[Tensor], tau: Tensor) -> Tensor:
    """KL divergence of the negatives' softmax from equal weights; d robust / d tau is rho minus it."""
    exponentials = [(s / tau).exp() for s in negs]
    shares = [e / total(exponentials) for e in exponentials]
    return total([share * (len(negs) * share).log() for share in shares])


class Isogclr:
    """Qiu et al., Not all semantics are created equal, ICML 2023: a temperature for each sample, and their update.

    A step takes rows with the ids of their samples. Rows of the same sample, its views, share one state: the moving
    average of the mean exponential, the momentum of tau's gradient, and tau. A sample's first visit starts the average,
    as their first epoch does. `relative` takes similarities less the positive's, as the paper and their code for CLIP;
    their code for images does not. The two differ where gamma is below 1.
    """

    def __init__(
        self,
        rho: float,
        tau_init: float = 0.1,
        tau_min: float = 0.05,
        tau_max: float = 1.0,
        eta: float = 0.03,
        gamma: float = 0.8,
        beta_u: float = 0.5,
        clip: float = 3.0,
        relative: bool = False,
    ) -> None:
        self.rho, self.tau_init, self.tau_min, self.tau_max = rho, tau_init, tau_min, tau_max
        self.eta, self.gamma, self.beta_u, self.clip, self.relative = eta, gamma, beta_u, clip, relative
        self.average: dict[int, float] = {}
        self.momentum: dict[int, float] = {}
        self.tau: dict[int, float] = {}

    def step(self, ids: list[int], rows: list[Row]) -> list[Tensor]:
        """Losses of the rows at the temperatures before this step; the state afterwards is the next step's."""
        losses = []
        averages: dict[int, list[float]] = {}
        gradients: dict[int, list[float]] = {}
        for sample, (pos, negs) in zip(ids, rows, strict=True):
            loss, average, gradient = self._row(sample, pos, negs)
            losses.append(loss)
            averages.setdefault(sample, []).append(average)
            gradients.setdefault(sample, []).append(gradient)
        for sample in averages:
            self.average[sample] = math.fsum(averages[sample]) / len(averages[sample])
            gradient = math.fsum(gradients[sample]) / len(gradients[sample])
            gradient = min(max(gradient, -self.clip), self.clip)
            momentum = (1 - self.beta_u) * self.momentum.get(sample, 0.0) + self.beta_u * gradient
            moved = self.tau.get(sample, self.tau_init) - self.eta * momentum
            self.momentum[sample] = momentum
            self.tau[sample] = min(max(moved, self.tau_min), self.tau_max)
        return losses

    def _row(self, sample: int, pos: Tensor, negs: list[Tensor]) -> tuple[Tensor, float, float]:
        """Loss, new average, gradient of tau. Weights and tau are numbers, so nothing flows through them."""
        tau = self.tau.get(sample, self.tau_init)
        scores = [s - pos for s in negs] if self.relative else negs
        logits = [score.item() / tau for score in scores]
        now = math.fsum(math.exp(logit) for logit in logits) / len(logits)
        average = now
        if sample in self.average:
            average = (1 - self.gamma) * self.average[sample] + self.gamma * now
        weights = [
            math.exp(logit) / average / len(logits) for logit in logits
        ]  # their sum is 1 only where average is now
        loss = total([w * score for w, score in zip(weights, scores, strict=True)])
        gradient = math.log(average) + self.rho - math.fsum(w * x for w, x in zip(weights, logits, strict=True))
        return (loss if self.relative else loss - pos), average, gradient


# ---- a temperature of the pair --------------------------------------------------------------------------------------


def temo_tau(s: Tensor, tau_0: float, alpha: float) -> Tensor:
    """TeMo, temperature modulation, submission 9080 to ICLR 2026. The authors do not detach it."""
    return tau_0 + alpha * ((1 + s) / 2).sqrt()


def temo(pos: Tensor, negs: list[Tensor], tau_0: float, alpha: float) -> Tensor:
    """InfoNCE with the modulated temperature on every pair, the positive too."""
    return info_nce(pos / temo_tau(pos, tau_0, alpha), total([(s / temo_tau(s, tau_0, alpha)).exp() for s in negs]))
