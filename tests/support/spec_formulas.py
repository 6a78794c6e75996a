"""The formulas of the specification and of other papers as loops over scalars of torch, in fp64.

The tests compare the code with them. ``.detach()`` and ``.item()`` are where the authors detach, so
that autograd through a loop gives their gradient. A row is a pair: the similarity (or logit) of an
anchor's positive, and the list of those of its negatives. ``tau`` is a function of a similarity or,
for the losses of other papers, a number. Nothing here uses the package under test.
"""

import math

import torch

# ---- temperatures


def constant_tau(s, tau):
    return tau + 0 * s


def cosine_tau(s, low, high):
    return low + (high - low) / 2 * (1 + torch.cos(math.pi * (1 + s)))


def shifted_tau(s, low, high, shift, k=None):
    """Alg. 2; at shift 0 the branch with the plateau on s > 0. By default tau(-1) = tau(1)."""
    if k is None:
        k = (1 + abs(shift)) / 2
    in_dip = s <= -shift if shift <= 0 else s >= -shift
    if not in_dip:
        return high + 0 * s
    return low + (high - low) / 2 * (1 + torch.cos(math.pi / k * (shift + s)))


def one_sided_tau(s, low, high, shift):
    """Version 3: half a cosine from low at -1 to high at the start of the plateau."""
    plateau = -shift
    if s >= plateau:
        return high + 0 * s
    return (low + high) / 2 - (high - low) / 2 * torch.cos(math.pi * (s + 1) / (plateau + 1))


def linear_tau(s, low, high):
    return low + (high - low) * abs(s)


def exponential_tau(s, low, high, c):
    return low + (high - low) * (1 - torch.exp(-c * abs(s))) / (1 - math.exp(-c))


def monotonic_tau(s, low, high):
    return low + (high - low) / 2 * (1 + torch.sin(math.pi * s / 2))


def even_ode_tau(s, low, high):
    def g(x):
        return x / torch.log1p(x / low) if x > 0 else low + 0 * x

    return low + (high - low) * (g(abs(s)) - low) / (g(torch.ones_like(s)) - low)


def temo_tau(s, tau_0, alpha):
    return tau_0 + alpha * ((1 + s) / 2).sqrt()


def adaptive_tau(z1, z2, tau_0, alpha, a_0):
    """MACL's temperature of this batch."""
    alignment = mean([similarity(x, y) for x, y in zip(z1, z2, strict=True)]).item()
    return tau_0 * (1 + alpha * (alignment - a_0))


# ---- rows


def similarity(x, y):
    return (x * y).sum() / ((x * x).sum().sqrt() * (y * y).sum().sqrt())


def simcse_rows(z1, z2):
    """N anchors: z1_i with the positive z2_i and all other z2_j as negatives, in the order of j."""
    rows = []
    for i, anchor in enumerate(z1):
        similarities = [similarity(anchor, candidate) for candidate in z2]
        positive = similarities.pop(i)
        rows.append((positive, similarities))
    return rows


def simclr_rows(z1, z2):
    """2N anchors: both views, each with the other view as its positive and the 2N - 2 views of
    others as negatives.
    """
    n = len(z1)
    z = [*z1, *z2]
    rows = []
    for a, anchor in enumerate(z):
        twin = (a + n) % (2 * n)
        negatives = [similarity(anchor, z[b]) for b in range(2 * n) if b not in (a, twin)]
        rows.append((similarity(anchor, z[twin]), negatives))
    return rows


def logits_of(rows, tau, detach=True):
    """s / tau, pair by pair."""

    def logit(s):
        argument = s.detach() if detach else s
        return s / tau(argument)

    logits = []
    for positive, negatives in rows:
        logits.append((logit(positive), [logit(s) for s in negatives]))
    return logits


def total(values):
    return sum(values[1:], values[0])


def mean(values):
    return total(values) / len(values)


# ---- losses of a row of logits


def info_nce(positive, negatives):
    """-log P as log(1 + sum of exp(negative - positive)), which is exact for P close to 1 too."""
    return torch.log1p(total([(v - positive).exp() for v in negatives]))


def decoupled(positive, negatives, weight=1.0):
    return total([v.exp() for v in negatives]).log() - weight * positive


def dclw_weight(s, positives, sigma=0.5):
    """2 - N softmax_i(s_p / sigma) over the positives of one direction; detached."""
    scores = [(x.detach() / sigma).exp() for x in positives]
    return 2 - len(scores) * (s.detach() / sigma).exp() / total(scores)


def macl(positive, negatives):
    """-sg(1 / (1 - P)) log P with P the probability of the positive."""
    loss = info_nce(positive, negatives)
    return loss / -torch.expm1(-loss.detach())


# ---- reweightings of other papers: losses of a row of similarities


def against(positive_logit, effective_negatives):
    """-log(e^p / (e^p + negatives)), exact where the negatives are close to 0."""
    return torch.log1p(effective_negatives / positive_logit.exp())


def hcl(pos, negs, tau, tau_plus, beta=0.0):
    """Robinson et al., ICLR 2021; with beta 0 the debiased loss of Chuang et al., NeurIPS 2020.

    The estimated false negatives are subtracted from the negatives' weighted sum, whose lower bound
    is its value at similarity -1. Nothing is detached.
    """
    weights = [(beta * s / tau).exp() for s in negs]
    terms = [w * (s / tau).exp() for w, s in zip(weights, negs, strict=True)]
    weighted = total(terms) / mean(weights)
    estimate = (weighted - tau_plus * len(negs) * (pos / tau).exp()) / (1 - tau_plus)
    least = len(negs) * (-torch.ones_like(pos) / tau).exp()
    return against(pos / tau, torch.maximum(estimate, least))


def focal(pos, negs, tau, margin):
    """Hou and Li, Focal-InfoNCE, Findings of EMNLP 2023. Nothing is detached."""
    return against(pos * pos / tau, total([(s * (s + margin) / tau).exp() for s in negs]))


def adnce(
    pos,
    negs,
    tau,
    mu,
    sigma,
    weigh_positive=False,
):
    """Wu et al., NeurIPS 2023. The weights are detached and have a mean of 1 over the negatives.

    In the form for sentences the positive counts among them, and the numerator has no weight.
    """
    weighed = [pos, *negs] if weigh_positive else negs
    heights = [math.exp(-((s.item() - mu) ** 2) / (2 * sigma**2)) for s in weighed]
    average = math.fsum(heights) / len(heights)
    terms = [h / average * (s / tau).exp() for h, s in zip(heights, weighed, strict=True)]
    if weigh_positive:
        return total(terms).log() - pos / tau
    return against(pos / tau, total(terms))


def hardness(pos, negs, tau, hardness_strength):
    """Lan et al., 2025, eq. 5; the weights are detached and not divided by tau."""
    terms = [(s / tau + hardness_strength * s.detach()).exp() for s in negs]
    return against(pos / tau, total(terms))


def arctanh(pos, negs, tau=1.0):
    """Kim and Kim, 2025: log-odds of (1 + s) / 2 in place of s / tau."""

    def odds(s):
        return ((1 + s) / (1 - s)).log() / tau

    return against(odds(pos), total([odds(s).exp() for s in negs]))


def rince(pos, negs, tau, q, lam):
    """Chuang et al., RINCE, CVPR 2022. Nothing is detached."""
    everything = total([(s / tau).exp() for s in [pos, *negs]])
    return -((pos / tau).exp() ** q) / q + (lam * everything) ** q / q


def siglip(pos, negs, scale, bias):
    """Zhai et al., SigLIP, ICCV 2023: the sum over the row's pairs."""

    def cost(agreement):  # -log sigmoid
        return torch.log1p((-agreement).exp())

    return cost(scale * pos + bias) + total([cost(-(scale * s + bias)) for s in negs])
