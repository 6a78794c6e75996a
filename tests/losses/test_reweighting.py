"""Reweightings of negatives against loops over explicit pairs in fp64."""

from functools import partial

import pytest
import spec_formulas as spec
import torch
from loss_cases import FORMS, assert_same, value_and_gradients, views
from processes import losses_of_ranks

from dystress_text import losses, parse_loss

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
    "arctanh": (losses.ArctanhReweighting, spec.arctanh, 0.7, {}),
}
LOW = {  # temperature 0.02, where fp32 holds neither exp(l) nor a small share of it
    "hcl": (losses.HCLReweighting, spec.hcl, 0.02, {"beta": 1.0, "tau_plus": 1e-6}),
    "focal": (losses.FocalReweighting, spec.focal, 0.02, {"margin": 0.3}),
    "sentences": (losses.ADNCEReweighting, spec.adnce, 0.02, {**SENTENCES, "sigma": 0.05}),
    "hardness": (losses.HardnessReweighting, spec.hardness, 0.02, {"hardness_strength": 9.0}),
}


def by_loop(rows, row_loss, inputs):
    value = spec.mean([row_loss(*row) for row in rows])
    return value_and_gradients(value, inputs)


@pytest.mark.parametrize("name", CASES)
def test_reweighting_equals_its_loop(name):
    """Compare both forms and objectives, hard negatives, and two processes."""
    kind, row_loss, start, options = CASES[name]
    learned = losses.LearnableTemperature(start).double()
    (share,) = learned.free.sigmoid()
    row_loss = partial(row_loss, tau=0.01 + 0.99 * share, **options)
    reweighting = kind(learned, **options)
    *pair, hard = views(6, 3, 3)
    inputs = [*pair, learned.free]
    infonce = by_loop(spec.simcse_rows(*pair), row_loss, inputs)
    nt_xent = by_loop(spec.simclr_rows(*pair), row_loss, inputs)
    for form in (False, True):
        assert_same(losses.InfoNCELoss(reweighting, blockwise=form)(*pair), infonce, inputs)
        assert_same(losses.NTXentLoss(reweighting, blockwise=form)(*pair), nt_xent, inputs)
    average = torch.stack(losses_of_ranks(losses.NTXentLoss, reweighting, pair, 2)).mean()
    assert_same(average, nt_xent[:3], pair)
    rows = spec.simcse_rows(*pair)
    for anchor, (_, negatives) in zip(pair[0], rows, strict=True):
        negatives += [spec.similarity(anchor, each) for each in hard]
    inputs.append(hard)
    expected = by_loop(rows, row_loss, inputs)
    assert_same(losses.InfoNCELoss(reweighting)(*pair, hard), expected, inputs)


def test_published_numbers_are_the_defaults():
    written = {
        "ntxent(hcl(0.5))": "ntxent(hcl(0.5, beta=1, tau_plus=0.1))",
        "ntxent(debiased(0.5))": "ntxent(debiased(0.5, tau_plus=0.1))",
        "infonce(focal(0.05))": "infonce(focal(0.05, margin=0.3))",
        "infonce(adnce(0.07))": "infonce(adnce(0.07, mu=0.4, sigma=1))",
        "infonce(hardness(0.05))": "infonce(hardness(0.05, hardness_strength=9))",
        "infonce(arctanh())": "infonce(arctanh(1))",
        "rince(0.5)": "rince(0.5, q=0.1, lam=0.01)",
        "siglip()": "siglip(logit_scale=10, logit_bias=-10)",
        "dclw(0.1)": "dclw(0.1, sigma=0.5)",
        "infonce(exponential(0.1, 0.2))": "infonce(exponential(0.1, 0.2, sharpness=3.5))",
        "infonce(learned(0.05))": "infonce(learned(0.05, low=0.01, high=1))",
    }
    assert {text: str(parse_loss(text)) for text in written} == written


@FORMS
def test_rince_and_siglip_equal_their_loops(form):
    z = views(7, 3)
    rows = spec.simcse_rows(*z)
    rince = losses.RINCELoss(0.2, q=0.5, lam=0.01, blockwise=form)
    expected = by_loop(rows, partial(spec.rince, tau=0.2, q=0.5, lam=0.01), z)
    assert_same(rince(*z), expected, z)
    siglip = losses.SigLIPLoss(8.0, -3.0, blockwise=form).double()
    log_scale = siglip.temperature.log_scale
    bias = siglip.reweighting.bias
    row_loss = partial(spec.siglip, scale=log_scale.exp(), bias=bias)
    inputs = [*z, log_scale, bias]
    assert_same(siglip(*z), by_loop(spec.simcse_rows(*z), row_loss, inputs), inputs)


def test_siglip_in_fp32_where_softplus_underflows():
    z = views(6, 4)
    loss = losses.SigLIPLoss(100.0, -150.0)
    siglip = partial(spec.siglip, scale=100.0, bias=-150.0)
    expected = by_loop(spec.simcse_rows(*z), siglip, z)
    assert_same(loss(*(x.float() for x in z)), expected, z, 1e-4)


@pytest.mark.parametrize("name", LOW)
@FORMS
def test_low_temperatures_in_fp32(name, form):
    kind, row_loss, tau, options = LOW[name]
    z = views(9, 4)
    loss = losses.InfoNCELoss(kind(tau, **options), blockwise=form)
    expected = by_loop(spec.simcse_rows(*z), partial(row_loss, tau=tau, **options), z)
    assert_same(loss(*(x.float() for x in z)), expected, z, 1e-5)


@FORMS
def test_arctanh_is_finite_for_equal_and_opposite_vectors(form):
    z = torch.eye(4).requires_grad_()
    loss = losses.InfoNCELoss(losses.ArctanhReweighting(), blockwise=form)
    for x in value_and_gradients(loss(z, z * -1 + 2e-7), [z]):
        assert x.isfinite().all()
