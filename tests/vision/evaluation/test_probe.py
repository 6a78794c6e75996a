"""The linear probe: against scikit-learn on real features, and its schedule against a loop by
hand.
"""

import math
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from sklearn.preprocessing import normalize
from sklearn.svm import LinearSVC
from vision_cases import GivenViews, clouds

from vision.evaluation import probe


def probe_by_hand(seen, y, queries, steps, epochs, batch_size):
    """Softmax regression in fp64 NumPy on the features of each epoch: SGD with momentum 0.9, cosine
    schedule.
    """
    theta = velocity = np.zeros((4, queries.shape[1] + 1))
    generator, step = torch.Generator().manual_seed(3), 0
    for epoch in range(epochs):
        order = torch.randperm(len(y), generator=generator).numpy()
        x = np.c_[seen(epoch).double(), np.ones(len(y))]
        for start in range(0, steps * batch_size, batch_size):
            rows = order[start : start + batch_size]
            logits = x[rows] @ theta.T
            p = np.exp(logits - logits.max(1, keepdims=True))
            p /= p.sum(1, keepdims=True)
            p[np.arange(len(rows)), y.numpy()[rows]] -= 1
            velocity = 0.9 * velocity + p.T @ x[rows] / len(rows)
            share = (1 + math.cos(math.pi * step / (steps * epochs))) / 2
            theta = theta - 0.1 * batch_size / 256 * share * velocity
            step += 1
    return np.c_[queries.double(), np.ones(len(queries))] @ theta.T


def test_every_step_is_that_of_the_formula(monkeypatch):
    batch_size = 50  # does not divide the images
    monkeypatch.setattr(probe, "BATCH_SIZE", batch_size)
    x, y, queries, _ = clouds(160, 40, classes=4)
    x, queries = x.double(), queries.double()
    mine = probe.linear_probe(x, y, queries, 4, epochs=7, seed=3)
    scale = x.var(0, correction=0).mean().sqrt()
    steps = math.ceil(160 / batch_size)
    theirs = probe_by_hand(
        lambda _: (x - x.mean(0)) / scale, y, (queries - x.mean(0)) / scale, steps, 7, batch_size
    )
    assert mine.numpy() == pytest.approx(theirs, abs=1e-10)


def test_fs_is_scikit_learns_svm_on_as_many_images_of_each_class(monkeypatch):
    """A long tail: the SVM sees 3 of each class, drawn with the seed, at unit length."""
    x, y, queries, truth = clouds(200, 60, classes=4)
    rows = torch.cat(
        [(y == label).nonzero()[:count, 0] for label, count in enumerate((40, 20, 9, 3))]
    )
    fitted = []

    class Watched(LinearSVC):
        def fit(self, x, y):
            fitted.append((x, y))
            return super().fit(x, y)

    monkeypatch.setattr(probe, "LinearSVC", Watched)
    found = [probe.balanced_svm(x[rows], y[rows], queries, truth, seed) for seed in (0, 0, 1)]
    shown, labels = fitted[0]
    assert np.bincount(labels).tolist() == [3, 3, 3, 3]
    units = normalize(x[rows].numpy())
    assert all(np.abs(units - row).max(1).min() < 1e-6 for row in shown)
    assert found[0] == found[1]
    assert not np.array_equal(shown, fitted[2][0])
    theirs = (
        LinearSVC(random_state=0)
        .fit(shown, labels)
        .score(normalize(queries.numpy()), truth.numpy())
    )
    assert found[0] == {"top1": pytest.approx(100 * theirs), "images": 12}


class Same(torch.nn.Module):
    """An encoder that passes on what it gets, and notes the mode that it was in."""

    modes: ClassVar = []

    def features(self, x):
        self.modes.append(self.training)
        return x


@pytest.mark.parametrize("part", [256, 7])
def test_the_augmented_probe_is_the_formula_on_each_epochs_views(part, monkeypatch):
    """On the features as they are; what does not fill a batch is left out."""
    x, y, queries, _ = clouds(170, 40, classes=4)
    given = SimpleNamespace(targets=y, classes="abcd")
    views = GivenViews(given, lambda rows, epoch: x[rows] + epoch / 10)  # other features each epoch
    theirs = probe_by_hand(lambda epoch: x + epoch / 10, y, queries, 170 // 32, 5, 32)
    monkeypatch.setattr(probe, "BATCH_SIZE", 32)
    mine = probe.augmented_probe(
        Same().train(), views, queries, epochs=5, seed=3, encoded_at_once=part
    )
    assert not any(Same.modes)
    assert mine.numpy() == pytest.approx(theirs, abs=1e-4)
