"""A teacher's lists and truncated dimensions: loops in fp64, SciPy, closed forms, sentence-transformers."""

import itertools
import math

import numpy as np
import pytest
import rule_loops as loops
import torch
from gather_cases import own
from processes import in_threads
from scipy.special import log_softmax, softmax

from dystress_text.core import InfoNCELoss, NTXentLoss, SampleTemperature
from dystress_text.core.distillation import Distillation, list_mle, list_net
from dystress_text.core.gather import LocalGather
from dystress_text.core.matryoshka import matryoshka

KINDS = pytest.mark.parametrize("kind", ["listnet", "listmle"])


def views(n, dim, count=2, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(n, dim, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(count)]


def loop(kind, z, t, weight, student_tau, teacher_tau):
    n, rows = len(z[0]), []
    for i in range(n):
        others = [j for j in range(n) if j != i]
        given = [loops.similarity(t[0][i], t[1][j]).item() for j in others]
        logits = [loops.similarity(z[0][i], z[1][j]) / student_tau for j in others]
        if kind == "listnet":
            total = math.fsum(math.exp(s / teacher_tau) for s in given)
            everything = loops.total([x.exp() for x in logits]).log()
            costs = [math.exp(s / teacher_tau) / total * (everything - x) for s, x in zip(given, logits, strict=True)]
        else:
            left = [x for _, x in sorted(zip(given, logits, strict=True), key=lambda pair: -pair[0])]
            costs = [loops.total([x.exp() for x in left[k:]]).log() - left[k] for k in range(len(left))]
        rows.append(loops.total(costs))
    return weight * loops.mean(rows)


@KINDS
def test_a_list_loss_is_its_loop_and_processes_are_one(kind):
    """The teacher has another dimension; the lists are those of the global batch."""
    z, t = views(6, 3), views(6, 5, seed=1)
    expected = loop(kind, z, t, 0.7, 0.2, 0.1)
    gradient = torch.autograd.grad(expected, z)
    lists = Distillation(kind, 0.7, 0.2, 0.1)
    found = lists(z, t, LocalGather())
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(torch.autograd.grad(found, z), gradient, rtol=1e-9, atol=1e-12)

    def work(gather):
        return lists(*([own(x, gather.rank, 2) for x in vectors] for vectors in (z, t)), gather)

    average = torch.stack(in_threads(2, work)).mean()
    torch.testing.assert_close(average, expected, rtol=1e-12, atol=0)
    torch.testing.assert_close(torch.autograd.grad(average, z), gradient, rtol=1e-9, atol=1e-12)


def test_listnet_is_scipys_cross_entropy():
    student, teacher = (x.detach() * 30 for x in views(4, 6))
    expected = -(softmax(teacher.numpy(), axis=1) * log_softmax(student.numpy(), axis=1)).sum(1)
    np.testing.assert_allclose(list_net(student, teacher).numpy(), expected, rtol=1e-12)


def test_listmle_is_the_probability_of_an_order():
    """Of three items in closed form, and over all orders of four the probabilities add up to 1."""
    a, b, c = 0.3, -0.5, 1.1
    cost = list_mle(torch.tensor([[a, b, c]], dtype=torch.float64), torch.tensor([[2.0, 3.0, 1.0]]))
    probability = math.exp(b) / (math.exp(a) + math.exp(b) + math.exp(c)) * math.exp(a) / (math.exp(a) + math.exp(c))
    assert float(cost) == pytest.approx(-math.log(probability), rel=1e-12)
    student = torch.tensor([[0.2, -3.0, 5.0, 1.0]], dtype=torch.float64)
    orders = [torch.tensor([order], dtype=torch.float64) for order in itertools.permutations(range(4))]
    assert sum(math.exp(-float(list_mle(student, order))) for order in orders) == pytest.approx(1, rel=1e-12)
    equal = list_mle(torch.zeros(1, 5), torch.zeros(1, 5))
    assert float(equal) == pytest.approx(math.log(120), rel=1e-6)


def test_large_logits_stay_finite():
    student, teacher = torch.tensor([[400.0, -400.0, 0.0]], requires_grad=True), torch.tensor([[-50.0, 40.0, 0.0]])
    for loss in (list_net, list_mle):
        value = loss(student, teacher).sum()
        assert value.isfinite()
        assert torch.autograd.grad(value, student)[0].isfinite().all()


@pytest.mark.parametrize("options", [{"kind": "kl"}, {"kind": "listnet", "weight": 0.0}])
def test_what_is_no_list_loss_is_refused(options):
    with pytest.raises(ValueError, match=r"kind|weight"):
        Distillation(**options)


# ---- dimensions -----------------------------------------------------------------------------------------------------


def test_the_sum_over_dimensions_is_sentence_transformers():
    from sentence_transformers.sentence_transformer.losses import MatryoshkaLoss, MultipleNegativesRankingLoss

    class Model(torch.nn.Module):
        def forward(self, features):
            return dict(features)

        def get_embedding_dimension(self):
            return 12

    class Loss(torch.nn.Module):
        def forward(self, features, labels):
            theirs = MultipleNegativesRankingLoss(model=None, scale=20)
            columns = [model.forward(column)["sentence_embedding"] for column in features]
            return theirs.compute_loss_from_embeddings(columns, labels=None)

    model, z = Model(), [x.detach().float().requires_grad_() for x in views(7, 12)]
    theirs = MatryoshkaLoss(model, Loss(), [4, 12, 8])
    expected = theirs([{"sentence_embedding": x} for x in z], None)
    found = matryoshka(InfoNCELoss(0.05), z, [8, 4, 12])
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
    gradients = (torch.autograd.grad(value, z) for value in (found, expected))
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)


def test_pairs_are_counted_and_observed_once():
    z, ids, seen = views(5, 6), torch.tensor([0, 1, 2, 1, 4]), []
    loss = NTXentLoss(0.1)
    loss.observer = lambda z, *_: seen.append(z[0].shape[1])
    matryoshka(loss, z, [2, 4], ids=(ids, ids))
    assert (int(loss.duplicates), seen) == (8, [4])
    assert loss.observer is not None
    for dims, objective in (([7], loss), ([0, 3], loss), ([], loss), ([3, 2], InfoNCELoss(SampleTemperature()))):
        with pytest.raises(ValueError, match=r"dims must|for each sample"):
            matryoshka(objective, z, dims)
