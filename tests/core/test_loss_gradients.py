"""Gradients of whole losses: numeric differentiation of the loops over pairs, detached parts held fixed."""

import pytest
import torch
from core_cases import OBJECTIVES, TEMPERATURES, logits_of
from spec_formulas import adaptive_tau, apply, divide, macl_weights, numeric_gradient, simcse_rows, weighted_info_nce

from dystress_text.core import DCLLoss, InfoNCELoss, MACLLoss, NTXentLoss

FLAGS = pytest.mark.parametrize("detach", [True, False], ids=["detached", "in the graph"])


def views(n=3, dim=3):
    generator = torch.Generator().manual_seed(5)
    z1, z2, z3 = (torch.randn(n, dim, generator=generator, dtype=torch.float64) for _ in range(3))
    return [z1.requires_grad_(), (z1.detach() + 0.7 * z2).requires_grad_(), z3.requires_grad_()]


def assert_numeric_gradient(loss, function):
    """The gradient of loss(z1, z2) is that of function on the lists z1, z2, to 1e-8 of its largest entry."""
    z1, z2, _ = views()
    n = len(z1)
    expected = numeric_gradient(lambda z: function(z[:n], z[n:]), z1.tolist() + z2.tolist())
    expected = torch.tensor(expected, dtype=torch.float64)
    gradient = torch.cat(torch.autograd.grad(loss(z1, z2), (z1, z2)))
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-8 * float(expected.abs().max()))


@pytest.mark.parametrize("profile", TEMPERATURES)
def test_gradcheck(profile):
    for build in (InfoNCELoss, NTXentLoss, DCLLoss):
        loss = build(TEMPERATURES[profile][0], detach_temperature=False)
        z1, z2, hard = views()
        inputs = (z1, z2, hard) if build is InfoNCELoss else (z1, z2)
        assert torch.autograd.gradcheck(loss, inputs, fast_mode=True)


@pytest.mark.parametrize(("profile", "detach"), [("constant", True), ("shifted", True), ("shifted", False)])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_loss_gradient_is_numeric_with_detached_parts_held_fixed(objective, detach, profile):
    case, (temperature, tau) = OBJECTIVES[objective], TEMPERATURES[profile]
    z1, z2 = (z.tolist() for z in views()[:2])
    taus = apply(tau, case.rows(z1, z2))
    weights = case.weights(z1, z2, logits_of(case.rows(z1, z2), tau))  # always numbers

    def loss_of(z1, z2):
        rows = case.rows(z1, z2)
        return case.loss(divide(rows, taus if detach else apply(tau, rows)), weights)

    assert_numeric_gradient(case.build(temperature, detach_temperature=detach), loss_of)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_losses_detach_the_temperature_unless_told(objective):
    case, (temperature, tau) = OBJECTIVES[objective], TEMPERATURES["cosine"]
    z1, z2 = (z.tolist() for z in views()[:2])
    rows = case.rows(z1, z2)
    weights, taus = case.weights(z1, z2, logits_of(rows, tau)), apply(tau, rows)
    assert_numeric_gradient(case.build(temperature), lambda z1, z2: case.loss(divide(case.rows(z1, z2), taus), weights))


@FLAGS
def test_mean_positive_similarity_carries_no_gradient(detach):
    z1, z2 = (z.tolist() for z in views()[:2])
    tau = adaptive_tau(z1, z2, 0.1, 0.8, 0.6)
    weights = macl_weights(logits_of(simcse_rows(z1, z2), lambda s: tau))
    assert_numeric_gradient(
        MACLLoss(0.1, 0.8, 0.6, detach_temperature=detach),
        lambda z1, z2: weighted_info_nce(logits_of(simcse_rows(z1, z2), lambda s: tau), weights),
    )
