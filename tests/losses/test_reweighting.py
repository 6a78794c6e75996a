"""Rules of other papers against loops over explicit pairs in fp64: losses and gradients, in both
forms.
"""

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
    """What makes the reweighting, and the loop that gives the loss of a row."""
    return partial(kind, tau, **options), partial(row_loss, tau=tau, **options)


RULES = {  # with temperatures at which both cases of a bound occur
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
LOW = {  # at the temperature 0.02, where fp32 holds neither exp(l) nor a small share of it
    "hcl": case(losses.HCLReweighting, spec.hcl, 0.02, beta=1.0, tau_plus=1e-6),
    "focal": case(losses.FocalReweighting, spec.focal, 0.02, margin=0.3),
    "adnce": case(losses.ADNCEReweighting, spec.adnce, 0.02, mu=0.4, sigma=0.05),
    "adnce, sentences": case(
        losses.ADNCEReweighting, spec.adnce, 0.02, mu=0.4, sigma=0.05, weigh_positive=True
    ),
    "hardness": case(losses.HardnessReweighting, spec.hardness, 0.02, hardness_strength=9.0),
}


def by_loop(rows, row_loss, inputs):
    """Mean loss over the anchors and its gradients."""
    return value_and_gradients(spec.mean([row_loss(*row) for row in rows]), inputs)


def with_gradients(loss, z, inputs=None):
    return value_and_gradients(loss(*z), inputs or z)


@pytest.mark.parametrize("name", RULES)
def test_a_rule_is_its_loop_over_pairs(name):
    """In both forms and objectives, with hard negatives, on two processes, and against a queue."""
    reweighting, row_loss = RULES[name]
    z = views(6, 3, 3)
    infonce, nt_xent = (
        by_loop(rows_of(*z[:2]), row_loss, z[:2])
        for rows_of in (spec.simcse_rows, spec.simclr_rows)
    )
    for form in (False, True):
        assert_same(
            with_gradients(losses.InfoNCELoss(reweighting(), blockwise=form), z[:2]), infonce
        )
        assert_same(
            with_gradients(losses.NTXentLoss(reweighting(), blockwise=form), z[:2]), nt_xent
        )
    more = [
        (pos, [*negs, *(spec.similarity(anchor, hard) for hard in z[2])])
        for anchor, (pos, negs) in zip(z[0], spec.simcse_rows(*z[:2]), strict=True)
    ]
    assert_same(with_gradients(losses.InfoNCELoss(reweighting()), z), by_loop(more, row_loss, z))
    average = torch.stack(losses_of_ranks(losses.NTXentLoss, reweighting(), z[:2], 2)).mean()
    assert_same([average], nt_xent[:1])
    queue = losses.QueueInfoNCELoss(reweighting(), queue_size=5, dim=3).double().eval()
    rows = [
        (spec.similarity(q, k.detach()), [spec.similarity(q, old) for old in queue.queue])
        for q, k in zip(*z[:2], strict=True)
    ]
    assert_same(
        with_gradients(queue, z[:2], z[:1]), by_loop(rows, row_loss, z[:1]), 1e-6
    )  # its norms are of fp32


@pytest.mark.parametrize("tau", [0.5, 0.1])
@FORMS
def test_a_weighed_positive_is_in_the_denominator_of_macl_and_rince(form, tau):
    """ADNCE's denominator, with weights of mean 1, in place of theirs."""
    z, adnce = views(6, 3), {"mu": 0.4, "sigma": 0.5}
    reweighting = losses.ADNCEReweighting(tau, **adnce, weigh_positive=True)

    def log_denominator(pos, negs):
        return spec.adnce(pos, negs, tau, **adnce, weigh_positive=True) + pos / tau

    def weight(pos, negs):
        heights = [math.exp(-((s.item() - 0.4) ** 2) / (2 * 0.5**2)) for s in (pos, *negs)]
        return heights[0] * len(heights) / sum(heights)

    def macl(pos, negs):
        loss = log_denominator(pos, negs) - pos / tau
        share = weight(pos, negs) * (-loss.detach()).exp()
        return loss / (1 - share)

    def rince(pos, negs):
        return (0.01 * log_denominator(pos, negs).exp()) ** 0.6 / 0.6 - (
            0.6 * pos / tau
        ).exp() / 0.6

    for both_views, rows_of in ((False, spec.simcse_rows), (True, spec.simclr_rows)):
        loss = losses.MACLLoss(temperature=reweighting, both_views=both_views, blockwise=form)
        assert_same(with_gradients(loss, z), by_loop(rows_of(*z), macl, z))
    loss = losses.RINCELoss(reweighting, q=0.6, lam=0.01, blockwise=form)
    assert_same(with_gradients(loss, z), by_loop(spec.simcse_rows(*z), rince, z))


def test_a_positive_that_is_not_in_the_denominator_is_not_weighed():
    with pytest.raises(ValueError, match=r"weigh_positive: DCLLoss has no positive"):
        losses.DCLLoss(losses.ADNCEReweighting(0.1, weigh_positive=True))


@FORMS
def test_rince_and_siglip_are_their_loops(form):
    z = views(7, 3)
    rince = partial(spec.rince, tau=0.2, q=0.5, lam=0.01)
    expected = by_loop(spec.simcse_rows(*z), rince, z)
    assert_same(with_gradients(losses.RINCELoss(0.2, q=0.5, lam=0.01, blockwise=form), z), expected)
    loss = losses.SigLIPLoss(8.0, -3.0, blockwise=form).double()
    learned = [loss.temperature.log_scale, loss.reweighting.bias]
    log_scale, bias = (p.detach().clone().requires_grad_() for p in learned)
    siglip = partial(spec.siglip, scale=log_scale.exp(), bias=bias)
    expected = by_loop(spec.simcse_rows(*z), siglip, [*z, log_scale, bias])
    assert_same(with_gradients(loss, z, [*z, *learned]), expected)


@FORMS
def test_siglip_is_exact_where_a_pair_costs_nothing(form):
    z = views(6, 4)
    loss = losses.SigLIPLoss(
        100.0, -150.0, blockwise=form
    )  # in fp32 softplus of -110 is 0, and its logarithm infinite
    siglip = partial(spec.siglip, scale=100.0, bias=-150.0)
    found = loss(*(x.float() for x in z))
    expected = by_loop(spec.simcse_rows(*z), siglip, z)
    assert_same(value_and_gradients(found, z), expected, 1e-4)


@pytest.mark.parametrize("name", LOW)
@FORMS
def test_low_temperatures_in_fp32(name, form):
    reweighting, row_loss = LOW[name]
    z = views(9, 4)
    found = losses.InfoNCELoss(reweighting(), blockwise=form)(*(x.float() for x in z))
    assert_same(value_and_gradients(found, z), by_loop(spec.simcse_rows(*z), row_loss, z), 1e-5)


@pytest.mark.parametrize("name", ["hcl", "focal", "adnce", "adnce, sentences", "hardness"])
def test_a_rule_wraps_any_temperature(name):
    """A learned one gets its gradient through the reweighting, in both forms."""
    reweighting, z, gradients = RULES[name][0], views(6, 3), []
    build = partial(reweighting.func, **reweighting.keywords)
    for form in (False, True):
        reweighting = build(losses.LearnableTemperature(losses.ConstantTemperature(0.2))).double()
        gradients.append(
            with_gradients(
                losses.InfoNCELoss(reweighting, blockwise=form), z, [*reweighting.parameters(), *z]
            )
        )
    assert_same(gradients[1], gradients[0])
    step, free = 1e-5, reweighting.temperature.free
    ends = [losses.InfoNCELoss(build(0.2 + sign * step))(*z).item() for sign in (1, -1)]
    (slope,) = torch.autograd.grad(
        reweighting.temperature(torch.zeros(()).double()), free
    )  # tau by the free number
    assert float(gradients[0][1]) == pytest.approx(
        (ends[0] - ends[1]) / (2 * step) * float(slope), rel=1e-5
    )
