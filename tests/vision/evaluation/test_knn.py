"""Nearest neighbours: against scikit-learn, and cases worked by hand."""

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier
from vision_cases import clouds

from vision.evaluation import knn
from vision.evaluation.knn import Accuracy, cosine_votes


def classifier(bank, labels, k):
    """scikit-learn's, weighted as in the paper."""
    found = KNeighborsClassifier(
        k, metric="cosine", algorithm="brute", weights=lambda distance: np.exp((1 - distance) / 0.1)
    )
    return found.fit(bank.double().numpy(), labels.numpy())


@pytest.mark.parametrize("products", [2**24, 2000])  # one block of queries, and several
def test_cosine_votes_predict_as_scikit_learn(products, monkeypatch):
    monkeypatch.setattr(knn, "PRODUCTS", products)
    bank, labels, queries, _ = clouds(300, 100, seed=1)
    theirs = classifier(bank, labels, 20).predict(queries.double().numpy())
    mine = cosine_votes(bank, labels, queries, 5, 20).argmax(1)
    assert np.array_equal(mine.numpy(), theirs)


def test_top5_counts_only_classes_with_a_vote():
    """Few neighbours vote for few of nine classes."""
    bank, _, queries, _ = clouds(80, 90)
    labels = torch.arange(80) % 9
    truth = torch.arange(90) % 9
    votes = cosine_votes(bank, labels, queries, 9, 5)
    theirs = classifier(bank, labels, 5).predict_proba(queries.double().numpy())
    right = (theirs[np.arange(90), truth.numpy()] > 0).mean()  # five neighbours: all are ranked
    scores = votes.masked_fill(votes == 0, -torch.inf)
    assert Accuracy.of(scores, truth).top5 == pytest.approx(100 * right)


def test_top1_and_top5_and_ties():
    scores = torch.tensor([[7.0, 6, 5, 4, 3, 2, 1]] * 4)
    assert Accuracy.of(scores, torch.tensor([0, 4, 5, 6])) == Accuracy(25.0, 50.0)
    tie = torch.ones(1, 6)  # the lower class wins
    assert Accuracy.of(tie, torch.tensor([0])).top1 == 100
    assert Accuracy.of(tie, torch.tensor([1])).top1 == 0
    assert Accuracy.of(torch.eye(5), torch.arange(5)) == Accuracy(100.0, None)
