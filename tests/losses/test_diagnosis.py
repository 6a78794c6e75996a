"""Sums over pairs and the comparison with constants, against loops differentiated by autograd."""

import math
from functools import partial

import numpy as np
import pytest
import spec_formulas as spec
import torch
from loss_cases import OBJECTIVES, TEMPERATURES, views
from processes import in_threads, own

from dystress_text import losses
from dystress_text.losses import diagnosis
from dystress_text.losses.diagnosis import BINS, ConstantComparison, compare, constants, pair_sums

THRESHOLD = 0.1
INFO_NCE = OBJECTIVES["InfoNCE"].loss
MODULE, TAU = TEMPERATURES["shifted"]


def sizes(rows, loss_of):
    """Return negatives' similarities, sizes of their gradients, and the positives' total size."""
    leaves = []
    positives = []
    negatives = []
    for positive, of_row in rows:
        leaf = (positive.detach().requires_grad_(), [s.detach().requires_grad_() for s in of_row])
        leaves.append(leaf)
        positives.append(leaf[0])
        negatives.extend(leaf[1])
    gradients = torch.autograd.grad(loss_of(leaves), positives + negatives)
    g = torch.stack(gradients).abs().numpy()
    return torch.stack(negatives).detach().numpy(), g[len(rows) :], g[: len(rows)].sum()


def check_sums(found, rows, loss_of, count):
    s, g, _ = sizes(rows, loss_of)
    p = torch.stack([p for p, _ in rows[:count]]).detach().numpy()
    for row, (x, weights) in enumerate([(p, np.ones_like(p)), (s, np.ones_like(s)), (s, g)]):
        taus = np.array([float(TAU(each)) for each in torch.from_numpy(x)])
        high = x > THRESHOLD
        right = [weights.sum(), x @ weights, taus @ weights, weights[high].sum()]
        np.testing.assert_allclose(found.table[row].detach(), right, rtol=1e-6, atol=1e-9)
        histogram = np.histogram(x, BINS, (-1, 1), weights=weights)[0]
        np.testing.assert_allclose(found.histograms[row].detach(), histogram, rtol=1e-6, atol=1e-9)


def check_comparison(found, rows, loss_of, loss_of_constant=INFO_NCE):
    """Compare with the same loops under some of the constants."""
    _, g, positive_size = sizes(rows, loss_of)
    assert float(found.batches) == 1
    assert float(found.gradient_ratio) == pytest.approx(positive_size / g.sum(), rel=1e-6)
    for k in (0, 12, 40):
        tau = 0.01 * 100 ** (k / 40)
        assert float(constants()[k]) == pytest.approx(tau)
        _, c, _ = sizes(rows, lambda rows, tau=tau: loss_of_constant(rows, lambda s: tau))
        distance = np.abs(g / g.sum() - c / c.sum()).sum() / 2
        assert float(found.total_variation[k]) == pytest.approx(distance, abs=2e-6)


@pytest.mark.parametrize(("detach", "hard"), [(True, 0), (False, 2)])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_sums_and_comparison_equal_loops(name, detach, hard, monkeypatch):
    monkeypatch.setattr(diagnosis, "BLOCK_ENTRIES", 30)  # a few rows at a time
    case = OBJECTIVES[name]
    z = views(4, 4, 2 + hard)
    options = {"samples": 4, "hard": hard, "weight": 0.7}
    rows = case.rows(*z)
    loss_of = partial(case.loss, tau=TAU, detach=detach, **options)
    loss = case.build(MODULE, detach_temperature=detach, hard_negative_weight=0.7)
    check_sums(pair_sums(loss, z, THRESHOLD), rows, loss_of, 4)
    constant = OBJECTIVES[name.replace("MACL, both views", "NT-Xent").replace("MACL", "InfoNCE")]
    check_comparison(compare(loss, z), rows, loss_of, partial(constant.loss, **options))


@pytest.mark.parametrize(
    ("loss", "row_loss"),
    [
        (losses.SigLIPLoss(5.0, -3.0).double(), partial(spec.siglip, scale=5.0, bias=-3.0)),
        (
            losses.InfoNCELoss(losses.HCLReweighting(0.2, 1.0, 0.0)),
            partial(spec.hcl, tau=0.2, tau_plus=0.0, beta=1.0),
        ),
    ],
)
def test_other_losses_are_compared_with_infonce(loss, row_loss):
    z = views(5, 4)

    def loss_of(rows):
        return spec.mean([row_loss(*row) for row in rows])

    check_comparison(compare(loss, z), spec.simcse_rows(*z), loss_of)


def test_the_first_anchors_of_a_large_batch_count(monkeypatch):
    z = views(9, 4)
    monkeypatch.setattr(diagnosis, "MOST_PAIRS", 27)
    rows = spec.simcse_rows(*z)[:3]
    check_comparison(compare(losses.InfoNCELoss(MODULE), z), rows, partial(INFO_NCE, tau=TAU))


def test_processes_compare_their_own_anchors():
    z = views(6, 4)

    def work(gather):
        loss = losses.NTXentLoss(MODULE, gather=gather)
        return compare(loss, [own(x, gather.rank, 2) for x in z])

    rows = spec.simclr_rows(*z)
    for rank, found in enumerate(in_threads(2, work)):
        mine = [row for i, row in enumerate(rows) if i % 6 // 3 == rank]
        check_comparison(found, mine, partial(INFO_NCE, tau=TAU))


def test_a_batch_without_a_gradient_does_not_count():
    loss = losses.InfoNCELoss(MODULE)
    first = compare(loss, views(4, 4))
    second = compare(loss, views(7, 4))
    empty = compare(loss, [x * math.nan for x in views(4, 4)])
    mean = ConstantComparison(*map(sum, zip(first, second, empty, strict=True))).mean()
    assert float(mean.batches) == 2
    for value, one, two in zip(mean[1:], first[1:], second[1:], strict=True):
        torch.testing.assert_close(value, (one + two) / 2)


def test_measuring_changes_no_gradient_and_ignores_autocast():
    z = [x.detach().float().requires_grad_() for x in views(5, 4)]  # autocast ignores fp64
    temperature = losses.AlignmentAdaptiveTemperature(0.1, 0.5, 0.8)
    loss = losses.NTXentLoss(temperature)
    alone = torch.autograd.grad(loss(*z), z)
    plain = [*pair_sums(loss, z, THRESHOLD), *compare(loss, z)]
    assert all(map(torch.equal, torch.autograd.grad(loss(*z), z), alone))
    with torch.autocast("cpu", torch.bfloat16):
        cast = [*pair_sums(loss, z, THRESHOLD), *compare(loss, z)]
    torch.testing.assert_close(cast, plain, rtol=0, atol=0)
