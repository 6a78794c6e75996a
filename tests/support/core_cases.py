"""Every temperature and every objective beside its formula in `spec_formulas`."""

from collections.abc import Callable
from dataclasses import dataclass

import spec_formulas as spec
import torch
from spec_formulas import Row, Vectors

from dystress_text import core
from dystress_text.core.comparison import compare

PROFILES = [  # all that take tau_min and tau_max
    core.CosineTemperature,
    core.ShiftedCosineTemperature,
    core.OneSidedCosineTemperature,
    core.LinearTemperature,
    core.ExponentialTemperature,
    core.MonotonicCosineTemperature,
    core.EvenODETemperature,
]
TEMPERATURES = {  # built once: none of them has state
    "constant": (core.ConstantTemperature(0.1), lambda s: 0.1),
    "cosine": (core.CosineTemperature(0.07, 0.2), lambda s: spec.cosine_tau(s, 0.07, 0.2)),
    "shifted": (core.ShiftedCosineTemperature(0.1, 0.14), lambda s: spec.shifted_tau(s, 0.1, 0.14, -0.4, 0.7)),
    "other side": (core.ShiftedCosineTemperature(0.1, 0.15, 0.2), lambda s: spec.shifted_tau(s, 0.1, 0.15, 0.2, 0.6)),
    "one side": (core.OneSidedCosineTemperature(0.1, 0.14, 0.2), lambda s: spec.one_sided_tau(s, 0.1, 0.14, -0.2)),
    "linear": (core.LinearTemperature(0.1, 0.3), lambda s: spec.linear_tau(s, 0.1, 0.3)),
    "exponential": (core.ExponentialTemperature(0.1, 0.3), lambda s: spec.exponential_tau(s, 0.1, 0.3, 3.5)),
    "monotonic": (core.MonotonicCosineTemperature(0.1, 0.3), lambda s: spec.monotonic_tau(s, 0.1, 0.3)),
    "even ODE": (core.EvenODETemperature(0.1, 0.3), lambda s: spec.even_ode_tau(s, 0.1, 0.3)),
}


@dataclass(frozen=True)
class Objective:
    build: Callable[..., core.ContrastiveLoss]  # from a temperature and, by keyword, detach_temperature and gather
    rows: Callable[[Vectors, Vectors], list[Row]]  # similarities of the positive and the negatives of each anchor
    loss: Callable[[list[Row], list[float]], float]  # of rows of logits and one weight a row
    weights: Callable[[Vectors, Vectors, list[Row]], list[float]]  # of the views and the rows of logits


def macl(temperature, **options):
    return core.MACLLoss(temperature=temperature, **options)


def macl_on_both_views(temperature, **options):
    return core.MACLLoss(temperature=temperature, both_views=True, **options)


def ones(z1, z2, logits):
    return [1.0] * len(logits)


def dclw(z1, z2, logits):
    return spec.dclw_weights(z1, z2, sigma=0.5)


def reweighting(z1, z2, logits):
    return spec.macl_weights(logits)


OBJECTIVES = {
    "InfoNCE": Objective(core.InfoNCELoss, spec.simcse_rows, spec.weighted_info_nce, ones),
    "NT-Xent": Objective(core.NTXentLoss, spec.simclr_rows, spec.weighted_info_nce, ones),
    "DCL": Objective(core.DCLLoss, spec.simclr_rows, spec.decoupled, ones),
    "DCLW": Objective(core.DCLWLoss, spec.simclr_rows, spec.decoupled, dclw),
    "MACL": Objective(macl, spec.simcse_rows, spec.weighted_info_nce, reweighting),
    "MACL, both views": Objective(macl_on_both_views, spec.simclr_rows, spec.weighted_info_nce, reweighting),
}


def weighted(build):
    return lambda temperature, **options: build(temperature, hard_negative_weight=0.7, **options)


def both_directions(temperature, **options):
    return core.InfoNCELoss(temperature, bidirectional=True, **options)


# what the objectives can be told beside their views: builders, and how many views they are given
VARIANTS = {
    "hard negatives": (weighted(core.InfoNCELoss), 4),
    "hard negatives, NT-Xent": (weighted(core.NTXentLoss), 3),
    "hard negatives, DCLW": (weighted(core.DCLWLoss), 4),
    "hard negatives, MACL": (weighted(macl), 3),
    "both directions": (both_directions, 2),
    "both directions, hard negatives": (weighted(both_directions), 3),
}


def logits_of(rows, tau):
    return spec.divide(rows, spec.apply(tau, rows))


def alike_views(n=5, dim=4):
    z = torch.randn(2, n, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    return z[0], 0.5 * z[0] + z[1]  # positives that are alike


def by_hand(similarities, tau, detach, loss_of, step=1e-5):
    """Every negative's (similarity, size of the gradient of the mean loss), by differences of fourth order."""
    fixed = spec.apply(tau, similarities)

    def loss(row, place, offset):
        logits = []
        for i, ((positive, negatives), (tau_p, taus)) in enumerate(zip(similarities, fixed, strict=True)):
            moved = [s + offset * ((i, j) == (row, place)) for j, s in enumerate(negatives)]
            at = taus if detach else [tau(s) for s in moved]
            logits.append((positive / tau_p, [s / t for s, t in zip(moved, at, strict=True)]))
        return loss_of(logits)

    found = []
    for i, (_, negatives) in enumerate(similarities):
        for j, s in enumerate(negatives):
            one, two = (loss(i, j, k * step) - loss(i, j, -k * step) for k in (1, 2))
            found.append((s, abs(8 * one - two) / (12 * step)))
    return found


def compared(loss, *z):
    """The comparison of one batch."""
    return compare(loss, z)
