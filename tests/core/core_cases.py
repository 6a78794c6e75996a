"""Every temperature and every objective beside its formula in `spec_formulas`."""

from collections.abc import Callable
from dataclasses import dataclass

from spec_formulas import (
    Row,
    Vectors,
    apply,
    cosine_tau,
    dclw_weights,
    decoupled,
    divide,
    even_ode_tau,
    exponential_tau,
    linear_tau,
    macl_weights,
    monotonic_tau,
    shifted_tau,
    simclr_rows,
    simcse_rows,
    weighted_info_nce,
)

from dystress_text.core import (
    ConstantTemperature,
    ContrastiveLoss,
    CosineTemperature,
    DCLLoss,
    DCLWLoss,
    EvenODETemperature,
    ExponentialTemperature,
    InfoNCELoss,
    LinearTemperature,
    MACLLoss,
    MonotonicCosineTemperature,
    NTXentLoss,
    ShiftedCosineTemperature,
)

TEMPERATURES = {  # built once: none of them has state
    "constant": (ConstantTemperature(0.1), lambda s: 0.1),
    "cosine": (CosineTemperature(0.07, 0.2), lambda s: cosine_tau(s, 0.07, 0.2)),
    "shifted": (ShiftedCosineTemperature(0.1, 0.14), lambda s: shifted_tau(s, 0.1, 0.14, -0.4, 0.7)),
    "other side": (ShiftedCosineTemperature(0.1, 0.15, 0.2), lambda s: shifted_tau(s, 0.1, 0.15, 0.2, 0.6)),
    "linear": (LinearTemperature(0.1, 0.3), lambda s: linear_tau(s, 0.1, 0.3)),
    "exponential": (ExponentialTemperature(0.1, 0.3), lambda s: exponential_tau(s, 0.1, 0.3, 3.5)),
    "monotonic": (MonotonicCosineTemperature(0.1, 0.3), lambda s: monotonic_tau(s, 0.1, 0.3)),
    "even ODE": (EvenODETemperature(0.1, 0.3), lambda s: even_ode_tau(s, 0.1, 0.3)),
}


@dataclass(frozen=True)
class Objective:
    build: Callable[..., ContrastiveLoss]  # from a temperature and, by keyword, detach_temperature and gather
    rows: Callable[[Vectors, Vectors], list[Row]]  # similarities of the positive and the negatives of each anchor
    loss: Callable[[list[Row], list[float]], float]  # of rows of logits and one weight a row
    weights: Callable[[Vectors, Vectors, list[Row]], list[float]]  # of the views and the rows of logits


def macl(temperature, **options):
    return MACLLoss(temperature=temperature, **options)


def macl_on_both_views(temperature, **options):
    return MACLLoss(temperature=temperature, both_views=True, **options)


def ones(z1, z2, logits):
    return [1.0] * len(logits)


def dclw(z1, z2, logits):
    return dclw_weights(z1, z2, sigma=0.5)


def reweighting(z1, z2, logits):
    return macl_weights(logits)


OBJECTIVES = {
    "InfoNCE": Objective(InfoNCELoss, simcse_rows, weighted_info_nce, ones),
    "NT-Xent": Objective(NTXentLoss, simclr_rows, weighted_info_nce, ones),
    "DCL": Objective(DCLLoss, simclr_rows, decoupled, ones),
    "DCLW": Objective(DCLWLoss, simclr_rows, decoupled, dclw),
    "MACL": Objective(macl, simcse_rows, weighted_info_nce, reweighting),
    "MACL, both views": Objective(macl_on_both_views, simclr_rows, weighted_info_nce, reweighting),
}


def logits_of(rows, tau):
    return divide(rows, apply(tau, rows))
