"""Reweightings of negatives against loops over explicit pairs in fp64."""

import math
from functools import partial

import pytest
import spec_formulas as spec
import torch
from loss_cases import FORMS, assert_same, value_and_gradients, views
from processes import losses_of_ranks

from dystress_text import losses

pytestmark = pytest.mark.usefixtures("small_blocks")


def case(kind, row_loss, tau, **options):
    """What builds the reweighting, and the loop for the loss of a row."""
    return partial(kind, tau, **options), partial(row_loss, tau=tau, **options)


CASES = {  # with temperatures at which both cases of a bound occur
    "debiased": case(losses.DebiasedReweighting, spec.hcl, 0.5, tau_plus=0.1),
    "debiased, bound": case(losses.DebiasedReweighting, spec.hcl, 0.2, tau_plus=0.2),
    "no bias": case(losses.DebiasedReweighting, spec.hcl, 0.2, tau_plus=0.0),
    "hcl": case(losses.HCLReweighting, spec.hcl, 0.5, beta=1.0, tau_plus=0.1),
    "hcl, sharp": case(losses.HCLReweighting, spec.hcl, 0.2, beta=0.5, tau_plus=0.05),
    "focal": case(losses.FocalReweighting, spec.focal, 0.2, margin=0.3),
    "adnce": case(losses.ADNCEReweighting, spec.adnce, 0.2, mu=0.4, sigma=0.5),
    "adnce, sentences": case(
        losses.ADNCEReweighting, spec.adnce, 0.2, mu=0.4, sigma=0.5, weigh_positive=True
    ),
    "hardness": case(losses.HardnessReweighting, spec.hardness, 0.2, hardness_strength=3.0),
}
LOW = {  # temperature 0.02, where fp32 holds neither exp(l) nor a small share of it
    "hcl": case(losses.HCLReweighting, spec.hcl, 0.02, beta=1.0, tau_plus=1e-6),
    "focal": case(losses.FocalReweighting, spec.focal, 0.02, margin=0.3),
    "adnce": case(losses.ADNCEReweighting, spec.adnce, 0.02, mu=0.4, sigma=0.05),
    "adnce, sentences": case(
        losses.ADNCEReweighting, spec.adnce, 0.02, mu=0.4, sigma=0.05, weigh_positive=True
    ),
    "hardness": case(losses.HardnessReweighting, spec.hardness, 0.02, hardness_strength=9.0),
}


def by_loop(rows, row_loss, inputs):
    return value_and_gradients(spec.mean([row_loss(*row) for row in rows]), inputs)


def with_gradients(loss, z, inputs=None):
    return value_and_gradients(loss(*z), inputs or z)


@pytest.mark.parametrize("name", CASES)
def test_reweighting_equals_its_loop(name):
    """In both forms and objectives, with hard negatives, on two processes, and with a queue."""
    build, row_loss = CASES[name]
    z = views(6, 3, 3)
    pair = z[:2]
    nt_xent = by_loop(spec.simclr_rows(*pair), row_loss, pair)
    for form in (False, True):
        infonce = by_loop(spec.simcse_rows(*pair), row_loss, pair)
        assert_same(with_gradients(losses.InfoNCELoss(build(), blockwise=form), pair), infonce)
        assert_same(with_gradients(losses.NTXentLoss(build(), blockwise=form), pair), nt_xent)
    more = [
        (pos, [*negs, *(spec.similarity(anchor, hard) for hard in z[2])])
        for anchor, (pos, negs) in zip(z[0], spec.simcse_rows(*pair), strict=True)
    ]
    assert_same(with_gradients(losses.InfoNCELoss(build()), z), by_loop(more, row_loss, z))
    average = torch.stack(losses_of_ranks(losses.NTXentLoss, build(), pair, 2)).mean()
    assert_same([average], nt_xent[:1])
    queue = losses.QueueInfoNCELoss(build(), queue_size=5, dim=3).double().eval()
    rows = [
        (spec.similarity(q, k.detach()), [spec.similarity(q, old) for old in queue.queue])
        for q, k in zip(*pair, strict=True)
    ]
    # the queue's norms are of fp32
    assert_same(with_gradients(queue, pair, z[:1]), by_loop(rows, row_loss, z[:1]), 1e-6)


@FORMS
def test_weighed_positive_in_macl_and_rince(form):
    """ADNCE's denominator, with weights of mean 1, in place of theirs."""
    z, tau, adnce = views(6, 3), 0.1, {"mu": 0.4, "sigma": 0.5}
    reweighting = losses.ADNCEReweighting(tau, **adnce, weigh_positive=True)

    def loss_of(pos, negs):
        return spec.adnce(pos, negs, tau, **adnce, weigh_positive=True)

    def macl(pos, negs):
        loss = loss_of(pos, negs)
        heights = [math.exp(-((s.item() - 0.4) ** 2) / (2 * 0.5**2)) for s in (pos, *negs)]
        share = heights[0] * len(heights) / sum(heights) * (-loss.detach()).exp()
        return loss / (1 - share)

    def rince(pos, negs):
        denominator = (loss_of(pos, negs) + pos / tau).exp()
        return (0.01 * denominator) ** 0.6 / 0.6 - (0.6 * pos / tau).exp() / 0.6

    for both_views, rows_of in ((False, spec.simcse_rows), (True, spec.simclr_rows)):
        loss = losses.MACLLoss(temperature=reweighting, both_views=both_views, blockwise=form)
        assert_same(with_gradients(loss, z), by_loop(rows_of(*z), macl, z))
    loss = losses.RINCELoss(reweighting, q=0.6, lam=0.01, blockwise=form)
    assert_same(with_gradients(loss, z), by_loop(spec.simcse_rows(*z), rince, z))


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


@FORMS
def test_siglip_in_fp32_where_softplus_underflows(form):
    z = views(6, 4)
    loss = losses.SigLIPLoss(100.0, -150.0, blockwise=form)
    found = value_and_gradients(loss(*(x.float() for x in z)), z)
    siglip = partial(spec.siglip, scale=100.0, bias=-150.0)
    assert_same(found, by_loop(spec.simcse_rows(*z), siglip, z), 1e-4)


@pytest.mark.parametrize("name", LOW)
@FORMS
def test_low_temperatures_in_fp32(name, form):
    build, row_loss = LOW[name]
    z = views(9, 4)
    found = losses.InfoNCELoss(build(), blockwise=form)(*(x.float() for x in z))
    assert_same(value_and_gradients(found, z), by_loop(spec.simcse_rows(*z), row_loss, z), 1e-5)


@pytest.mark.parametrize("name", ["hcl", "focal", "adnce, sentences", "hardness"])
@FORMS
def test_a_learned_temperature_has_its_gradient(name, form):
    """By a difference quotient of losses with constant temperatures."""
    given, z, step = CASES[name][0], views(6, 3), 1e-5
    build = partial(given.func, **given.keywords)
    learned = losses.LearnableTemperature(losses.ConstantTemperature(0.2)).double()
    loss = losses.InfoNCELoss(build(learned), blockwise=form)
    (found,) = torch.autograd.grad(loss(*z), learned.free)
    high, low = (losses.InfoNCELoss(build(0.2 + x))(*z).item() for x in (step, -step))
    (slope,) = torch.autograd.grad(learned(torch.zeros(()).double()), learned.free)
    assert float(found) == pytest.approx((high - low) / (2 * step) * float(slope), rel=1e-5)
