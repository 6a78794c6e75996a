"""The classifiers, against the protocol's formulas in fp64 NumPy, one fit after another."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from dystress_text.evaluation.classifier import RECIPES, Subset, fit, initial_layer


def problem(n, dim, classes, seed=0, noise=3.0):
    """Return overlapping clouds: the best round is neither the first nor the last."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=generator)
    centres = torch.randn(classes, dim, generator=generator)
    return centres[y] + noise * torch.randn(n, dim, generator=generator), y


def by_formula(x, y, classes, train, held_out, l2, recipe):
    """Return the accuracy and parameters of a fit in fp64, from the protocol and the papers."""
    layer = initial_layer(x.shape[1], classes)
    theta = np.concatenate(
        [layer.weight.detach().double().numpy(), layer.bias.detach().double().numpy()[:, None]], 1
    )
    x = np.concatenate([x.double().numpy(), np.ones((len(x), 1))], 1)
    y = y.numpy()
    draw = np.random.RandomState(1111)
    if held_out is None:
        order = draw.permutation(len(train))
        cut = int(0.05 * len(train))
        train, held_out = train[order[cut:]], train[order[:cut]]
    m, v, t = np.zeros_like(theta), np.zeros_like(theta), 0
    best, kept, misses, epochs = -1.0, None, 0, 0
    while epochs <= 200:
        for _ in range(recipe.check_every):
            order = draw.permutation(len(train))
            for i in range(0, len(order), recipe.batch_size):
                rows = train[order[i : i + recipe.batch_size]]
                logits = x[rows] @ theta.T
                p = np.exp(logits - logits.max(1, keepdims=True))
                p /= p.sum(1, keepdims=True)
                p[np.arange(len(rows)), y[rows]] -= 1
                g = p.T @ x[rows] / len(rows) + l2 * theta
                t += 1
                if recipe.optimizer == "adam":
                    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
                    theta = theta - 1e-3 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
                else:
                    v = 0.99 * v + 0.01 * g**2
                    theta = theta - 1e-2 * g / (np.sqrt(v) + 1e-8)
        epochs += recipe.check_every
        accuracy = ((x[held_out] @ theta.T).argmax(1) == y[held_out]).mean()
        if accuracy > best:
            best, kept = accuracy, theta
        elif misses >= recipe.patience:
            break
        else:
            misses += 1
    return best, kept


@pytest.mark.parametrize("mode", ["test", "fast"])
def test_fits_equal_the_protocol(mode):
    """Subsets of several sizes, some with a split of their own; fits that stop at different rounds."""
    x, y = problem(150, 8, 3)
    order = np.random.default_rng(0).permutation(150)
    subsets = [
        Subset(order[:120], order[120:]), Subset(order[30:], order[:30]), Subset(order[:125], order[125:]),
        Subset(order),
    ]  # fmt: skip
    grid = np.outer(np.arange(1, 5), (1e-5, 1e-2))
    fits = fit(x.double(), y, 3, subsets, grid, RECIPES[mode])
    for s, subset in enumerate(subsets):
        for k, l2 in enumerate(grid[s]):
            accuracy, theta = by_formula(x, y, 3, subset.train, subset.held_out, l2, RECIPES[mode])
            assert fits.accuracy[s, k] == accuracy
            np.testing.assert_allclose(
                fits.weight[s, k].numpy(), theta[:, :-1], rtol=1e-8, atol=1e-9
            )
            np.testing.assert_allclose(fits.bias[s, k].numpy(), theta[:, -1], rtol=1e-8, atol=1e-9)
        logits = x.double() @ fits.weight[s, 0].T + fits.bias[s, 0]
        assert torch.equal(fits.predict(x.double(), s), logits.argmax(1))


def test_fits_end_without_misses():
    x, y = problem(30, 4, 2, noise=1.0)
    patient = replace(RECIPES["test"], patience=10**6, check_every=50)
    fits = fit(x, y, 2, [Subset(np.arange(20), np.arange(20, 30))], np.array([[1e-5]]), patient)
    assert fits.accuracy.shape == (1, 1)
