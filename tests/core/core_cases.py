"""Every temperature and every objective beside its formula in `spec_formulas`."""

from collections.abc import Callable
from dataclasses import dataclass

import spec_formulas as spec
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


def logits_of(rows, tau):
    return spec.divide(rows, spec.apply(tau, rows))
