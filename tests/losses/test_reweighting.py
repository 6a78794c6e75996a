"""Reweightings of negatives against loops over explicit pairs in fp64."""

from functools import partial

import pytest
import spec_formulas as spec
import torch
from loss_cases import FORMS, assert_same, value_and_gradients, views
from processes import losses_of_ranks

from dystress_text import losses

pytestmark = pytest.mark.usefixtures("small_blocks")

SENTENCES = {"mu": 0.4, "weigh_positive": True}
CASES = {  # class, loop, temperature and options; rows lie above and below the bound
    "debiased": (losses.DebiasedReweighting, spec.hcl, 0.5, {"tau_plus": 0.1}),
    "debiased, bound": (losses.DebiasedReweighting, spec.hcl, 0.2, {"tau_plus": 0.2}),
    "no bias": (losses.DebiasedReweighting, spec.hcl, 0.2, {"tau_plus": 0.0}),
    "hcl": (losses.HCLReweighting, spec.hcl, 0.5, {"beta": 1.0, "tau_plus": 0.1}),
    "focal": (losses.FocalReweighting, spec.focal, 0.2, {"margin": 0.3}),
    "adnce": (losses.ADNCEReweighting, spec.adnce, 0.2, {"mu": 0.4, "sigma": 0.5}),
    "sentences": (losses.ADNCEReweighting, spec.adnce, 0.2, {**SENTENCES, "sigma": 0.5}),
    "hardness": (losses.HardnessReweighting, spec.hardness, 0.2, {"hardness_strength": 3.0}),
    "arctanh": (losses.ArctanhReweighting, spec.arctanh, 1.0, {}),
}
LOW = {  # temperature 0.02, where fp32 holds neither exp(l) nor a small share of it
    "hcl": (losses.HCLReweighting, spec.hcl, 0.02, {"beta": 1.0, "tau_plus": 1e-6}),
    "focal": (losses.FocalReweighting, spec.focal, 0.02, {"margin": 0.3}),
    "sentences": (losses.ADNCEReweighting, spec.adnce, 0.02, {**SENTENCES, "sigma": 0.05}),
    "hardness": (losses.HardnessReweighting, spec.hardness, 0.02, {"hardness_strength": 9.0}),
}


def by_loop(rows, row_loss, inputs):
    return value_and_gradients(spec.mean([row_loss(*row) for row in rows]), inputs)


def with_gradients(loss, z, inputs=None):
    return value_and_gradients(loss(*z), inputs or z)


@pytest.mark.parametrize("name", CASES)
def test_reweighting_equals_its_loop(name):
    """Compare both forms and objectives, hard negatives, and two processes."""
    kind, row_loss, tau, options = CASES[name]
    reweighting = kind(tau, **options)
    row_loss = partial(row_loss, tau=tau, **options)
    z = views(6, 3, 3)
    pair = z[:2]
    infonce = by_loop(spec.simcse_rows(*pair), row_loss, pair)
    nt_xent = by_loop(spec.simclr_rows(*pair), row_loss, pair)
    for form in (False, True):
        assert_same(with_gradients(losses.InfoNCELoss(reweighting, blockwise=form), pair), infonce)
        assert_same(with_gradients(losses.NTXentLoss(reweighting, blockwise=form), pair), nt_xent)
    rows = spec.simcse_rows(*pair)
    for anchor, (_, negatives) in zip(z[0], rows, strict=True):
        negatives += [spec.similarity(anchor, hard) for hard in z[2]]
    assert_same(with_gradients(losses.InfoNCELoss(reweighting), z), by_loop(rows, row_loss, z))
    average = torch.stack(losses_of_ranks(losses.NTXentLoss, reweighting, pair, 2)).mean()
    assert_same([average], nt_xent[:1])


@FORMS
def test_rince_and_siglip_equal_their_loops(form):
    z = views(7, 3)
    expected = by_loop(spec.simcse_rows(*z), partial(spec.rince, tau=0.2, q=0.5, lam=0.01), z)
    assert_same(with_gradients(losses.RINCELoss(0.2, q=0.5, lam=0.01, blockwise=form), z), expected)
    loss = losses.SigLIPLoss(8.0, -3.0, blockwise=form).double()
    learned = [loss.temperature.log_scale, loss.reweighting.bias]
    log_scale, bias = (p.detach().clone().requires_grad_() for p in learned)
    siglip = partial(spec.siglip, scale=log_scale.exp(), bias=bias)
    expected = by_loop(spec.simcse_rows(*z), siglip, [*z, log_scale, bias])
    assert_same(with_gradients(loss, z, [*z, *learned]), expected)


def test_siglip_in_fp32_where_softplus_underflows():
    z = views(6, 4)
    loss = losses.SigLIPLoss(100.0, -150.0)
    found = value_and_gradients(loss(*(x.float() for x in z)), z)
    siglip = partial(spec.siglip, scale=100.0, bias=-150.0)
    assert_same(found, by_loop(spec.simcse_rows(*z), siglip, z), 1e-4)


@pytest.mark.parametrize("name", LOW)
@FORMS
def test_low_temperatures_in_fp32(name, form):
    kind, row_loss, tau, options = LOW[name]
    z = views(9, 4)
    loss = losses.InfoNCELoss(kind(tau, **options), blockwise=form)
    found = value_and_gradients(loss(*(x.float() for x in z)), z)
    expected = by_loop(spec.simcse_rows(*z), partial(row_loss, tau=tau, **options), z)
    assert_same(found, expected, 1e-5)


@pytest.mark.parametrize("name", ["hcl", "sentences"])
@FORMS
def test_a_learned_temperature_has_its_gradient(name, form):
    """By a difference quotient of losses with constant temperatures."""
    kind, _, tau, options = CASES[name]
    z = views(6, 3)
    step = 1e-5
    learned = losses.LearnableTemperature(tau).double()
    loss = losses.InfoNCELoss(kind(learned, **options), blockwise=form)
    (found,) = torch.autograd.grad(loss(*z), learned.free)
    high = losses.InfoNCELoss(kind(tau + step, **options))(*z).item()
    low = losses.InfoNCELoss(kind(tau - step, **options))(*z).item()
    (slope,) = torch.autograd.grad(learned(torch.zeros(()).double()), learned.free)
    assert float(found) == pytest.approx((high - low) / (2 * step) * float(slope), rel=1e-5)


@FORMS
def test_arctanh_is_finite_for_equal_and_opposite_vectors(form):
    z = torch.eye(4).requires_grad_()
    loss = losses.InfoNCELoss(losses.ArctanhReweighting(), blockwise=form)(z, z * -1 + 2e-7)
    assert torch.isfinite(loss)
    (gradient,) = torch.autograd.grad(loss, z)
    assert torch.isfinite(gradient).all()
