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


def with_ones(rows):
    return np.hstack([rows.double().numpy(), np.ones((len(rows), 1))])


def probe_by_hand(seen, y, queries, steps, epochs, batch_size):
    """Softmax regression in fp64 NumPy on the features of each epoch: SGD with momentum 0.9, cosine schedule."""
    theta = velocity = np.zeros((4, queries.shape[1] + 1))
    generator, step = torch.Generator().manual_seed(3), 0
    for epoch in range(epochs):
        order, x = torch.randperm(len(y), generator=generator).numpy(), with_ones(seen(epoch))
        for start in range(0, steps * batch_size, batch_size):
            rows = order[start : start + batch_size]
            logits = x[rows] @ theta.T
            p = np.exp(logits - logits.max(1, keepdims=True))
            p /= p.sum(1, keepdims=True)
            p[np.arange(len(rows)), y.numpy()[rows]] -= 1
            velocity = 0.9 * velocity + p.T @ x[rows] / len(rows)
            theta = theta - 0.1 * batch_size / 256 * 0.5 * (1 + math.cos(math.pi * step / (steps * epochs))) * velocity
            step += 1
    return with_ones(queries) @ theta.T


@pytest.mark.parametrize("batch_size", [32, 50])
def test_every_step_is_that_of_the_formula(batch_size):
    x, y, queries, _ = clouds(160, 40)
    x, queries = x.double(), queries.double()
    mine = linear_probe(x, y, queries, 4, epochs=7, batch_size=batch_size, seed=3)
    scale = x.var(0, correction=0).mean().sqrt()
    steps = math.ceil(160 / batch_size)
    theirs = probe_by_hand(lambda _: (x - x.mean(0)) / scale, y, (queries - x.mean(0)) / scale, steps, 7, batch_size)
    assert mine.numpy() == pytest.approx(theirs, abs=1e-10)


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
    """On the features as they are; what does not fill a batch is left out."""
    x, y, queries, _ = clouds(170, 40)
    views = Clouds(x, y)
    mine = augmented_probe(Same().train(), views, queries, epochs=5, batch_size=32, seed=3)
    assert not any(Same.modes)
    assert mine.numpy() == pytest.approx(probe_by_hand(views.at, y, queries, 170 // 32, 5, 32), abs=1e-4)
