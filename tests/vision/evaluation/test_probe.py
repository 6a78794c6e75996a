"""The linear probe: against scikit-learn on real features, and its schedule against a loop by hand."""

import math
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch

from vision.evaluation.probe import augmented_probe, linear_probe


def clouds(n, m, dim=16, classes=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, dim, generator=generator)
    labels = torch.randint(classes, (n + m,), generator=generator)
    x = (centres[labels] + 2 * torch.randn(n + m, dim, generator=generator)).relu()
    return x[:n], labels[:n], x[n:], labels[n:]


def probe_by_hand(x, y, queries, classes, epochs, batch_size, seed):
    """Softmax regression in fp64 NumPy: SGD with momentum 0.9, cosine schedule."""
    theta = np.zeros((classes, x.shape[1] + 1))
    velocity = np.zeros_like(theta)
    x, queries, y = x.double().numpy(), queries.double().numpy(), y.numpy()
    mean, scale = x.mean(0), 1 / np.sqrt(x.var(0).mean())
    x, queries = ((rows - mean) * scale for rows in (x, queries))
    x, queries = (np.hstack([rows, np.ones((len(rows), 1))]) for rows in (x, queries))
    generator = torch.Generator().manual_seed(seed)
    steps = epochs * math.ceil(len(x) / batch_size)
    step = 0
    for _ in range(epochs):
        order = torch.randperm(len(x), generator=generator).numpy()
        for start in range(0, len(x), batch_size):
            rows = order[start : start + batch_size]
            logits = x[rows] @ theta.T
            p = np.exp(logits - logits.max(1, keepdims=True))
            p /= p.sum(1, keepdims=True)
            p[np.arange(len(rows)), y[rows]] -= 1
            velocity = 0.9 * velocity + p.T @ x[rows] / len(rows)
            theta -= 0.1 * batch_size / 256 * 0.5 * (1 + math.cos(math.pi * step / steps)) * velocity
            step += 1
    return queries @ theta.T


@pytest.mark.parametrize("batch_size", [32, 50])
def test_every_step_is_that_of_the_formula(batch_size):
    x, y, queries, _ = clouds(160, 40)
    mine = linear_probe(x.double(), y, queries.double(), 4, epochs=7, batch_size=batch_size, seed=3)
    assert mine.numpy() == pytest.approx(probe_by_hand(x, y, queries, 4, 7, batch_size, 3), abs=1e-10)


class Clouds:
    """Views that are features, other ones each epoch."""

    def __init__(self, x, y):
        self.x, self.images = x, SimpleNamespace(labels=y, classes=("a", "b", "c", "d"))

    def at(self, epoch):
        return self.x + epoch / 10

    def batches(self, batch_size, device, step, order):
        for rows in torch.split(order, batch_size):
            yield rows, [self.at(step)[rows]]


class Same(torch.nn.Module):
    """An encoder that passes on what it gets, and notes the mode that it was in."""

    modes: ClassVar = []

    def features(self, x):
        self.modes.append(self.training)
        return x


def test_the_augmented_probe_is_the_formula_on_each_epochs_views():
    """fp64 NumPy on the features as they are; what does not fill a batch is left out."""
    x, y, queries, _ = clouds(170, 40)
    views = Clouds(x, y)
    mine = augmented_probe(Same().train(), views, queries, epochs=5, batch_size=32, seed=3)
    assert not any(Same.modes)
    weight, velocity = np.zeros((4, 17)), np.zeros((4, 17))
    generator = torch.Generator().manual_seed(3)
    step = 0
    for epoch in range(5):
        order = torch.randperm(170, generator=generator).numpy()
        seen = np.hstack([views.at(epoch).double().numpy(), np.ones((170, 1))])
        for start in range(0, 160, 32):
            rows = order[start : start + 32]
            logits = seen[rows] @ weight.T
            p = np.exp(logits - logits.max(1, keepdims=True))
            p /= p.sum(1, keepdims=True)
            p[np.arange(32), y.numpy()[rows]] -= 1
            velocity = 0.9 * velocity + p.T @ seen[rows] / 32
            weight -= 0.1 * 32 / 256 * 0.5 * (1 + math.cos(math.pi * step / 25)) * velocity
            step += 1
    expected = np.hstack([queries.double().numpy(), np.ones((40, 1))]) @ weight.T
    assert mine.numpy() == pytest.approx(expected, abs=1e-4)
