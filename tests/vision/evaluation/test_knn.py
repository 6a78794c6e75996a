"""Nearest neighbours: against scikit-learn, explicit loops in fp64, and cases worked by hand."""

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from vision_cases import clouds

from vision.evaluation import knn
from vision.evaluation.knn import Accuracy, cosine_votes, l2_votes


def lattice(n, m, seed=0):
    """Whole numbers from a small cube: exact matches and many ties."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(0, 3, (n + m, 4), generator=generator).float()
    return x[:n], torch.randint(3, (n,), generator=generator), x[n:], None


@pytest.fixture(params=[None, 7], ids=["one block", "blocks of 7"], autouse=True)
def blocks(request, monkeypatch):
    if request.param is not None:
        monkeypatch.setattr(knn, "QUERIES", request.param)
        monkeypatch.setattr(knn, "BANK", request.param)


def test_cosine_equals_scikit_learn_with_these_weights():
    bank, labels, queries, _ = clouds(300, 100, seed=1)
    theirs = KNeighborsClassifier(
        20,
        metric="cosine",
        algorithm="brute",
        weights=lambda distance: np.exp((1 - distance) / 0.1),
    ).fit(bank.double().numpy(), labels.numpy())
    mine = cosine_votes(bank, labels, queries, 5, 20).argmax(1)
    assert np.array_equal(mine.numpy(), theirs.predict(queries.double().numpy()))
    assert (mine == torch.mode(labels).values).float().mean() < 0.5


@pytest.mark.parametrize("k", [1, 10])
@pytest.mark.parametrize("draw", [clouds, lattice])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_l2_equals_scikit_learn_where_it_defines_neighbours(draw, k, dtype):
    """Which of several neighbours at one distance is the k-th is nobody's promise; all else is."""
    bank, labels, queries, _ = draw(60, 200)
    distances = torch.cdist(queries.double(), bank.double()).sort(1).values
    defined = (distances[:, k - 1] < distances[:, k]).numpy()
    assert defined.sum() >= 10
    theirs = KNeighborsClassifier(k, weights="distance", algorithm="kd_tree").fit(
        bank.double().numpy(), labels.numpy()
    )
    votes = l2_votes(bank.to(dtype), labels, queries.to(dtype), int(labels.max()) + 1, (1, k, 12))[
        k
    ]
    shares = (votes / votes.sum(1, keepdim=True)).numpy()[defined]
    assert shares == pytest.approx(
        theirs.predict_proba(queries.double().numpy())[defined], abs=1e-6
    )


@pytest.mark.parametrize("draw", [clouds, lattice])
def test_top5_counts_classes_with_a_vote_alone(draw):
    """A loop over scikit-learn's probabilities; few neighbours vote for few of nine classes."""
    bank, labels, queries, _ = draw(80, 90)
    labels = torch.arange(80) % 9
    truth = torch.arange(90) % 9
    weights = {"cosine": lambda distance: np.exp((1 - distance) / 0.1), "euclidean": "distance"}
    unit = {
        "cosine": lambda x: x / x.norm(dim=1, keepdim=True).clamp_min(1e-12),
        "euclidean": lambda x: x,
    }
    votes = {
        "cosine": cosine_votes(bank, labels, queries, 9, 5),
        "euclidean": l2_votes(bank, labels, queries, 9, [5])[5],
    }
    for metric, mine in votes.items():
        x, q = (unit[metric](each.double()).numpy() for each in (bank, queries))
        theirs = KNeighborsClassifier(
            5, metric=metric, algorithm="brute", weights=weights[metric]
        ).fit(x, labels)
        right = 0
        for row, own in zip(theirs.predict_proba(q), truth.tolist(), strict=True):
            voted = [label for label in np.argsort(-row, kind="stable")[:5] if row[label] > 0]
            right += own in voted
        found = Accuracy.of(mine, truth, above=0)
        if (
            draw is clouds
        ):  # in a lattice, which of several neighbours at one distance is the fifth is nobody's promise
            assert found.top5 == pytest.approx(100 * right / 90)
        assert found.top5 < Accuracy.of(mine, truth).top5


def test_top1_and_top5_and_ties():
    scores = torch.tensor([[7.0, 6, 5, 4, 3, 2, 1]] * 4)
    assert Accuracy.of(scores, torch.tensor([0, 4, 5, 6])) == Accuracy(25.0, 50.0)
    tie = torch.ones(1, 6)  # the lower class wins
    assert [Accuracy.of(tie, torch.tensor([k])).top1 for k in (0, 1)] == [100.0, 0.0]
    assert Accuracy.of(torch.eye(5), torch.arange(5)) == Accuracy(100.0, None)
