"""What the similarity log sums up, and a reweighting beside constants: loops over pairs, whose gradients
autograd takes.
"""

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
    """Similarities of the negatives, the sizes of their gradients, and the sum of the positives'
    sizes.
    """
    rows = [
        (p.detach().requires_grad_(), [s.detach().requires_grad_() for s in negatives])
        for p, negatives in rows
    ]
    negatives = [s for _, each in rows for s in each]
    of = torch.autograd.grad(loss_of(rows), [*(p for p, _ in rows), *negatives])
    g = [abs(float(x)) for x in of]
    return (
        np.array([s.item() for s in negatives]),
        np.array(g[len(rows) :]),
        math.fsum(g[: len(rows)]),
    )


def check_sums(found, rows, tau, loss_of, count):
    s, g, _ = sizes(rows, loss_of)
    positives = torch.stack([p for p, _ in rows[:count]]).detach()
    taus, of_positives = (
        np.array([float(tau(x)) for x in torch.as_tensor(each)]) for each in (s, positives)
    )
    high = s > THRESHOLD
    expected = {
        "counts": [count, len(s), high.sum()],
        "similarities": [positives.sum(), s.sum()],
        "temperatures": [of_positives.sum(), taus.sum(), (taus * g).sum()],
        "gradients": [g.sum(), g[high].sum()],
    }
    for name, values in expected.items():
        np.testing.assert_allclose(
            getattr(found, name).detach().numpy(), values, rtol=1e-6, err_msg=name
        )
    for row, (values, weights) in enumerate([(positives, None), (s, None), (s, g)]):
        counts, _ = np.histogram(values, bins=BINS, range=(-1, 1), weights=weights)
        np.testing.assert_allclose(
            found.histograms[row].detach().numpy(), counts, rtol=1e-6, atol=1e-9
        )


def check_comparison(found, rows, loss_of, loss_of_constant=INFO_NCE):
    """Against the same loops under some of the constants."""
    s, g, pulled = sizes(rows, loss_of)
    assert float(found.batches) == 1
    assert float(found.gradient_ratio) == pytest.approx(pulled / g.sum(), rel=1e-6)
    for k in (0, 12, 20, 40):
        tau = 0.01 * 100 ** (k / 40)
        assert float(constants()[k]) == pytest.approx(tau)
        _, c, _ = sizes(rows, lambda rows, tau=tau: loss_of_constant(rows, lambda s: tau))
        assert float(found.total_variation[k]) == pytest.approx(
            np.abs(g / g.sum() - c / c.sum()).sum() / 2, abs=2e-6
        )
        shares, _ = np.histogram(s, BINS, (-1, 1), weights=c / c.sum())
        np.testing.assert_allclose(found.constants[k], shares, atol=2e-6)
    np.testing.assert_allclose(
        found.shares, np.histogram(s, BINS, (-1, 1), weights=g / g.sum())[0], atol=2e-6
    )


@pytest.mark.parametrize(("temperature", "detach"), [("cosine", True), ("shifted", False)])
@pytest.mark.parametrize("hard", [0, 2])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_sums_and_comparison_equal_loops_over_pairs(name, temperature, detach, hard, monkeypatch):
    case, (module, tau) = OBJECTIVES[name], TEMPERATURES[temperature]
    z, bonus = views(4, 4, 2 + hard), {"samples": 4, "hard": hard, "bonus": 0.7}
    rows, loss_of = case.rows(*z), partial(case.loss, tau=tau, detach=detach, **bonus)
    loss = case.build(module, detach_temperature=detach, hard_negative_weight=0.7)
    for entries in (diagnosis.BLOCK_ENTRIES, 30):  # all rows, and a few at a time
        monkeypatch.setattr(diagnosis, "BLOCK_ENTRIES", entries)
        check_sums(pair_sums(loss, z, THRESHOLD), rows, tau, loss_of, 4)
    constant = OBJECTIVES[name.replace("MACL, both views", "NT-Xent").replace("MACL", "InfoNCE")]
    check_comparison(
        compare(loss, z), rows, loss_of, lambda rows, tau: constant.loss(rows, tau, **bonus)
    )


def test_of_a_queue_the_negatives_are_the_keys_before_the_step():
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
def test_rules_and_objectives_that_are_rules_are_compared_with_infonce(loss, row_loss):
    z = views(5, 4)
    check_comparison(
        compare(loss, z),
        spec.simcse_rows(*z),
        lambda rows: spec.mean([row_loss(*row) for row in rows]),
    )


def test_of_a_large_batch_the_first_anchors_count(monkeypatch):
    (module, tau), z = TEMPERATURES["shifted"], views(9, 4)
    rows, loss_of = spec.simcse_rows(*z), partial(INFO_NCE, tau=tau)
    monkeypatch.setattr(diagnosis, "MOST_ANCHORS", 5)
    monkeypatch.setattr(diagnosis, "_AT_ONCE", 200)  # four constants at a time
    check_comparison(compare(losses.InfoNCELoss(module), z), rows[:5], loss_of)
    monkeypatch.setattr(diagnosis, "MOST_PAIRS", 9 * 3)
    check_comparison(compare(losses.InfoNCELoss(module), z), rows[:3], loss_of)


def test_processes_compare_their_own_anchors_with_the_candidates_of_all():
    (module, tau), z = TEMPERATURES["cosine"], views(6, 4)

    def work(gather):
        return compare(
            losses.NTXentLoss(module, gather=gather), [own(x, gather.rank, 2) for x in z]
        )

    rows = spec.simclr_rows(*z)
    for rank, found in enumerate(in_threads(2, work)):
        mine = [row for i, row in enumerate(rows) if i % 6 // 3 == rank]
        check_comparison(found, mine, partial(INFO_NCE, tau=tau))


def test_batches_add_and_one_without_a_gradient_does_not_count():
    loss = losses.InfoNCELoss(TEMPERATURES["shifted"][0])
    first, second = (compare(loss, views(n, 4)) for n in (4, 7))
    nothing = compare(loss, [x * math.nan for x in views(4, 4)])
    mean = ConstantComparison(
        *(sum(each) for each in zip(first, second, nothing, strict=True))
    ).mean()
    assert float(mean.batches) == 2
    for value, one, two in zip(mean[1:], first[1:], second[1:], strict=True):
        torch.testing.assert_close(value, (one + two) / 2)


def test_in_fp32_a_large_lead_of_all_positives_still_has_shares():
    z = [
        torch.eye(6) - 0.9 * (k == 0) * torch.ones(6, 6) / 6 for k in range(2)
    ]  # at 0.01 a lead of 100 and more
    found = compare(losses.InfoNCELoss(0.1), z)
    assert float(found.batches) == 1
    assert bool(found.total_variation.isfinite().all())


def test_watching_leaves_no_trace_but_the_mean_similarity_and_autocast_changes_nothing():
    z = [x.detach().float().requires_grad_() for x in views(5, 4)]  # autocast leaves fp64 alone
    loss, alone = (
        losses.NTXentLoss(losses.AlignmentAdaptiveTemperature(0.1, 0.5, 0.8)) for _ in range(2)
    )
    plain = [*pair_sums(loss, z, THRESHOLD), *compare(loss, z)]
    found, expected = (torch.autograd.grad(each(*z), z) for each in (loss, alone))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    with torch.autocast("cpu", torch.bfloat16):
        cast = [*pair_sums(loss, z, THRESHOLD), *compare(loss, z)]
    torch.testing.assert_close(cast, plain, rtol=0, atol=0)
