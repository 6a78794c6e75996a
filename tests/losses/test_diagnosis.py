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


def sizes(rows, loss_of):
    """Return negatives' similarities, sizes of their gradients, and the positives' total size."""
    rows = [
        (p.detach().requires_grad_(), [s.detach().requires_grad_() for s in negatives])
        for p, negatives in rows
    ]
    negatives = [s for _, each in rows for s in each]
    gradients = torch.autograd.grad(loss_of(rows), [*(p for p, _ in rows), *negatives])
    g = torch.stack(gradients).abs().numpy()
    return torch.stack(negatives).detach().numpy(), g[len(rows) :], g[: len(rows)].sum()


def check_sums(found, rows, tau, loss_of, count):
    s, g, _ = sizes(rows, loss_of)
    positives = torch.stack([p for p, _ in rows[:count]]).detach().numpy()
    taus, positive_taus = (
        np.array([float(tau(x)) for x in torch.from_numpy(each)]) for each in (s, positives)
    )
    high = s > THRESHOLD
    expected = [
        [count, len(s), high.sum()],
        [positives.sum(), s.sum()],
        [positive_taus.sum(), taus.sum(), (taus * g).sum()],
        [g.sum(), g[high].sum()],
        [histogram(positives), histogram(s), histogram(s, g)],
    ]
    for values, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(values.detach().numpy(), right, rtol=1e-6, atol=1e-9)


def histogram(s, weights=None):
    return np.histogram(s, BINS, (-1, 1), weights=weights)[0]


def check_comparison(found, rows, loss_of, loss_of_constant=INFO_NCE):
    """Compare with the same loops under some of the constants."""
    s, g, positive_size = sizes(rows, loss_of)
    g_share = g / g.sum()
    assert float(found.batches) == 1
    assert float(found.gradient_ratio) == pytest.approx(positive_size / g.sum(), rel=1e-6)
    np.testing.assert_allclose(found.shares, histogram(s, g_share), atol=2e-6)
    for k in (0, 12, 40):
        tau = 0.01 * 100 ** (k / 40)
        assert float(constants()[k]) == pytest.approx(tau)
        _, c, _ = sizes(rows, lambda rows, tau=tau: loss_of_constant(rows, lambda s: tau))
        c_share = c / c.sum()
        distance = np.abs(g_share - c_share).sum() / 2
        assert float(found.total_variation[k]) == pytest.approx(distance, abs=2e-6)
        np.testing.assert_allclose(found.constants[k], histogram(s, c_share), atol=2e-6)


@pytest.mark.parametrize(
    ("temperature", "detach", "hard"), [("cosine", True, 0), ("shifted", False, 2)]
)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_sums_and_comparison_equal_loops(name, temperature, detach, hard, monkeypatch):
    case, (module, tau) = OBJECTIVES[name], TEMPERATURES[temperature]
    z, options = views(4, 4, 2 + hard), {"samples": 4, "hard": hard, "weight": 0.7}
    rows, loss_of = case.rows(*z), partial(case.loss, tau=tau, detach=detach, **options)
    loss = case.build(module, detach_temperature=detach, hard_negative_weight=0.7)
    for entries in (diagnosis.BLOCK_ENTRIES, 30):  # all rows, and a few at a time
        monkeypatch.setattr(diagnosis, "BLOCK_ENTRIES", entries)
        check_sums(pair_sums(loss, z, THRESHOLD), rows, tau, loss_of, 4)
    constant = OBJECTIVES[name.replace("MACL, both views", "NT-Xent").replace("MACL", "InfoNCE")]
    check_comparison(compare(loss, z), rows, loss_of, partial(constant.loss, **options))


def test_negatives_of_a_queue_are_the_keys_before_the_step():
    module, tau = TEMPERATURES["shifted"]
    loss = losses.QueueInfoNCELoss(module, queue_size=6, dim=4).double()
    z, keys = views(3, 4), loss.queue.clone()
    rows = [
        (spec.similarity(x, y), [spec.similarity(x, key) for key in keys])
        for x, y in zip(*z, strict=True)
    ]
    check_sums(pair_sums(loss, z, THRESHOLD), rows, tau, partial(INFO_NCE, tau=tau), 3)
    check_comparison(compare(loss, z), rows, partial(INFO_NCE, tau=tau))
    assert torch.equal(loss.queue, keys)


@pytest.mark.parametrize(
    ("loss", "row_loss"),
    [
        (losses.RINCELoss(0.2, q=0.5, lam=0.3), partial(spec.rince, tau=0.2, q=0.5, lam=0.3)),
        (losses.SigLIPLoss(5.0, -3.0).double(), partial(spec.siglip, scale=5.0, bias=-3.0)),
        (
            losses.InfoNCELoss(losses.HCLReweighting(0.2, 1.0, 0.0)),
            partial(spec.hcl, tau=0.2, tau_plus=0.0, beta=1.0),
        ),
    ],
)
def test_other_losses_are_compared_with_infonce(loss, row_loss):
    z = views(5, 4)
    rows = spec.simcse_rows(*z)
    check_comparison(
        compare(loss, z), rows, lambda rows: spec.mean([row_loss(*row) for row in rows])
    )


@pytest.mark.parametrize(
    ("name", "most", "anchors"), [("MOST_ANCHORS", 5, 5), ("MOST_PAIRS", 27, 3)]
)
def test_the_first_anchors_of_a_large_batch_count(name, most, anchors, monkeypatch):
    (module, tau), z = TEMPERATURES["shifted"], views(9, 4)
    rows = spec.simcse_rows(*z)[:anchors]
    monkeypatch.setattr(diagnosis, name, most)
    monkeypatch.setattr(diagnosis, "_AT_ONCE", 200)  # four constants at a time
    check_comparison(compare(losses.InfoNCELoss(module), z), rows, partial(INFO_NCE, tau=tau))


def test_processes_compare_their_own_anchors():
    (module, tau), z = TEMPERATURES["cosine"], views(6, 4)

    def work(gather):
        loss = losses.NTXentLoss(module, gather=gather)
        return compare(loss, [own(x, gather.rank, 2) for x in z])

    rows = spec.simclr_rows(*z)
    for rank, found in enumerate(in_threads(2, work)):
        mine = [row for i, row in enumerate(rows) if i % 6 // 3 == rank]
        check_comparison(found, mine, partial(INFO_NCE, tau=tau))


def test_a_batch_without_a_gradient_does_not_count():
    loss = losses.InfoNCELoss(TEMPERATURES["shifted"][0])
    first, second = (compare(loss, views(n, 4)) for n in (4, 7))
    empty = compare(loss, [x * math.nan for x in views(4, 4)])
    mean = ConstantComparison(*map(sum, zip(first, second, empty, strict=True))).mean()
    assert float(mean.batches) == 2
    for value, one, two in zip(mean[1:], first[1:], second[1:], strict=True):
        torch.testing.assert_close(value, (one + two) / 2)


def test_large_leads_of_all_positives_in_fp32():
    z = [torch.eye(6) - 0.15, torch.eye(6)]  # at 0.01 a lead of 100 and more
    found = compare(losses.InfoNCELoss(0.1), z)
    assert float(found.batches) == 1


def test_measuring_changes_neither_gradients_nor_depends_on_autocast():
    z = [x.detach().float().requires_grad_() for x in views(5, 4)]  # autocast ignores fp64
    loss, alone = (
        losses.NTXentLoss(losses.AlignmentAdaptiveTemperature(0.1, 0.5, 0.8)) for _ in range(2)
    )
    plain = [*pair_sums(loss, z, THRESHOLD), *compare(loss, z)]
    assert all(map(torch.equal, *(torch.autograd.grad(each(*z), z) for each in (loss, alone))))
    with torch.autocast("cpu", torch.bfloat16):
        cast = [*pair_sums(loss, z, THRESHOLD), *compare(loss, z)]
    torch.testing.assert_close(cast, plain, rtol=0, atol=0)
