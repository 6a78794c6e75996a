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


def probe_by_hand(features, labels, queries, steps, epochs, batch_size):
    """Softmax regression in fp64 by SGD with momentum 0.9 and a cosine schedule.

    ``features`` gives those of an epoch.
    """
    theta = np.zeros((4, queries.shape[1] + 1))
    velocity = np.zeros_like(theta)
    generator = torch.Generator().manual_seed(3)
    truth = np.eye(4)[labels.numpy()]
    rate = 0.1 * batch_size / 256
    for epoch in range(epochs):
        order = torch.randperm(len(labels), generator=generator).numpy()
        x = with_bias(features(epoch))
        for step in range(steps):
            rows = order[step * batch_size :][:batch_size]
            odds = np.exp(x[rows] @ theta.T)
            error = odds / odds.sum(1, keepdims=True) - truth[rows]
            velocity = 0.9 * velocity + error.T @ x[rows] / len(rows)
            done = (epoch * steps + step) / (epochs * steps)
            decay = (1 + math.cos(math.pi * done)) / 2
            theta = theta - rate * decay * velocity
    return with_bias(queries) @ theta.T


@pytest.mark.parametrize("batch_size", [32, 50])
def test_the_probe_of_fixed_features_is_the_formula(batch_size, monkeypatch):
    monkeypatch.setattr(probe, "BATCH_SIZE", batch_size)
    x, labels, queries, _ = clouds(160, 40, classes=4)
    x = x.double()
    queries = queries.double()
    found = probe.linear_probe(x, labels, queries, 4, epochs=7, seed=3)
    scale = x.var(0, correction=0).mean().sqrt()
    seen = (x - x.mean(0)) / scale
    asked = (queries - x.mean(0)) / scale
    steps = math.ceil(160 / batch_size)
    expected = probe_by_hand(lambda epoch: seen, labels, asked, steps, 7, batch_size)
    assert found.numpy() == pytest.approx(expected, abs=1e-10)


class Same(torch.nn.Module):
    """An encoder that passes on what it gets, in evaluation mode alone."""

    def features(self, x):
        assert not self.training
        return x


def test_the_augmented_probe_is_the_formula(monkeypatch):
    """On the features as they are; what does not fill a batch is left out."""
    monkeypatch.setattr(probe, "BATCH_SIZE", 32)
    x, labels, queries, _ = clouds(170, 40, classes=4)
    images = SimpleNamespace(targets=labels, classes="abcd")
    views = GivenViews(images, lambda rows, epoch: x[rows] + epoch / 10)
    found = probe.augmented_probe(Same().train(), views, queries, epochs=5, seed=3)
    expected = probe_by_hand(lambda epoch: x + epoch / 10, labels, queries, 170 // 32, 5, 32)
    assert found.numpy() == pytest.approx(expected, abs=1e-4)


def test_the_svm_on_balanced_classes_is_scikit_learns():
    x, labels, queries, truth = clouds(200, 60, classes=4)
    rows = torch.cat([(labels == label).nonzero()[:9, 0] for label in range(4)])
    found = probe.balanced_svm(x[rows], labels[rows], queries, truth, seed=0)
    theirs = LinearSVC().fit(normalize(x[rows].numpy()), labels[rows].numpy())
    accuracy = theirs.score(normalize(queries.numpy()), truth.numpy())
    assert found["top1"] == pytest.approx(100 * accuracy)
    few = rows[:-6]  # three of the last class
    assert probe.balanced_svm(x[few], labels[few], queries, truth, seed=0)["images"] == 12
