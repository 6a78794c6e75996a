"""A rule beside constants, against loops over explicit pairs and numeric derivatives of the loss."""

import math

import numpy as np
import pytest
import spec_formulas as spec
import torch
from core_cases import OBJECTIVES, TEMPERATURES, VARIANTS, alike_views, by_hand, compared
from gather_cases import own
from processes import in_threads

from dystress_text.core import (
    ConstantTemperature,
    DCLLoss,
    InfoNCELoss,
    NTXentLoss,
    QueueInfoNCELoss,
    RINCELoss,
    SigLIPLoss,
    comparison,
)
from dystress_text.core.comparison import CONSTANTS, Comparison, constants
from dystress_text.core.diagnosis import BINS

SOME = (0, 12, 20, 40)  # of the constants


def shares(pairs):
    similarity, size = np.array(pairs).T
    return similarity, size / size.sum()


def moved_by_hand(rows, rule, tau, loss_of, loss_of_constant, detach=True):
    """The moved share for a constant, and the histograms of both."""
    s, g = shares(by_hand(rows, rule, detach, loss_of))
    _, c = shares(by_hand(rows, lambda s: tau, True, loss_of_constant))
    return np.abs(g - c).sum() / 2, [np.histogram(s, BINS, (-1, 1), weights=w)[0] for w in (g, c)]


def check(found, rows, rule, loss_of, loss_of_constant=None, detach=True):
    assert float(found.batches) == 1
    for k in SOME:
        tau = 0.01 * 100 ** (k / 40)
        assert float(constants()[k]) == pytest.approx(tau)
        moved, (of_rule, of_constant) = moved_by_hand(rows, rule, tau, loss_of, loss_of_constant or loss_of, detach)
        assert float(found.moved[k]) == pytest.approx(moved, abs=2e-6)
        np.testing.assert_allclose(found.constants[k], of_constant, atol=2e-6)
    np.testing.assert_allclose(found.rule, of_rule, atol=2e-6)


def positives_by_hand(rows, tau, detach, loss_of, step=1e-5):
    """The sum of the sizes of the positives' gradients, by differences of fourth order."""

    def loss(place, offset):
        logits = []
        for i, (positive, negatives) in enumerate(rows):
            moved = positive + offset * (i == place)
            at = positive if detach else moved
            logits.append((moved / tau(at), [s / tau(s) for s in negatives]))
        return loss_of(logits)

    return math.fsum(
        abs(8 * (loss(i, step) - loss(i, -step)) - loss(i, 2 * step) + loss(i, -2 * step)) / (12 * step)
        for i in range(len(rows))
    )


@pytest.mark.parametrize(("temperature", "detach"), [("cosine", True), ("shifted", False)])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_equals_loops_over_pairs(name, temperature, detach):
    objective, (module, tau) = OBJECTIVES[name], TEMPERATURES[temperature]
    z1, z2 = alike_views()
    lists = z1.tolist(), z2.tolist()
    rows = objective.rows(*lists)
    fixed = objective.weights(*lists, spec.divide(rows, spec.apply(tau, rows)))  # detached
    reference = [1.0] * len(rows) if "MACL" in name else fixed

    def loss_of(logits):
        return objective.loss(logits, fixed)

    found = compared(objective.build(module, detach_temperature=detach), z1, z2)
    check(found, rows, tau, loss_of, lambda logits: objective.loss(logits, reference), detach)
    pushed = math.fsum(g for _, g in by_hand(rows, tau, detach, loss_of))
    assert float(found.pull) == pytest.approx(positives_by_hand(rows, tau, detach, loss_of) / pushed, rel=1e-6)


def test_both_directions_hard_negatives_and_duplicates():
    """Groups of different width; the first sample is the third, so that they are no negatives of each other."""
    module, tau = TEMPERATURES["shifted"]
    (z1, z2), bonus = alike_views(4), 0.7
    hard = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    same = [{0, 2}, {1}, {0, 2}, {3}]
    rows, bonuses = [], []
    for first, second, further in ((z1, z2, hard), (z2, z1, hard[:0])):
        x, y, h = first.tolist(), second.tolist(), further.tolist()
        for i in range(4):
            others = [spec.similarity(x[i], y[j]) for j in range(4) if j not in same[i]]
            rows.append((spec.similarity(x[i], y[i]), [*others, *(spec.similarity(x[i], v) for v in h)]))
            bonuses.append([0.0] * len(others) + [bonus * (i == j) for j in range(len(h))])

    def loss_of(logits):
        return spec.info_nce(
            [(p, [v + b for v, b in zip(vs, bs, strict=True)]) for (p, vs), bs in zip(logits, bonuses, strict=True)]
        )

    ids = torch.tensor([7, 8, 7, 9])
    loss = InfoNCELoss(module, hard_negative_weight=bonus, bidirectional=True)
    check(compared(loss, z1, z2, hard, ids=[ids, ids, torch.arange(4)]), rows, tau, loss_of)


def test_of_a_queue():
    module, tau = TEMPERATURES["cosine"]
    loss = QueueInfoNCELoss(module, queue_size=6, dim=4).double()
    keys, (z1, z2) = loss.queue.tolist(), alike_views(3)
    rows = [
        (spec.similarity(x, y), [spec.similarity(x, key) for key in keys])
        for x, y in zip(z1.tolist(), z2.tolist(), strict=True)
    ]
    check(compared(loss, z1, z2), rows, tau, spec.info_nce)


@pytest.mark.parametrize("name", VARIANTS)
def test_a_constant_is_itself_and_pulls_as_hard_as_it_pushes(name):
    build, count = VARIANTS[name]
    z = torch.randn(count, 6, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = compared(build(ConstantTemperature(float(constants()[17]))), *z)
    if "MACL" not in name:  # its rows have weights, which are no constant's
        assert float(found.moved[17]) < 1e-12
        torch.testing.assert_close(found.rule, found.constants[17])
    if "DCLW" not in name:  # its positives have weights
        assert float(found.pull) == pytest.approx(1, abs=1e-12)
    torch.testing.assert_close(found.constants.sum(1), torch.ones(CONSTANTS, dtype=torch.float64))


def test_of_a_large_batch_the_first_anchors_count(monkeypatch):
    module, _ = TEMPERATURES["shifted"]
    z1, z2 = alike_views(9)
    monkeypatch.setattr(comparison, "MOST_ANCHORS", 5)
    monkeypatch.setattr(comparison, "_AT_ONCE", 200)  # four constants at a time
    found = compared(InfoNCELoss(module), z1, z2)
    rows = spec.simcse_rows(z1.tolist(), z2.tolist())[:5]
    check(found, rows, TEMPERATURES["shifted"][1], spec.info_nce)
    monkeypatch.setattr(comparison, "MOST_PAIRS", 9 * 3)
    few = compared(InfoNCELoss(module), z1, z2)
    check(few, rows[:3], TEMPERATURES["shifted"][1], spec.info_nce)


def test_processes_compare_their_own_anchors_with_the_candidates_of_all():
    module, tau = TEMPERATURES["cosine"]
    z = alike_views(6)

    def work(gather):
        return compared(NTXentLoss(module, gather=gather), *(own(x, gather.rank, 2) for x in z))

    rows = spec.simclr_rows(*(x.tolist() for x in z))
    for rank, found in enumerate(in_threads(2, work)):
        mine = [i for i in range(12) if i % 6 // 3 == rank]
        check(found, [rows[i] for i in mine], tau, spec.info_nce)


def test_batches_add_and_one_without_a_gradient_does_not_count():
    module, _ = TEMPERATURES["shifted"]
    loss = InfoNCELoss(module)
    first, second = (compared(loss, *alike_views(n)) for n in (4, 7))
    same = torch.zeros(4, dtype=torch.int64)
    nothing = compared(loss, *alike_views(4), ids=[same, same])
    mean = Comparison.unpacked(first.packed() + second.packed() + nothing.packed()).mean()
    assert float(mean.batches) == 2
    for name in ("pull", "moved", "rule", "constants"):
        torch.testing.assert_close(getattr(mean, name), (getattr(first, name) + getattr(second, name)) / 2)


def test_objectives_that_are_rules_are_compared_with_infonce():
    z, tau, q, lam = alike_views(), 0.2, 0.5, 0.3
    rows = spec.simcse_rows(*(x.tolist() for x in z))

    def rince(logits):
        inside = [lam * (math.exp(p) + math.fsum(map(math.exp, others))) for p, others in logits]
        return spec.mean([(x**q - math.exp(q * p)) / q for x, (p, _) in zip(inside, logits, strict=True)])

    check(compared(RINCELoss(tau, q=q, lam=lam), *z), rows, lambda s: tau, rince, spec.info_nce)

    def siglip(logits):  # of similarities divided by 1
        return spec.mean(
            [
                math.log1p(math.exp(-(5 * p - 3))) + math.fsum(math.log1p(math.exp(5 * s - 3)) for s in others)
                for p, others in logits
            ]
        )

    _, g = shares(by_hand(rows, lambda s: 1.0, True, siglip))
    _, c = shares(by_hand(rows, lambda s: 0.1, True, spec.info_nce))
    found = compared(SigLIPLoss(5.0, -3.0), *z)
    assert float(found.moved[20]) == pytest.approx(np.abs(g - c).sum() / 2, abs=2e-6)
    pushed = math.fsum(g for _, g in by_hand(rows, lambda s: 1.0, True, siglip))
    assert float(found.pull) == pytest.approx(positives_by_hand(rows, lambda s: 1.0, True, siglip) / pushed, rel=1e-6)


def test_an_anchor_without_negatives_pulls_nothing():
    """The first sample shares an id with either of the others, which are negatives of each other."""
    ids = [torch.tensor([1, 1, 2]), torch.tensor([2, 3, 4])]
    found = compared(DCLLoss(float(constants()[20])), *alike_views(3), ids=ids)
    assert float(found.pull) == pytest.approx(1, abs=1e-12)
    assert float(found.moved[20]) < 1e-12
