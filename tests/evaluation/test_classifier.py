"""The classifiers, against the protocol's formulas in fp64 NumPy, one fit after another."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dystress_text.evaluation.classifier import RECIPES, Subset, fit, initial_layer


def problem(n, dim, classes, noise=3.0):
    """Return overlapping clouds: the best round is neither the first nor the last."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(classes, (n,), generator=generator)
    centres = torch.randn(classes, dim, generator=generator)
    return centres[y] + noise * torch.randn(n, dim, generator=generator), y


class Adam:
    """One step of Kingma and Ba's algorithm 1, at torch's defaults."""

    def __init__(self):
        self.m = 0.0
        self.v = 0.0
        self.t = 0

    def step(self, theta, g):
        self.t += 1
        self.m = 0.9 * self.m + 0.1 * g
        self.v = 0.999 * self.v + 0.001 * g**2
        m = self.m / (1 - 0.9**self.t)
        v = self.v / (1 - 0.999**self.t)
        return theta - 1e-3 * m / (np.sqrt(v) + 1e-8)


class RmsProp:
    """One step of Hinton's lecture, at torch's defaults."""

    def __init__(self):
        self.v = 0.0

    def step(self, theta, g):
        self.v = 0.99 * self.v + 0.01 * g**2
        return theta - 1e-2 * g / (np.sqrt(self.v) + 1e-8)


def gradient(x, y, theta, l2):
    """Return the gradient of the cross-entropy and of the weight decay."""
    logits = x @ theta.T
    p = np.exp(logits - logits.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    p[np.arange(len(x)), y] -= 1
    return p.T @ x / len(x) + l2 * theta


def by_formula(x, y, subset, l2, recipe):
    """Return the accuracy and parameters of a fit in fp64, from the protocol and the papers."""
    layer = initial_layer(x.shape[1], 3)
    theta = torch.cat([layer.weight, layer.bias[:, None]], 1).detach().double().numpy()
    x = np.concatenate([x.double().numpy(), np.ones((len(x), 1))], 1)
    y = y.numpy()
    draw = np.random.RandomState(1111)
    train = subset.train
    held_out = subset.held_out
    if held_out is None:
        order = draw.permutation(len(train))
        cut = int(0.05 * len(train))
        held_out = train[order[:cut]]
        train = train[order[cut:]]
    optimizer = Adam() if recipe.optimizer == "adam" else RmsProp()
    best = -1.0
    kept = None
    misses = 0
    epochs = 0
    while epochs <= 200:
        for _ in range(recipe.check_every):
            order = draw.permutation(len(train))
            for i in range(0, len(order), recipe.batch_size):
                rows = train[order[i : i + recipe.batch_size]]
                theta = optimizer.step(theta, gradient(x[rows], y[rows], theta, l2))
        epochs += recipe.check_every
        accuracy = ((x[held_out] @ theta.T).argmax(1) == y[held_out]).mean()
        if accuracy > best:
            best = accuracy
            kept = theta
        elif misses >= recipe.patience:
            break
        else:
            misses += 1
    return best, kept


@pytest.mark.parametrize("mode", ["test", "fast"])
def test_fits_equal_the_protocol(mode):
    """Subsets of several sizes, some with a split of their own, stop at different rounds."""
    x, y = problem(150, 8, 3)
    order = np.random.default_rng(0).permutation(150)
    subsets = [
        Subset(order[:120], order[120:]),
        Subset(order[30:], order[:30]),
        Subset(order[:125], order[125:]),
        Subset(order[:120]),
    ]
    grid = np.outer(np.arange(1, 5), (1e-5, 1e-2))
    fits = fit(x.double(), y, 3, subsets, grid, RECIPES[mode])
    for s, subset in enumerate(subsets):
        for k, l2 in enumerate(grid[s]):
            accuracy, theta = by_formula(x, y, subset, l2, RECIPES[mode])
            assert fits.accuracy[s, k] == accuracy
            found = torch.cat([fits.weight[s, k], fits.bias[s, k, :, None]], 1)
            np.testing.assert_allclose(found.numpy(), theta, rtol=1e-8, atol=1e-9)
        logits = x.double() @ fits.weight[s, 0].T + fits.bias[s, 0]
        assert torch.equal(fits.predict(x.double(), s), logits.argmax(1))


@pytest.mark.parametrize(("dim", "reached"), [(2, 1.0), (1, 0.0)])
def test_fits_end_without_misses(dim, reached):
    """Without features only the biases learn: that of the class is the higher after 260 or 410 steps."""
    patient = replace(RECIPES["test"], patience=10**6, check_every=100)  # 300 epochs
    x = torch.zeros(30, dim)
    y = torch.ones(30, dtype=torch.long)
    fits = fit(x, y, 2, [Subset(np.arange(20), np.arange(20, 30))], np.array([[1e-5]]), patient)
    assert fits.accuracy == reached
