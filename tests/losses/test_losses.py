"""Every objective against loops over pairs, and InfoNCE against the paper's gradients."""

import pytest
import spec_formulas as spec
import torch
from loss_cases import (
    EVERY,
    FORMS,
    OBJECTIVES,
    TEMPERATURES,
    assert_same,
    value_and_gradients,
    views,
)
from processes import losses_of_ranks

from dystress_text import losses

pytestmark = pytest.mark.usefixtures("small_blocks")


@EVERY
@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize("hard", [0, 2])
def test_loss_and_gradient_equal_the_loop(name, detach, hard):
    case = OBJECTIVES[name]
    module, tau = TEMPERATURES["shifted"]
    z = views(5, 3, 2 + hard)
    expected = value_and_gradients(case.loss(case.rows(*z), tau, detach, 5, hard, 0.7), z)
    options = {"detach_temperature": detach, "hard_negative_weight": 0.7}
    for form in (False, True):
        loss = case.build(module, blockwise=form, **options)
        assert_same(value_and_gradients(loss(*z), z), expected)


@pytest.mark.parametrize("sigma", [None, 0.5])
def test_per_view_equals_lightlys_loss_before_june_2025(sigma):
    """Its formula on matrices; the gradient goes through tau."""
    z = views(6, 4)
    off_diagonal = ~torch.eye(6, dtype=torch.bool)

    def logits_of(s):
        return s / (0.07 + 0.13 / 2 * (1 + torch.cos(torch.pi * (1 + s))))

    def one_direction(x, y):
        own = logits_of(x @ x.T)[off_diagonal].view(6, 5)
        across = logits_of(x @ y.T)
        weight = 1
        if sigma is not None:
            weight = 2 - 6 * ((x * y).sum(1).detach() / sigma).softmax(0)
        negatives = own.logsumexp(1) + across[off_diagonal].view(6, 5).logsumexp(1)
        return (negatives - weight * across.diag()).mean()

    x, y = (torch.nn.functional.normalize(each) for each in z)
    kind = losses.DCLLoss if sigma is None else losses.DCLWLoss
    found = kind(TEMPERATURES["cosine"][0], detach_temperature=False, per_view=True)(*z)
    expected = (one_direction(x, y) + one_direction(y, x)) / 2
    assert_same(value_and_gradients(found, z), value_and_gradients(expected, z))


@EVERY
@FORMS
def test_the_mean_over_processes_equals_one_process(name, form):
    """Threads simulate the processes, so that autograd sees the rows of all of them."""
    build = OBJECTIVES[name].build
    adaptive = losses.AlignmentAdaptiveTemperature(0.1, 0.8, 0.6)
    z = views(6, 4, 4)
    single = build(adaptive, hard_negative_weight=0.7, blockwise=False)(*z)
    ranks = losses_of_ranks(build, adaptive, z, 3, hard_negative_weight=0.7, blockwise=form)
    average = torch.stack(ranks).mean()
    assert_same(value_and_gradients(average, z), value_and_gradients(single, z))


def test_macl_takes_its_temperature_from_the_batch():
    loss = losses.MACLLoss(0.1, 0.8, 0.6)
    case = OBJECTIVES["MACL"]
    for seed in (0, 1):
        z = views(4, 3, seed=seed)
        tau = spec.adaptive_tau(*z, 0.1, 0.8, 0.6)
        expected = value_and_gradients(case.loss(case.rows(*z), lambda s, tau=tau: tau), z)
        assert_same(value_and_gradients(loss(*z), z), expected)


@pytest.mark.parametrize("profile", TEMPERATURES)
@pytest.mark.parametrize("detach", [True, False])
def test_infonce_has_the_gradients_of_the_paper(profile, detach):
    """By the similarities; the positive is the first column."""
    temperature, formula = TEMPERATURES[profile]
    generator = torch.Generator().manual_seed(3)
    s = 1.9 * torch.rand(4, 6, generator=generator, dtype=torch.float64) - 0.95
    s.requires_grad_()
    tau = torch.stack([formula(x) for x in s.flatten()]).view_as(s)
    (slope,) = torch.autograd.grad(tau.sum(), s)
    loss = losses.InfoNCELoss(temperature, detach_temperature=detach)
    logits = loss.reweighting.logits(s, loss.tau(s))[0]
    rows = loss.row_loss(logits[:, 0], logits[:, 1:].logsumexp(dim=1), s[:, 0])
    (found,) = torch.autograd.grad(rows.sum(), s)
    s = s.detach()
    tau = tau.detach()
    factor = 1 / tau if detach else (tau - s * slope) / tau**2  # Eqs. delLdelCa and delLdelCb
    p = (s / tau).softmax(dim=1)
    p[:, 0] -= 1
    torch.testing.assert_close(found, factor * p)
