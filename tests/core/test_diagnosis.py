"""What --log_similarity sums up, against loops over explicit pairs and numeric derivatives of the loss."""

import math

import numpy as np
import pytest
import spec_formulas as spec
import torch
from core_cases import OBJECTIVES, TEMPERATURES, alike_views, by_hand

from dystress_text.core import InfoNCELoss, QueueInfoNCELoss, ShiftedCosineTemperature, diagnosis
from dystress_text.core.diagnosis import BINS, PairSums, pair_sums

THRESHOLD = 0.1


def watched(loss, *z, threshold=THRESHOLD):
    """The sums of one batch."""
    seen = []

    def watch(*batch):
        seen.append(pair_sums(*batch, loss.temperature, loss.detach_temperature, threshold))

    loss.observer = watch
    loss(*z)
    (sums,) = seen
    return sums


def check(sums, positives, pairs, tau):
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
        np.testing.assert_allclose(getattr(sums, name).numpy(), values, rtol=1e-7, err_msg=name)
    for row, (values, weights) in enumerate([(positives, None), (s, None), (s, g)]):
        counts, _ = np.histogram(values, bins=BINS, range=(-1, 1), weights=weights)
        np.testing.assert_allclose(sums.histograms[row].numpy(), counts, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(("temperature", "detach"), [("constant", True), ("shifted", True), ("shifted", False)])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_sums_equal_loops_over_pairs(name, temperature, detach):
    objective, (module, tau) = OBJECTIVES[name], TEMPERATURES[temperature]
    z1, z2 = alike_views()
    lists = z1.tolist(), z2.tolist()
    similarities = objective.rows(*lists)
    weights = objective.weights(*lists, spec.divide(similarities, spec.apply(tau, similarities)))  # detached
    pairs = by_hand(similarities, tau, detach, lambda logits: objective.loss(logits, weights))
    positives = [spec.similarity(x, y) for x, y in zip(*lists, strict=True)]
    check(watched(objective.build(module, detach_temperature=detach), z1, z2), positives, pairs, tau)


def test_of_a_queue_the_negatives_are_the_keys_before_the_step():
    module, tau = TEMPERATURES["shifted"]
    loss = QueueInfoNCELoss(module, queue_size=6, dim=4).double()
    before, (z1, z2) = loss.queue.tolist(), alike_views(3)
    sums = watched(loss, z1, z2)
    positives = [spec.similarity(x, y) for x, y in zip(z1.tolist(), z2.tolist(), strict=True)]
    rows = [(p, [spec.similarity(x, key) for key in before]) for p, x in zip(positives, z1.tolist(), strict=True)]
    check(sums, positives, by_hand(rows, tau, True, spec.info_nce), tau)


def test_hard_negatives_and_their_weight():
    module, tau = TEMPERATURES["shifted"]
    (z1, z2), hard, bonus = alike_views(3), torch.randn(2, 3, 4, dtype=torch.float64), 0.7
    sums = watched(InfoNCELoss(module, hard_negative_weight=bonus), z1, z2, *hard)
    rows = [
        (p, [*others, *(spec.similarity(x, h) for h in hard.flatten(0, 1).tolist())])
        for (p, others), x in zip(spec.simcse_rows(z1.tolist(), z2.tolist()), z1.tolist(), strict=True)
    ]

    def loss_of(logits):
        return spec.info_nce(
            [
                (p, [v + bonus * (j in (2 + i, 5 + i)) for j, v in enumerate(others)])
                for i, (p, others) in enumerate(logits)
            ]
        )

    check(sums, [p for p, _ in rows], by_hand(rows, tau, True, loss_of), tau)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_blocks_of_rows_add_up(name, monkeypatch):
    loss = OBJECTIVES[name].build(ShiftedCosineTemperature())
    whole = watched(loss, *alike_views(7)).packed()
    monkeypatch.setattr(diagnosis, "BLOCK_ENTRIES", 30)  # one or two rows at a time
    torch.testing.assert_close(watched(loss, *alike_views(7)).packed(), whole, rtol=1e-12, atol=1e-12)


def test_packing_is_undone_and_packed_sums_add():
    first, second = (watched(InfoNCELoss(t), *alike_views()) for t in (0.05, 0.1))
    both = PairSums.unpacked(first.packed() + second.packed())
    for name, value in vars(both).items():
        torch.testing.assert_close(value, getattr(first, name) + getattr(second, name))


def test_loss_and_gradient_stay_as_they_are():
    z1, z2 = (z.requires_grad_() for z in alike_views())
    loss = InfoNCELoss(ShiftedCosineTemperature())
    plain = torch.autograd.grad(loss(z1, z2), [z1, z2])
    loss.observer = lambda units, *_: watched(InfoNCELoss(0.1), *(u.detach() for u in units))
    for a, b in zip(torch.autograd.grad(loss(z1, z2), [z1, z2]), plain, strict=True):
        assert torch.equal(a, b)
