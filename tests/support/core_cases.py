"""Every temperature and every objective beside its formula in `spec_formulas`."""

from collections.abc import Callable
from dataclasses import dataclass

import spec_formulas as spec
import torch
from spec_formulas import Row, Vectors

from dystress_text import core

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
    "TeMo": (core.TeMoTemperature(0.1, 0.2), lambda s: 0.1 + 0.2 * ((1 + s) / 2) ** 0.5),
}


def ones(z1, z2, logits):
    return [1.0] * len(logits)


def dclw(z1, z2, logits):
    return spec.dclw_weights(z1, z2, sigma=0.5)


def reweighting(z1, z2, logits):
    return spec.macl_weights(logits)


def both_directions(z1, z2):
    return spec.simcse_rows(z1, z2) + spec.simcse_rows(z2, z1)


@dataclass(frozen=True)
class Objective:
    build: Callable[..., core.ContrastiveLoss]  # from a temperature and options
    rows_of: Callable[[Vectors, Vectors], list[Row]] = spec.simcse_rows  # similarities of each anchor's pairs
    loss: Callable[[list[Row], list[float]], float] = spec.weighted_info_nce  # of rows of logits, one weight a row
    weights: Callable[[Vectors, Vectors, list[Row]], list[float]] = ones  # of the views and the rows of logits

    def rows(self, z1, z2, *hard):
        """Rows of similarities; hard negatives are candidates of all anchors but those of the backward direction."""
        rows = self.rows_of(z1, z2)
        anchors = [*z1, *([] if self.rows_of is both_directions else z2)]
        more = [[spec.similarity(a, h) for view in hard for h in view] for a in anchors]
        more += [[] for _ in rows[len(anchors) :]]
        return [(p, [*negatives, *others]) for (p, negatives), others in zip(rows, more, strict=False)]

    def logits(self, rows, taus, samples=0, hard=0, bonus=0.0):
        """Rows of logits; ``bonus`` goes to an anchor's own of the ``samples`` hard negatives in each of ``hard``."""
        found = spec.divide(rows, taus)
        for row, (_, negatives) in enumerate(found):
            own = range(len(negatives) - hard * samples + row % max(samples, 1), len(negatives), max(samples, 1))
            for place in own if hard and not (self.rows_of is both_directions and row >= samples) else ():
                negatives[place] += bonus
        return found


def macl(both_views):
    return lambda tau, **options: core.MACLLoss(temperature=tau, both_views=both_views, **options)


OBJECTIVES = {
    "InfoNCE": Objective(core.InfoNCELoss),
    "InfoNCE, both directions": Objective(
        lambda tau, **options: core.InfoNCELoss(tau, bidirectional=True, **options), both_directions
    ),
    "NT-Xent": Objective(core.NTXentLoss, spec.simclr_rows),
    "DCL": Objective(core.DCLLoss, spec.simclr_rows, spec.decoupled),
    "DCLW": Objective(core.DCLWLoss, spec.simclr_rows, spec.decoupled, dclw),
    "MACL": Objective(macl(False), weights=reweighting),
    "MACL, both views": Objective(macl(True), spec.simclr_rows, weights=reweighting),
}


def views(n, dim, count=2, alike=0.7, seed=0):
    """Correlated embeddings of very different lengths, in fp64."""
    generator = torch.Generator().manual_seed(100 * n + dim + seed)
    base = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    lengths = torch.logspace(-0.5, 0.5, n, dtype=torch.float64).unsqueeze(1)
    drawn = [base + alike * torch.randn(n, dim, generator=generator, dtype=torch.float64) for _ in range(count)]
    return [(lengths * z).requires_grad_() for z in drawn]


def lists(z):
    return [x.tolist() for x in z]


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
