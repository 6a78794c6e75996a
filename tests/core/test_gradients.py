"""Gradients: the paper's closed forms with similarities as leaves, and numeric differentiation of the loops over pairs."""

import math

import pytest
import torch
from spec_formulas import (
    adaptive_tau,
    apply,
    cosine_tau,
    dclw_weights,
    decoupled,
    divide,
    even_ode_tau,
    exponential_tau,
    info_nce,
    linear_tau,
    macl_weights,
    monotonic_tau,
    numeric_gradient,
    shifted_tau,
    simclr_rows,
    simcse_rows,
    slope,
    weighted_info_nce,
)

from dystress_text.core import (
    ConstantTemperature,
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
from dystress_text.core.objectives import (
    decoupled_rows,
    info_nce_rows,
    reweighted_rows,
    scaled_logits,
    split_rows,
)

TEMPERATURES = {
    "constant": (ConstantTemperature(0.2), lambda s: 0.2),
    "cosine": (CosineTemperature(0.1, 0.2), lambda s: cosine_tau(s, 0.1, 0.2)),
    "shifted": (ShiftedCosineTemperature(0.1, 0.14), lambda s: shifted_tau(s, 0.1, 0.14, -0.4, 0.7)),
    "other side": (ShiftedCosineTemperature(0.1, 0.15, 0.2), lambda s: shifted_tau(s, 0.1, 0.15, 0.2, 0.6)),
    "linear": (LinearTemperature(0.1, 0.3), lambda s: linear_tau(s, 0.1, 0.3)),
    "exponential": (ExponentialTemperature(0.1, 0.3), lambda s: exponential_tau(s, 0.1, 0.3, 3.5)),
    "monotonic": (MonotonicCosineTemperature(0.1, 0.3), lambda s: monotonic_tau(s, 0.1, 0.3)),
    "even ODE": (EvenODETemperature(0.1, 0.3), lambda s: even_ode_tau(s, 0.1, 0.3)),
}
FLAGS = pytest.mark.parametrize("detach", [True, False], ids=["detached", "in the graph"])
PROFILES = pytest.mark.parametrize("profile", TEMPERATURES)
POSITIVE, EXCLUDED = torch.tensor([1, 4, 0, 5]), torch.tensor([0, 2, 3, 4])  # columns of four anchors


def leaf_similarities():
    similarity = 1.9 * torch.rand(4, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64) - 0.95
    return similarity.requires_grad_()


def row_gradient(loss_of_rows, similarity, temperature, detach, excluded=None):
    rows = split_rows(scaled_logits(similarity, temperature, detach), POSITIVE, excluded)
    return torch.autograd.grad(loss_of_rows(rows).sum(), similarity)[0]


def probabilities(similarity, tau, excluded=None):
    """p_ij of each row; None in place of an excluded column."""
    table = []
    for i, row in enumerate(similarity.tolist()):
        left_out = None if excluded is None else int(excluded[i])
        exps = [None if j == left_out else math.exp(s / tau(s)) for j, s in enumerate(row)]
        total = math.fsum(e for e in exps if e is not None)
        table.append([None if e is None else e / total for e in exps])
    return table


def assert_gradient(gradient, expected, rtol=1e-9):
    expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(gradient, expected, rtol=rtol, atol=rtol * float(expected.abs().max()))


# ---- closed forms, with similarities as leaves ----------------------------------------------------------------------


@PROFILES
def test_slope_of_the_temperature(profile):
    temperature, tau = TEMPERATURES[profile]
    similarity = torch.tensor([-0.93, -0.61, -0.35, -0.11, 0.07, 0.23, 0.47, 0.88], dtype=torch.float64)
    similarity.requires_grad_()
    value = (temperature(similarity) + 0 * similarity).sum()  # the constant has no graph of its own
    expected = [slope(tau, s) for s in similarity.tolist()]
    assert_gradient(torch.autograd.grad(value, similarity)[0], expected, rtol=1e-8)


@PROFILES
@FLAGS
@pytest.mark.parametrize("excluded", [None, EXCLUDED], ids=["all columns", "self excluded"])
def test_info_nce_has_the_gradients_of_the_paper(profile, detach, excluded):
    temperature, tau = TEMPERATURES[profile]
    similarity = leaf_similarities()
    expected = []
    for i, row in enumerate(probabilities(similarity, tau, excluded)):
        expected.append([])
        for j, (s, p) in enumerate(zip(similarity[i].tolist(), row, strict=True)):
            t = tau(s)
            factor = 1 / t if detach else (t - s * slope(tau, s)) / t**2  # Eqs. delLdelCa and delLdelCb
            expected[i].append(0.0 if p is None else -factor * (1 - p) if j == POSITIVE[i] else factor * p)
    assert_gradient(row_gradient(info_nce_rows, similarity, temperature, detach, excluded), expected, rtol=1e-8)


@FLAGS
@pytest.mark.parametrize("tau", [0.05, 0.2, 1.0])
def test_constant_temperature_has_the_gradients_and_the_relative_penalty_of_the_paper(tau, detach):
    similarity = leaf_similarities()
    gradient = row_gradient(info_nce_rows, similarity, ConstantTemperature(tau), detach).tolist()
    for i, row in enumerate(similarity.tolist()):
        p = probabilities(similarity, lambda s: tau)[i]
        positive = int(POSITIVE[i])
        negatives = [k for k in range(6) if k != positive]
        total = math.fsum(math.exp(row[k] / tau) for k in negatives)
        at_positive = -math.fsum(p[k] for k in negatives) / tau  # Eq. dldcs1
        assert gradient[i][positive] == pytest.approx(at_positive, rel=1e-10)
        for j in negatives:
            assert gradient[i][j] == pytest.approx(p[j] / tau, rel=1e-10)  # Eq. dldcs2
            penalty = abs(gradient[i][j]) / abs(gradient[i][positive])
            assert penalty == pytest.approx(math.exp(row[j] / tau) / total, rel=1e-10)  # Eq. ubclpenalty


def test_gradient_in_the_vectors_is_that_of_the_paper():
    """Eq. difflczj2: anchors z_i against their positive z_i+ and all other z_j, with s_ij = z_i . z_j."""
    n, dim, tau = 5, 4, 0.3
    draws = torch.randn(2, n, dim, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    z, twins = torch.nn.functional.normalize(draws, dim=-1)
    z.requires_grad_()
    similarity = torch.cat([z @ z.T, (z * twins).sum(dim=1, keepdim=True)], dim=1)  # (n, n + 1), the positive last
    logits = scaled_logits(similarity, ConstantTemperature(tau))
    rows = split_rows(logits, torch.full((n,), n), excluded_column=torch.arange(n))
    gradient = torch.autograd.grad(info_nce_rows(rows).sum(), z)[0]

    zs, ts, ss = z.tolist(), twins.tolist(), similarity.tolist()

    def p(i, j):  # the probability of j as the positive of anchor i; j = n is its true one
        return math.exp(ss[i][j] / tau) / math.fsum(math.exp(ss[i][k] / tau) for k in range(n + 1) if k != i)

    expected = [
        [
            -(
                ts[i][d] / tau * (1 - p(i, n))
                - math.fsum(zs[j][d] / tau * (p(i, j) + p(j, i)) for j in range(n) if j != i)
            )
            for d in range(dim)
        ]
        for i in range(n)
    ]
    assert_gradient(gradient, expected, rtol=1e-10)


@pytest.mark.parametrize("excluded", [None, EXCLUDED], ids=["all columns", "self excluded"])
def test_decoupled_and_reweighted_rows_have_their_closed_forms(excluded):
    """Without the positive in the denominator, p_j / (1 - P) is left of p_j; the MACL weight cancels 1 - P."""
    tau, similarity, weights = 0.2, leaf_similarities(), torch.tensor([0.5, 1.0, -0.3, 1.7], dtype=torch.float64)
    plain = []
    for i, row in enumerate(probabilities(similarity, lambda s: tau, excluded)):
        rest = 1 - row[POSITIVE[i]]
        plain.append([0 if p is None else -1 / tau if j == POSITIVE[i] else p / rest / tau for j, p in enumerate(row)])
    temperature = ConstantTemperature(tau)
    for loss_of_rows in (decoupled_rows, reweighted_rows):
        assert_gradient(row_gradient(loss_of_rows, similarity, temperature, True, excluded), plain)
    weighted = [
        [g * float(w) if j == POSITIVE[i] else g for j, g in enumerate(plain[i])] for i, w in enumerate(weights)
    ]
    gradient = row_gradient(lambda rows: decoupled_rows(rows, weights), similarity, temperature, True, excluded)
    assert_gradient(gradient, weighted)


# ---- whole losses ---------------------------------------------------------------------------------------------------


def views(n=4, dim=3):
    generator = torch.Generator().manual_seed(5)
    z1, z2, z3 = (torch.randn(n, dim, generator=generator, dtype=torch.float64) for _ in range(3))
    return [z1.requires_grad_(), (z1.detach() + 0.7 * z2).requires_grad_(), z3.requires_grad_()]


@PROFILES
@pytest.mark.parametrize("build", [InfoNCELoss, NTXentLoss, DCLLoss])
def test_gradcheck(build, profile):
    loss = build(TEMPERATURES[profile][0], detach_temperature=False)
    z1, z2, hard = views()
    assert torch.autograd.gradcheck(loss, (z1, z2))
    if build is InfoNCELoss:
        assert torch.autograd.gradcheck(loss, (z1, z2, hard))


OBJECTIVES = {  # how it is built; its rows, its loss with weights that are numbers, and these weights
    "InfoNCE": (InfoNCELoss, simcse_rows, weighted_info_nce, None),
    "NT-Xent": (NTXentLoss, simclr_rows, weighted_info_nce, None),
    "DCL": (DCLLoss, simclr_rows, decoupled, None),
    "DCLW": (DCLWLoss, simclr_rows, decoupled, "dclw"),
    "MACL": (lambda t, **flag: MACLLoss(temperature=t, **flag), simcse_rows, weighted_info_nce, "macl"),
    "MACL, both views": (
        lambda t, **flag: MACLLoss(temperature=t, both_views=True, **flag),
        simclr_rows,
        weighted_info_nce,
        "macl",
    ),
}


@pytest.mark.parametrize("profile", ["constant", "cosine", "shifted"])
@FLAGS
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_loss_gradient_is_numeric_with_detached_parts_held_fixed(objective, detach, profile):
    build, kind, loss_of, weighting = OBJECTIVES[objective]
    temperature, tau = TEMPERATURES[profile]
    z1, z2, _ = views()
    n = len(z1)
    rows = kind(z1.tolist(), z2.tolist())
    taus = apply(tau, rows)
    weights = [1.0] * len(rows)
    if weighting == "dclw":
        weights = dclw_weights(z1.tolist(), z2.tolist(), 0.5)
    elif weighting == "macl":
        weights = macl_weights(divide(rows, taus))

    def loss_with_weights_fixed(z):
        moved = kind(z[:n], z[n:])
        return loss_of(divide(moved, taus if detach else apply(tau, moved)), weights)

    expected = numeric_gradient(loss_with_weights_fixed, z1.tolist() + z2.tolist())
    loss = build(temperature, detach_temperature=detach)(z1, z2)
    assert_gradient(torch.cat(torch.autograd.grad(loss, (z1, z2))), expected, rtol=1e-8)


@FLAGS
def test_mean_positive_similarity_carries_no_gradient(detach):
    z1, z2, _ = views()
    tau = adaptive_tau(z1.tolist(), z2.tolist(), 0.1, 0.8, 0.6)
    rows = simcse_rows(z1.tolist(), z2.tolist())
    weights = macl_weights(apply(lambda s: s / tau, rows))
    expected = numeric_gradient(
        lambda z: weighted_info_nce(apply(lambda s: s / tau, simcse_rows(z[:4], z[4:])), weights),
        z1.tolist() + z2.tolist(),
    )
    loss = MACLLoss(0.1, 0.8, 0.6, detach_temperature=detach)(z1, z2)
    assert_gradient(torch.cat(torch.autograd.grad(loss, (z1, z2))), expected, rtol=1e-8)


def test_losses_detach_the_temperature_unless_told():
    assert all(build(0.1).detach_temperature for build, *_ in OBJECTIVES.values())
    z1, z2, _ = views()
    info = NTXentLoss(TEMPERATURES["cosine"][0])(z1, z2)
    taus = apply(TEMPERATURES["cosine"][1], simclr_rows(z1.tolist(), z2.tolist()))
    expected = numeric_gradient(
        lambda z: info_nce(divide(simclr_rows(z[:4], z[4:]), taus)),
        z1.tolist() + z2.tolist(),
    )
    assert_gradient(torch.cat(torch.autograd.grad(info, (z1, z2))), expected, rtol=1e-8)
