"""The linear probe against its schedule in NumPy, and the SVM against scikit-learn's."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.preprocessing import normalize
from sklearn.svm import LinearSVC
from vision_cases import GivenViews, clouds

from vision.evaluation import probe


def with_bias(x):
    return np.c_[x.double().numpy(), np.ones(len(x))]


def probe_by_hand(features_of, labels, queries, batch_size, steps, epochs):
    """Softmax regression in fp64 by SGD with momentum 0.9 and a cosine schedule.

    ``features_of`` gives the features of an epoch.
    """
    theta = np.zeros((4, queries.shape[1] + 1))
    velocity = np.zeros_like(theta)
    generator = torch.Generator().manual_seed(3)
    truth = np.eye(4)[labels.numpy()]
    for epoch in range(epochs):
        order = torch.randperm(len(labels), generator=generator).numpy()
        x = with_bias(features_of(epoch))
        for step in range(steps):
            rows = order[step * batch_size :][:batch_size]
            odds = np.exp(x[rows] @ theta.T)
            error = odds / odds.sum(1, keepdims=True) - truth[rows]
            velocity = 0.9 * velocity + error.T @ x[rows] / len(rows)
            done = (epoch * steps + step) / (epochs * steps)
            rate = 0.1 * batch_size / 256 * (1 + math.cos(math.pi * done)) / 2
            theta = theta - rate * velocity
    return with_bias(queries) @ theta.T


@pytest.mark.parametrize("batch_size", [256, 50])
def test_the_probe_of_fixed_features_is_the_formula(batch_size, monkeypatch):
    if batch_size != 256:
        monkeypatch.setattr(probe, "BATCH_SIZE", batch_size)
    x, labels, queries, _ = clouds(260, 40, classes=4)
    x = 10 + x.double()  # far from 0, as the features of an untrained encoder
    scores = probe.linear_probe(x, labels, queries.double(), 4, epochs=4, seed=3)
    mean = x.mean(0)
    scale = x.var(0, correction=0).mean().sqrt()
    seen = (x - mean) / scale
    asked = (queries - mean) / scale
    steps = math.ceil(260 / batch_size)
    expected = probe_by_hand(lambda epoch: seen, labels, asked, batch_size, steps, 4)
    assert scores.numpy() == pytest.approx(expected, abs=1e-10)


def test_equal_features_are_not_told_apart():
    """Their differences are rounding errors."""
    x, labels, queries, _ = clouds(30, 7, classes=4)
    scores = probe.linear_probe(torch.full_like(x, 10.1), labels, queries, 4, epochs=2, seed=0)
    assert torch.equal(scores, scores[:1].expand(7, 4))


class Same(torch.nn.Module):
    """An encoder that passes on what it gets, in evaluation mode alone."""

    device = torch.device("cpu")

    def features(self, x):
        assert not self.training
        return x


def test_the_augmented_probe_is_the_formula(monkeypatch):
    """On the features as they are; what does not fill a batch is left out."""
    monkeypatch.setattr(probe, "BATCH_SIZE", 32)
    x, labels, queries, _ = clouds(170, 40, classes=4)
    images = SimpleNamespace(targets=labels, classes="abcd")
    views = GivenViews(images, lambda rows, epoch: x[rows] + epoch / 10)
    scores = probe.augmented_probe(Same().train(), views, queries, epochs=5, seed=3)
    expected = probe_by_hand(lambda epoch: x + epoch / 10, labels, queries, 32, 170 // 32, 5)
    assert scores.numpy() == pytest.approx(expected, abs=1e-4)


def test_the_svm_on_balanced_classes_is_scikit_learns():
    x, labels, queries, _ = clouds(200, 60, classes=4)
    rows = torch.cat([(labels == label).nonzero()[:9, 0] for label in range(4)])
    predicted, images = probe.balanced_svm(x[rows], labels[rows], queries, seed=0)
    theirs = LinearSVC().fit(normalize(x[rows].numpy()), labels[rows].numpy())
    assert predicted.tolist() == theirs.predict(normalize(queries.numpy())).tolist()
    assert images == 36
    few = rows[:-6]  # three of the last class
    assert probe.balanced_svm(x[few], labels[few], queries, seed=0)[1] == 12
