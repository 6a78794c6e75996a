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
from processes import in_threads, losses_of_ranks, own

from dystress_text import losses

pytestmark = pytest.mark.usefixtures("small_blocks")


@EVERY
@pytest.mark.parametrize("detach", [True, False])
@pytest.mark.parametrize(("hard", "dim"), [(0, 256), (2, 3)])
def test_loss_and_gradient_equal_the_loop(name, detach, hard, dim):
    case = OBJECTIVES[name]
    module, tau = TEMPERATURES["shifted"]
    z = views(5, dim, 2 + hard)
    expected = value_and_gradients(case.loss(case.rows(*z), tau, detach, 5, hard, 0.7), z)
    loss = case.build(module, detach_temperature=detach, hard_negative_weight=0.7)
    for loss.blockwise in (False, True):
        assert_same(loss(*z), expected, z)


@pytest.mark.parametrize("name", ["InfoNCE", "NT-Xent", "DCL", "MACL, both views"])
@FORMS
def test_samples_with_an_equal_text_are_no_negatives(name, form):
    """Also across processes; the second sample shares texts with two others."""
    case = OBJECTIVES[name]
    texts = torch.tensor([[0, 9], [1, 8], [1, 7], [3, 8], [4, 6], [5, 9]])
    z = views(6, 4)
    n = len(texts)
    anchors = n if case.rows_of is spec.simcse_rows else 2 * n
    rows = []
    for a, (positive, negatives) in enumerate(case.rows(*z)):
        others = [b for b in range(anchors) if b % n != a % n]
        kept = []
        for s, b in zip(negatives, others, strict=True):
            if not (texts[a % n] == texts[b % n]).any():
                kept.append(s)
        rows.append((positive, kept))
    module, tau = TEMPERATURES["shifted"]
    expected = value_and_gradients(case.loss(rows, tau), z)
    loss = case.build(module, blockwise=form)
    assert_same(loss(*z, texts=texts), expected, z)

    def work(gather):
        loss = case.build(module, gather=gather, blockwise=form)
        z1, z2, ids = [own(x, gather.rank, 2) for x in (*z, texts)]
        return loss(z1, z2, texts=ids)

    assert_same(torch.stack(in_threads(2, work)).mean(), expected, z)


def test_equal_texts_in_a_whole_batch_leave_the_loss_as_it_is():
    z = views(3, 4)
    loss = losses.DCLLoss(0.1)
    texts = torch.tensor([[0, 1], [0, 2], [0, 3]])
    assert torch.equal(loss(*z, texts=texts), loss(*z))


@EVERY
@FORMS
def test_processes_equal_one_process(name, form):
    """Threads simulate the processes, so that autograd sees the rows of all of them."""
    build = OBJECTIVES[name].build
    adaptive = losses.AlignmentAdaptiveTemperature(0.1, 0.8, 0.6)
    z = views(6, 4, 4)
    single = build(adaptive, hard_negative_weight=0.7, blockwise=False)(*z)
    ranks = losses_of_ranks(build, adaptive, z, 3, hard_negative_weight=0.7, blockwise=form)
    assert_same(torch.stack(ranks).mean(), value_and_gradients(single, z), z)


def test_macl_takes_its_temperature_from_the_batch():
    loss = losses.MACLLoss(losses.AlignmentAdaptiveTemperature(0.1, 0.8, 0.6))
    case = OBJECTIVES["MACL"]
    for seed in (0, 1):
        z = views(4, 3, seed=seed)
        tau = spec.adaptive_tau(*z, 0.1, 0.8, 0.6)
        expected = case.loss(case.rows(*z), lambda s, tau=tau: tau)
        assert_same(loss(*z), value_and_gradients(expected, z), z)


@pytest.mark.parametrize("profile", TEMPERATURES)
@pytest.mark.parametrize("detach", [True, False])
def test_infonce_has_the_gradients_of_the_paper(profile, detach):
    """Differentiate by the similarities, whose first column has the positives."""
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
