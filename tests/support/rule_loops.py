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


def adnce(pos: Tensor, negs: list[Tensor], tau: float, mu: float, sigma: float) -> Tensor:
    """Wu et al., Understanding contrastive learning via distributionally robust optimization, NeurIPS 2023.

    The weights are detached and have a mean of 1 over the negatives.
    """
    heights = [math.exp(-((s.item() - mu) ** 2) / (2 * sigma**2)) for s in negs]
    average = math.fsum(heights) / len(heights)
    weighted = total([height / average * (s / tau).exp() for height, s in zip(heights, negs, strict=True)])
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
