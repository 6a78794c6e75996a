"""What the similarity log sums up, and a rule beside constants: loops over pairs, numeric derivatives of the loss."""

import math

import numpy as np
import pytest
import spec_formulas as spec
import torch
from core_cases import OBJECTIVES, TEMPERATURES, by_hand, lists, views
from gather_cases import own
from processes import in_threads

from dystress_text.core import (
    ADNCERule,
    AlignmentAdaptiveTemperature,
    HardNegativeRule,
    InfoNCELoss,
    NTXentLoss,
    QueueInfoNCELoss,
    RINCELoss,
    SigLIPLoss,
    diagnosis,
)
from dystress_text.core.diagnosis import BINS, Comparison, compare, constants, local_temperature, pair_sums

THRESHOLD = 0.1


def check_sums(found, positives, pairs, tau):
    """Sums against lists: similarities of positives, and (similarity, gradient) of negatives."""
    s, g = np.array(pairs).T
    taus = np.array([tau(x) for x in s])
    expected = {
        "counts": [len(positives), len(s), (s > THRESHOLD).sum()],
        "similarities": [math.fsum(positives), s.sum()],
        "temperatures": [math.fsum(map(tau, positives)), taus.sum(), (taus * g).sum()],
        "gradients": [g.sum(), g[s > THRESHOLD].sum()],
    }
    for name, values in expected.items():
        np.testing.assert_allclose(getattr(found, name).detach().numpy(), values, rtol=1e-6, err_msg=name)
    for row, (values, weights) in enumerate([(positives, None), (s, None), (s, g)]):
        counts, _ = np.histogram(values, bins=BINS, range=(-1, 1), weights=weights)
        np.testing.assert_allclose(found.histograms[row].detach().numpy(), counts, rtol=1e-6, atol=1e-9)


def shares(pairs):
    size = np.array(pairs)[:, 1]
    return size / size.sum()


def check_comparison(found, pairs, rows, loss_of_constant):
    """Against the same loops under some of the constants."""
    s, g = np.array(pairs)[:, 0], shares(pairs)
    assert float(found.batches) == 1
    for k in (0, 12, 20, 40):
        tau = 0.01 * 100 ** (k / 40)
        assert float(constants()[k]) == pytest.approx(tau)
        c = shares(by_hand(rows, lambda s, tau=tau: tau, True, loss_of_constant))
        assert float(found.moved[k]) == pytest.approx(np.abs(g - c).sum() / 2, abs=2e-6)
        np.testing.assert_allclose(found.constants[k], np.histogram(s, BINS, (-1, 1), weights=c)[0], atol=2e-6)
    np.testing.assert_allclose(found.rule, np.histogram(s, BINS, (-1, 1), weights=g)[0], atol=2e-6)


def pulled(rows, tau, detach, loss_of, step=1e-5):
    """The sum of the sizes of the positives' gradients, by differences of fourth order."""

    def loss(place, offset):
        logits = []
        for i, (positive, negatives) in enumerate(rows):
            moved = positive + offset * (i == place)
            logits.append((moved / tau(positive if detach else moved), [s / tau(s) for s in negatives]))
        return loss_of(logits)

    return math.fsum(
        abs(8 * (loss(i, step) - loss(i, -step)) - loss(i, 2 * step) + loss(i, -2 * step)) / (12 * step)
        for i in range(len(rows))
    )


@pytest.mark.parametrize(("temperature", "detach"), [("cosine", True), ("shifted", False)])
@pytest.mark.parametrize("hard", [0, 2])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_sums_and_comparison_equal_loops_over_pairs(name, temperature, detach, hard, monkeypatch):
    case, (module, tau) = OBJECTIVES[name], TEMPERATURES[temperature]
    z = views(4, 4, 2 + hard)
    rows = case.rows(*lists(z))

    def with_bonus(logits):
        return case.logits(logits, spec.apply(lambda s: 1.0, logits), 4, hard, 0.7)

    weights = case.weights(*lists(z)[:2], with_bonus(spec.divide(rows, spec.apply(tau, rows))))  # detached

    def loss_of(logits):
        return case.loss(with_bonus(logits), weights)

    pairs = by_hand(rows, tau, detach, loss_of)
    positives = [p for p, _ in rows[:4]]
    loss = case.build(module, detach_temperature=detach, hard_negative_weight=0.7)
    check_sums(pair_sums(loss, z, THRESHOLD), positives, pairs, tau)
    monkeypatch.setattr(diagnosis, "BLOCK_ENTRIES", 30)  # a few rows at a time
    check_sums(pair_sums(loss, z, THRESHOLD), positives, pairs, tau)
    found = compare(loss, z)
    of_constants = [1.0] * len(rows) if "MACL" in name else weights
    check_comparison(found, pairs, rows, lambda logits: case.loss(with_bonus(logits), of_constants))
    pushed = math.fsum(g for _, g in pairs)
    assert float(found.pull) == pytest.approx(pulled(rows, tau, detach, loss_of) / pushed, rel=1e-6)


def test_of_a_queue_the_negatives_are_the_keys_before_the_step():
    module, tau = TEMPERATURES["shifted"]
    loss = QueueInfoNCELoss(module, queue_size=6, dim=4).double()
    z, keys = views(3, 4), loss.queue.tolist()
    rows = [(spec.similarity(x, y), [spec.similarity(x, key) for key in keys]) for x, y in zip(*lists(z), strict=True)]
    pairs = by_hand(rows, tau, True, spec.info_nce)
    check_sums(pair_sums(loss, z, THRESHOLD), [p for p, _ in rows], pairs, tau)
    check_comparison(compare(loss, z), pairs, rows, spec.info_nce)
    assert loss.queue.tolist() == keys


def test_rules_and_objectives_that_are_rules_are_compared_with_infonce():
    z, q, lam = views(5, 4), 0.5, 0.3
    rows = spec.simcse_rows(*lists(z))

    def rince(logits):
        inside = [lam * (math.exp(p) + math.fsum(map(math.exp, others))) for p, others in logits]
        return spec.mean([(x**q - math.exp(q * p)) / q for x, (p, _) in zip(inside, logits, strict=True)])

    def siglip(logits):  # of similarities divided by 1
        cost = [math.fsum(math.log1p(math.exp(5 * s - 3)) for s in others) for _, others in logits]
        return spec.mean([math.log1p(math.exp(3 - 5 * p)) + c for (p, _), c in zip(logits, cost, strict=True)])

    def hcl(logits):
        weighted = [
            (p, math.fsum(math.exp(2 * v) for v in vs) / math.fsum(map(math.exp, vs)) * len(vs)) for p, vs in logits
        ]
        return spec.mean([math.log1p(total / math.exp(p)) for p, total in weighted])

    for loss, tau, loss_of in (
        (RINCELoss(0.2, q=q, lam=lam), 0.2, rince),
        (SigLIPLoss(5.0, -3.0).double(), 1.0, siglip),
        (InfoNCELoss(HardNegativeRule(0.2, 1.0, 0.0)), 0.2, hcl),
    ):
        pairs = by_hand(rows, lambda s, tau=tau: tau, True, loss_of)
        check_comparison(compare(loss, z), pairs, rows, spec.info_nce)


def test_of_a_large_batch_the_first_anchors_count(monkeypatch):
    (module, tau), z = TEMPERATURES["shifted"], views(9, 4)
    rows = spec.simcse_rows(*lists(z))[:5]
    monkeypatch.setattr(diagnosis, "MOST_ANCHORS", 5)
    monkeypatch.setattr(diagnosis, "_AT_ONCE", 200)  # four constants at a time
    pairs = by_hand(rows, tau, True, spec.info_nce)
    check_comparison(compare(InfoNCELoss(module), z), pairs, rows, spec.info_nce)
    monkeypatch.setattr(diagnosis, "MOST_PAIRS", 9 * 3)
    check_comparison(compare(InfoNCELoss(module), z), pairs[: 3 * 8], rows[:3], spec.info_nce)


def test_processes_compare_their_own_anchors_with_the_candidates_of_all():
    (module, tau), z = TEMPERATURES["cosine"], views(6, 4)

    def work(gather):
        return compare(NTXentLoss(module, gather=gather), [own(x, gather.rank, 2) for x in z])

    rows = spec.simclr_rows(*lists(z))
    for rank, found in enumerate(in_threads(2, work)):
        mine = [row for i, row in enumerate(rows) if i % 6 // 3 == rank]
        check_comparison(found, by_hand(mine, tau, True, spec.info_nce), mine, spec.info_nce)


def test_batches_add_and_one_without_a_gradient_does_not_count():
    loss = InfoNCELoss(TEMPERATURES["shifted"][0])
    first, second = (compare(loss, views(n, 4)) for n in (4, 7))
    nothing = compare(loss, [x * math.nan for x in views(4, 4)])
    mean = Comparison(*(sum(each) for each in zip(first, second, nothing, strict=True))).mean()
    assert float(mean.batches) == 2
    for value, one, two in zip(mean[1:], first[1:], second[1:], strict=True):
        torch.testing.assert_close(value, (one + two) / 2)


def test_watching_leaves_no_trace_but_the_mean_similarity_that_the_loss_observes_too():
    z = views(5, 4)
    loss, alone = (NTXentLoss(AlignmentAdaptiveTemperature(0.1, 0.5, 0.8)) for _ in range(2))
    pair_sums(loss, z, THRESHOLD)
    compare(loss, z)
    found, expected = (torch.autograd.grad(each(*z), z) for each in (loss, alone))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_the_local_temperature_is_that_of_the_gradient():
    s = torch.linspace(-1, 1, 401, dtype=torch.float64)
    temperature, _ = TEMPERATURES["shifted"]
    found = local_temperature(temperature, s, True)
    log_size = s / temperature(s) - temperature(s).log()  # exp(l) / tau
    slope = log_size.diff() / s.diff()
    middle = 0.5 * (found[1:].reciprocal() + found[:-1].reciprocal())
    torch.testing.assert_close(middle[5:-5], slope[5:-5], rtol=2e-2, atol=0)
    assert torch.allclose(local_temperature(TEMPERATURES["constant"][0], s, False), torch.full_like(s, 0.1))
    assert local_temperature(ADNCERule(), s, True) is None
