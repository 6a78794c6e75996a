"""Sums over pairs and the comparison with constants, against loops differentiated by autograd."""

import math
from functools import partial

import numpy as np
import pytest
import spec_formulas as spec
import torch
from loss_cases import OBJECTIVES, TEMPERATURES, views

from dystress_text import losses
from dystress_text.losses import diagnosis
from dystress_text.losses.diagnosis import BINS, ConstantComparison, compare, constants, pair_sums

THRESHOLD = 0.1
INFO_NCE = OBJECTIVES["InfoNCE"].loss
MODULE, TAU = TEMPERATURES["shifted"]


def gradient_sizes(rows, loss_of):
    """Return similarities and sizes of their gradients, the positives of all rows first."""
    positives = [positive for positive, _ in rows]
    negatives = [s for _, of_row in rows for s in of_row]
    s = torch.stack(positives + negatives).detach().requires_grad_()
    positives, *negatives = s.split([len(rows), *(len(of_row) for _, of_row in rows)])
    (gradient,) = torch.autograd.grad(loss_of(list(zip(positives, negatives, strict=True))), s)
    return s.detach().numpy(), gradient.abs().numpy()


def check_sums(found, rows, loss_of, count):
    """Compare with sums over the positives of ``count`` rows and over all negatives."""
    s, size = gradient_sizes(rows, loss_of)
    negatives = s[len(rows) :]
    sums = [
        (s[:count], np.ones(count)),
        (negatives, np.ones(len(negatives))),
        (negatives, size[len(rows) :]),
    ]
    for table, histogram, (x, weights) in zip(*found, sums, strict=True):
        taus = np.array([float(TAU(each)) for each in torch.from_numpy(x)])
        expected = [weights.sum(), weights @ x, weights @ taus, weights[x > THRESHOLD].sum()]
        np.testing.assert_allclose(table, expected, rtol=1e-6, atol=1e-9)
        expected, _ = np.histogram(x, BINS, (-1, 1), weights=weights)
        np.testing.assert_allclose(histogram, expected, rtol=1e-6, atol=1e-9)


def check_comparison(found, rows, loss_of, loss_of_constant=INFO_NCE):
    """Compare with the same loops under some of the constants."""
    n = len(rows)
    _, size = gradient_sizes(rows, loss_of)
    shares = size[n:] / size[n:].sum()
    assert float(found.batches) == 1
    assert float(found.gradient_ratio) == pytest.approx(size[:n].sum() / size[n:].sum(), rel=1e-6)
    for k in (0, 12, 40):
        tau = 0.01 * 100 ** (k / 40)
        assert float(constants()[k]) == pytest.approx(tau)
        _, size = gradient_sizes(rows, partial(loss_of_constant, tau=lambda s, tau=tau: tau))
        distance = np.abs(shares - size[n:] / size[n:].sum()).sum() / 2
        assert float(found.total_variation[k]) == pytest.approx(distance, abs=2e-6)


@pytest.mark.parametrize(("detach", "hard"), [(True, 0), (False, 2)])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_sums_and_comparison_equal_loops(name, detach, hard, monkeypatch):
    monkeypatch.setattr(diagnosis, "BLOCK_ENTRIES", 30)  # a few rows at a time
    case = OBJECTIVES[name]
    constant = OBJECTIVES[name.replace("MACL, both views", "NT-Xent").replace("MACL", "InfoNCE")]
    z = views(4, 4, 2 + hard)
    rows = case.rows(*z)
    options = {"samples": 4, "hard": hard, "weight": 0.7}
    loss_of = partial(case.loss, tau=TAU, detach=detach, **options)
    loss = case.build(MODULE, detach_temperature=detach, hard_negative_weight=0.7)
    check_sums(pair_sums(loss, z, THRESHOLD), rows, loss_of, 4)
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
