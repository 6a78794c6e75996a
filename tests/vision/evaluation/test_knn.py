"""Nearest neighbours: against scikit-learn, explicit loops in fp64, and cases worked by hand."""

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from vision_cases import clouds

from vision.evaluation import knn
from vision.evaluation.knn import Accuracy, cosine_votes


@pytest.fixture(params=[None, 700], autouse=True)
def blocks(request, monkeypatch):
    if request.param is not None:
        monkeypatch.setattr(knn, "PRODUCTS", request.param)


def scikit_learns(k, bank, labels):
    weights = lambda distance: np.exp((1 - distance) / 0.1)  # noqa: E731
    theirs = KNeighborsClassifier(k, metric="cosine", algorithm="brute", weights=weights)
    return theirs.fit(bank.double().numpy(), labels.numpy())


def test_cosine_equals_scikit_learn_with_these_weights():
    bank, labels, queries, _ = clouds(300, 100, seed=1)
    theirs = scikit_learns(20, bank, labels)
    mine = cosine_votes(bank, labels, queries, 5, 20).argmax(1)
    assert np.array_equal(mine.numpy(), theirs.predict(queries.double().numpy()))
    assert (mine == torch.mode(labels).values).float().mean() < 0.5


def test_top5_counts_classes_with_a_vote_alone():
    """A loop over scikit-learn's probabilities; few neighbours vote for few of nine classes."""
    bank, _, queries, _ = clouds(80, 90)
    labels, truth = torch.arange(80) % 9, torch.arange(90) % 9
    votes = cosine_votes(bank, labels, queries, 9, 5)
    theirs = scikit_learns(5, bank, labels)
    right = 0
    for row, own in zip(
        theirs.predict_proba(queries.double().numpy()), truth.tolist(), strict=True
    ):
        voted = [label for label in np.argsort(-row, kind="stable")[:5] if row[label] > 0]
        right += own in voted
    found = Accuracy.of(votes, truth, above=0)
    assert found.top5 == pytest.approx(100 * right / 90)
    assert found.top5 < Accuracy.of(votes, truth).top5


def test_top1_and_top5_and_ties():
    scores = torch.tensor([[7.0, 6, 5, 4, 3, 2, 1]] * 4)
    assert Accuracy.of(scores, torch.tensor([0, 4, 5, 6])) == Accuracy(25.0, 50.0)
    tie = torch.ones(1, 6)  # the lower class wins
    assert [Accuracy.of(tie, torch.tensor([k])).top1 for k in (0, 1)] == [100.0, 0.0]
    assert Accuracy.of(torch.eye(5), torch.arange(5)) == Accuracy(100.0, None)
