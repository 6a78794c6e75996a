"""Every objective with hard negatives, in both directions and with duplicates left out: loops over pairs in fp64."""

import itertools

import pytest
import spec_formulas as spec
import torch
from core_cases import OBJECTIVES, TEMPERATURES, macl, macl_on_both_views, sample_ids
from processes import in_threads

from dystress_text.core import DCLLoss, DCLWLoss, InfoNCELoss, MACLLoss, NTXentLoss, QueueInfoNCELoss
from dystress_text.core.diagnosis import pair_sums

BOTH_VIEWS = ("NT-Xent", "DCL", "DCLW", "MACL, both views")
FORMS = pytest.mark.parametrize("blockwise", [False, True])


def views(n, dim, count, seed=0):
    generator = torch.Generator().manual_seed(100 * n + dim + seed)
    base = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    return [base + torch.randn(n, dim, generator=generator, dtype=torch.float64) for _ in range(count)]


def anchors_of(name, z):
    """Each anchor with its sample and the view that is its positive."""
    n = len(z[0])
    first = [(z[0][i], i, z[1][i]) for i in range(n)]
    return first + [(z[1][i], i, z[0][i]) for i in range(n)] if name in BOTH_VIEWS else first


def rows_by_hand(name, z, tau, weight, ids=None):
    """Rows of logits; a candidate is a negative unless it is anchor or positive, or has a sample in common with them.

    ``ids`` has the number of each sample by view and place. What stands for a candidate is its own number and, for a
    view of a pair, that of the other view.
    """
    n = len(z[0])
    views_met = (0, 1) if name in BOTH_VIEWS else (1,)
    found = []
    for anchor, i, positive in anchors_of(name, z):
        s_p = spec.similarity(anchor.tolist(), positive.tolist())
        logits = []
        for view, j in itertools.product([*views_met, *range(2, len(z))], range(n)):
            candidate = z[view][j]
            if candidate is anchor or (view < 2 and j == i):
                continue
            if ids is not None:
                numbers = {ids[0][j], ids[1][j]} if view < 2 else {ids[view][j]}
                if numbers & {ids[0][i], ids[1][i]}:
                    continue
            s = spec.similarity(anchor.tolist(), candidate.tolist())
            logits.append(s / tau(s) + (weight if view > 1 and i == j else 0))
        found.append((s_p / tau(s_p), logits))
    return found


def loss_by_hand(name, z, rows):
    """The mean over the rows, those without a negative counting as 0."""
    weights = OBJECTIVES["DCLW"].weights(z[0].tolist(), z[1].tolist(), rows) if name == "DCLW" else [1.0] * len(rows)
    losses = []
    for row, weight in zip(rows, weights, strict=True):
        if not row[1]:
            losses.append(0.0)
        elif name in ("DCL", "DCLW"):
            losses.append(spec.decoupled([row], [weight]))
        else:
            of_row = spec.macl_weights([row]) if name.startswith("MACL") else [1.0]
            losses.append(spec.weighted_info_nce([row], of_row))
    return spec.mean(losses)


@FORMS
@pytest.mark.parametrize("weight", [0.0, 0.7])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_hard_negatives_are_more_candidates_of_every_anchor(name, weight, blockwise):
    module, tau = TEMPERATURES["shifted"]
    loss = OBJECTIVES[name].build(module, hard_negative_weight=weight, blockwise=blockwise)
    for n, dim, count in [(1, 2, 3), (2, 3, 4), (5, 4, 3), (6, 5, 5)]:  # with one of them a single pair has a negative
        z = views(n, dim, count)
        expected = loss_by_hand(name, z, rows_by_hand(name, z, tau, weight))
        assert float(loss(*z)) == pytest.approx(expected, rel=1e-10)


@FORMS
@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_duplicates_are_no_negatives(name, count, blockwise):
    module, tau = TEMPERATURES["shifted"]
    loss = OBJECTIVES[name].build(module, hard_negative_weight=0.7, blockwise=blockwise)
    left_out = 0
    for n, dim in [(2, 3), (7, 4), (12, 5)]:
        z = views(n, dim, count)
        ids = [sample_ids(x) for x in z]
        rows, all_rows = (rows_by_hand(name, z, tau, 0.7, i) for i in ([x.tolist() for x in ids], None))
        assert float(loss(*z, ids=ids)) == pytest.approx(loss_by_hand(name, z, rows), rel=1e-10)
        left_out += sum(len(a[1]) - len(b[1]) for a, b in zip(all_rows, rows, strict=True))
    assert int(loss.duplicates) == left_out > 0


@FORMS
@pytest.mark.parametrize("name", OBJECTIVES)
def test_two_views_of_one_sample_have_its_number(name, blockwise):
    module, tau = TEMPERATURES["shifted"]
    z = views(8, 4, 2)
    ids = torch.tensor([7, -(2**62), 7, 3, 2**62 + 1, 2**62, 7, 3])  # numbers that only 64 bits tell apart
    loss = OBJECTIVES[name].build(module, blockwise=blockwise)
    expected = loss_by_hand(name, z, rows_by_hand(name, z, tau, 0, [ids.tolist()] * 2))
    assert float(loss(*z, ids=(ids, ids))) == pytest.approx(expected, rel=1e-10)
    assert float(loss(*z, ids=(ids, ids.clone()))) == pytest.approx(expected, rel=1e-10)
    assert int(loss.duplicates) == 2 * (8 if name in ("InfoNCE", "MACL") else 32)  # 3 of one, 2 of another sample


@FORMS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_batch_of_one_sample_alone_moves_nothing(name, dtype, blockwise):
    z = [x.to(dtype).requires_grad_() for x in views(4, 3, 2)]
    ids = torch.zeros(4, dtype=torch.int64)
    value = OBJECTIVES[name].build(TEMPERATURES["shifted"][0], blockwise=blockwise)(*z, ids=(ids, ids))
    assert value.item() == 0
    assert all(not gradient.any() for gradient in torch.autograd.grad(value, z))


@pytest.mark.parametrize("name", OBJECTIVES)
def test_different_samples_change_nothing(name):
    z = [x.requires_grad_() for x in views(6, 4, 2)]
    loss, ids = OBJECTIVES[name].build(0.1), torch.arange(6)
    with_ids, without = loss(*z, ids=(ids, ids)), loss(*z)
    assert torch.equal(with_ids, without)
    gradients = [torch.autograd.grad(value, z) for value in (with_ids, without)]
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@FORMS
@pytest.mark.parametrize("count", [2, 4])
def test_both_directions_are_their_mean(count, blockwise):
    module, tau = TEMPERATURES["shifted"]
    z = views(6, 4, count)
    ids = [sample_ids(x) for x in z]
    for given in (None, ids):
        numbers = None if given is None else [x.tolist() for x in given]
        swapped = None if numbers is None else numbers[1::-1]
        forth = spec.mean([loss_by_hand("InfoNCE", z, [row]) for row in rows_by_hand("InfoNCE", z, tau, 0.7, numbers)])
        back = loss_by_hand("InfoNCE", z, rows_by_hand("InfoNCE", z[1::-1], tau, 0.7, swapped))  # no hard negatives
        loss = InfoNCELoss(module, hard_negative_weight=0.7, blockwise=blockwise, bidirectional=True)
        assert float(loss(*z, ids=given)) == pytest.approx((forth + back) / 2, rel=1e-10)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_both_directions_are_sentence_transformers(count):
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    theirs = MultipleNegativesRankingLoss(
        model=None, scale=20.0, directions=("query_to_doc", "doc_to_query"), partition_mode="per_direction"
    )
    z = [x.float() for x in views(16, 12, count)]
    expected = float(theirs.compute_loss_from_embeddings(z, labels=None))
    assert float(InfoNCELoss(0.05, bidirectional=True)(*z)) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("build", [InfoNCELoss, NTXentLoss, DCLLoss, DCLWLoss, macl, macl_on_both_views])
def test_what_is_left_out_gets_no_gradient_and_is_not_watched(build):
    """Of the pairs of three samples, two of which are the same, the diagnosis sees those of different ones alone."""
    loss, seen = build(0.1), []
    z = [x.requires_grad_() for x in views(3, 4, 2)]
    ids = torch.tensor([5, 6, 5])

    def watch(*batch):
        seen.append(pair_sums(*batch, loss.temperature, True, 0.0))

    loss.observer = watch
    value = loss(*z, ids=(ids, ids))
    (sums,) = seen
    both = build not in (InfoNCELoss, macl)
    assert sums.counts.tolist()[:2] == [3, 16 if both else 4]
    assert torch.isfinite(sums.packed()).all()
    value.backward()
    assert all(torch.isfinite(x.grad).all() for x in z)


def test_processes_count_the_duplicates_of_all():
    z, counts = views(12, 4, 2), []
    ids = [sample_ids(x) for x in z]
    alone = InfoNCELoss(0.1)
    alone(*z, ids=ids)

    def work(gather):
        loss, rows = InfoNCELoss(0.1, gather=gather), slice(4 * gather.rank, 4 * gather.rank + 4)
        loss(*(x[rows] for x in z), ids=[x[rows] for x in ids])
        counts.append(int(loss.duplicates))
        return gather.rank

    in_threads(3, work)
    assert counts == [int(alone.duplicates)] * 3


def test_ids_that_do_not_fit_are_refused():
    z = views(3, 4, 3)
    with pytest.raises(ValueError, match=r"ids must be one tensor \(3,\) for each of 3 embeddings: \(3,\), \(3,\)"):
        InfoNCELoss(0.1)(*z, ids=[torch.arange(3)] * 2)
    with pytest.raises(ValueError, match="ids must be one tensor"):
        InfoNCELoss(0.1)(*z, ids=[torch.arange(4)] * 3)


def test_a_queue_takes_queries_and_keys_alone():
    with pytest.raises(TypeError):
        QueueInfoNCELoss(0.1, 8, 4)(*views(3, 4, 3))


def test_every_objective_says_its_weight():
    built = [InfoNCELoss(0.1), NTXentLoss(0.1), DCLLoss(0.1), DCLWLoss(0.1), MACLLoss()]
    assert [loss.hard_negative_weight for loss in built] == [0.0] * 5
