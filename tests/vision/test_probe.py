"""The linear probe: against scikit-learn on real features, and its schedule against a loop by hand."""

import math

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from dystress_text.errors import UserError
from vision.accuracy import Accuracy
from vision.probe import linear_probe


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
    x, y = np.hstack([x.double().numpy(), np.ones((len(x), 1))]), y.numpy()
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
    return np.hstack([queries.double().numpy(), np.ones((len(queries), 1))]) @ theta.T


@pytest.mark.parametrize("batch_size", [32, 50])
def test_every_step_is_that_of_the_formula(batch_size):
    x, y, queries, _ = clouds(160, 40)
    mine = linear_probe(x.double(), y, queries.double(), 4, epochs=7, batch_size=batch_size, seed=3)
    assert mine.numpy() == pytest.approx(probe_by_hand(x, y, queries, 4, 7, batch_size, 3), abs=1e-10)


def test_it_comes_close_to_logistic_regression_on_features_of_shapes(shape_features):
    (x, y), (queries, truth) = shape_features
    theirs = LogisticRegression(max_iter=2000).fit(x.double().numpy(), y.numpy())
    reached = Accuracy.of(linear_probe(x, y, queries, 10), truth)
    assert reached.top1 == pytest.approx(100 * theirs.score(queries.double().numpy(), truth.numpy()), abs=0.5)
    assert reached.top1 > 20  # chance is 10
    assert reached.top5 > reached.top1


def test_it_can_be_repeated_and_draws_nothing_from_the_caller():
    x, y, queries, _ = clouds(160, 40)
    state = torch.get_rng_state()
    first = linear_probe(x, y, queries, 4, epochs=2, batch_size=32, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(linear_probe(x, y, queries, 4, epochs=2, batch_size=32, seed=1), first)
    assert not torch.equal(linear_probe(x, y, queries, 4, epochs=2, batch_size=32, seed=2), first)


def test_errors_are_one_line():
    x, y, queries, _ = clouds(50, 10)
    with pytest.raises(UserError, match="training images are of one class only"):
        linear_probe(x, torch.ones_like(y), queries, 4)
    with pytest.raises(UserError, match="the probe diverged"):
        linear_probe(1e30 * x, y, queries, 4, epochs=2)
