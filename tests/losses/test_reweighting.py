"""Reweightings of negatives against loops over explicit pairs in fp64."""

from functools import partial

import pytest
import spec_formulas as spec
import torch
from loss_cases import FORMS, assert_same, value_and_gradients, views
from processes import losses_of_ranks

from dystress_text import losses
from dystress_text.losses.registry import parse

pytestmark = pytest.mark.usefixtures("small_blocks")

CASES = {  # rows lie above and below the bound
    "debiased(0.5, tau_plus=0.1)": spec.hcl,
    "debiased(0.2, tau_plus=0.2)": spec.hcl,
    "debiased(0.2, tau_plus=0)": spec.hcl,
    "hcl(0.5, beta=1, tau_plus=0.1)": spec.hcl,
    "focal(0.2, margin=0.3)": spec.focal,
    "adnce(0.2, mu=0.4, sigma=0.5)": spec.adnce,
    "adnce(0.2, mu=0.4, sigma=0.5, weigh_positive=True)": spec.adnce,
    "hardness(0.2, hardness_strength=3)": spec.hardness,
    "arctanh(0.7)": spec.arctanh,
}
LOW = {  # temperature 0.02, where fp32 holds neither exp(l) nor a small share of it
    "hcl(0.02, beta=1, tau_plus=1e-6)": spec.hcl,
    "focal(0.02, margin=0.3)": spec.focal,
    "adnce(0.02, mu=0.4, sigma=0.05, weigh_positive=True)": spec.adnce,
    "hardness(0.02, hardness_strength=9)": spec.hardness,
}


def by_loop(rows, row_loss, inputs):
    value = spec.mean([row_loss(*row) for row in rows])
    return value_and_gradients(value, inputs)


@pytest.mark.parametrize("text", CASES)
def test_reweighting_equals_its_loop(text):
    """Compare both forms and objectives, hard negatives, and two processes."""
    reweighting = parse(text)
    options = reweighting.arguments()
    learned = losses.LearnableTemperature(options.pop("temperature")).double()
    reweighting = reweighting.replace(temperature=learned)
    (share,) = learned.free.sigmoid()
    row_loss = partial(CASES[text], tau=0.01 + 0.99 * share, **options)
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


@pytest.mark.parametrize("text", LOW)
@FORMS
def test_low_temperatures_in_fp32(text, form):
    reweighting = parse(text)
    options = reweighting.arguments()
    row_loss = partial(LOW[text], tau=options.pop("temperature"), **options)
    z = views(9, 4)
    expected = by_loop(spec.simcse_rows(*z), row_loss, z)
    loss = losses.InfoNCELoss(reweighting, blockwise=form)
    assert_same(loss(*(x.float() for x in z)), expected, z, 1e-5)


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
        "queue(0.2)": "queue(0.2, queue_size=4096)",
        "infonce(scheduled(0.1, 1))": "infonce(scheduled(0.1, 1, half_period=200, unit='epoch'))",
        "infonce(exponential(0.1, 0.2))": "infonce(exponential(0.1, 0.2, sharpness=3.5))",
        "infonce(learned(0.05))": "infonce(learned(0.05, low=0.01, high=1))",
    }
    assert {text: str(parse(text)) for text in written} == written


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


@FORMS
def test_arctanh_is_finite_for_equal_and_opposite_vectors(form):
    z = torch.eye(4).requires_grad_()
    loss = losses.InfoNCELoss(losses.ArctanhReweighting(), blockwise=form)
    for x in value_and_gradients(loss(z, z * -1 + 2e-7), [z]):
        assert x.isfinite().all()
