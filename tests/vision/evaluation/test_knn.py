"""Nearest neighbours: against scikit-learn, and cases worked by hand."""

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score
from sklearn.neighbors import KNeighborsClassifier
from vision_cases import clouds, colour_images, tiny_encoder

from vision.evaluation import knn
from vision.evaluation.features import image_features
from vision.evaluation.knn import OnlineKnn, accuracies, cosine_votes, top_accuracy


def weight(distance):
    """Of the paper, by cosine distance."""
    return np.exp((1 - distance) / 0.1)


def probabilities(bank, labels, queries, k):
    """scikit-learn's."""
    model = KNeighborsClassifier(k, metric="cosine", algorithm="brute", weights=weight)
    model.fit(bank.double().numpy(), labels.numpy())
    return model.predict_proba(queries.double().numpy())


@pytest.mark.parametrize("products", [2**24, 2000, 1])  # one block of queries, several, single ones
def test_votes_are_those_of_scikit_learn(products, monkeypatch):
    """Few neighbours vote for few of nine classes; the others have no vote."""
    monkeypatch.setattr(knn, "PRODUCTS", products)
    bank, labels, queries, _ = clouds(300, 100, classes=9, seed=1)
    expected = probabilities(bank, labels, queries, 5)
    votes = cosine_votes(bank, labels, queries, 9, 5)
    shares = votes / votes.sum(1, keepdim=True)
    np.testing.assert_allclose(shares.numpy(), expected, atol=1e-5)


def test_accuracies_by_hand():
    scores = torch.tensor([[7.0, 6, 5, 4, 3, 2, 1]] * 4)
    labels = torch.tensor([0, 4, 5, 6])
    of_classes = accuracies(scores, labels, "abcdefg")
    assert of_classes["top1"] == 25
    assert of_classes["top5"] == 50
    assert of_classes["by_class"]["a"] == {"top1": 100, "images": 1}
    assert of_classes["by_class"].keys() == set("aefg")
    for few in ("abc", "abcde"):
        assert accuracies(torch.eye(len(few)), torch.arange(len(few)), few)["top5"] is None


def test_of_equal_scores_the_lower_class_wins():
    ties = torch.ones(1, 40)
    assert top_accuracy(ties, torch.tensor([0]), 1) == 100
    assert top_accuracy(ties, torch.tensor([4]), 5) == 100
    assert top_accuracy(ties, torch.tensor([5]), 5) == 0


def test_a_class_without_a_vote_is_not_predicted():
    scores = torch.tensor([[1.0, -torch.inf, -torch.inf]])
    assert top_accuracy(scores, torch.tensor([1]), 2) == 0


def test_the_accuracy_while_training_is_that_of_scikit_learn():
    """With labels by chance, so that second guesses are often right."""
    train = colour_images(40)
    test = colour_images(30, seed=1)
    train.labels.copy_(torch.arange(40) // 14)
    encoder = tiny_encoder()
    metrics = OnlineKnn(train, test, 5, batch_size=16)(encoder)
    bank = image_features(encoder, train, 16)
    queries = image_features(encoder, test, 16)
    predicted = probabilities(bank, train.labels, queries, 5).argmax(1)
    accuracy = 100 * accuracy_score(test.labels, predicted)
    assert metrics == {"knn5": pytest.approx(accuracy)}
