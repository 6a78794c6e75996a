"""The classifiers: the literal one against formulas in NumPy, the batched one against the literal one."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from dystress_text.evaluation.classifier import L2_VALUES, RECIPES, Subset, fit_batched, fit_literal, initial_layer

GRID = np.array([L2_VALUES])


def problem(n, dim, classes, seed=0, noise=3.0):
    """Overlapping clouds, so that the best round is neither the first nor the last."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(classes, (n,), generator=generator)
    centres = torch.randn(classes, dim, generator=generator)
    return centres[y] + noise * torch.randn(n, dim, generator=generator), y


def by_formula(x, y, classes, train, held_out, l2, recipe):
    """SentEval's fit in fp64 NumPy, written from the protocol and the optimisers' papers."""
    layer = initial_layer(x.shape[1], classes)
    theta = np.concatenate([layer.weight.detach().double().numpy(), layer.bias.detach().double().numpy()[:, None]], 1)
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


@pytest.mark.parametrize("fitter", [fit_literal, fit_batched])
@pytest.mark.parametrize("mode", ["test", "fast"])
@pytest.mark.parametrize("split", [False, True])
def test_a_fit_is_the_protocols(fitter, mode, split):
    x, y = problem(153, 12, 3)
    rows = np.random.default_rng(1).permutation(153)
    subset = Subset(rows[:130], None if split else rows[130:])
    fits = fitter(x.double(), y, 3, [subset], np.array([[1e-2]]), RECIPES[mode])
    accuracy, theta = by_formula(x, y, 3, subset.train, subset.held_out, 1e-2, RECIPES[mode])
    assert fits.accuracy[0, 0] == accuracy
    np.testing.assert_allclose(fits.weight[0, 0].numpy(), theta[:, :-1], rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(fits.bias[0, 0].numpy(), theta[:, -1], rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mode", ["test", "fast"])
def test_all_at_once_is_one_after_another(mode):
    """Subsets of several sizes, some with a split of their own, fits that stop at different rounds."""
    x, y = problem(90, 8, 4)
    order = np.random.default_rng(0).permutation(90)
    subsets = [
        Subset(order[:60], order[60:]), Subset(order[30:], order[:30]), Subset(order[:65], order[65:]), Subset(order),
    ]  # fmt: skip
    grid = np.tile(GRID[:, 1::2], (4, 1)) * np.arange(1, 5)[:, None]
    together = fit_batched(x, y, 4, subsets, grid, RECIPES[mode])
    apart = fit_literal(x, y, 4, subsets, grid, RECIPES[mode])
    np.testing.assert_array_equal(together.accuracy, apart.accuracy)
    torch.testing.assert_close(together.weight, apart.weight, rtol=0, atol=1e-4)
    for s, subset in enumerate(subsets):
        assert torch.equal(together.predict(x[subset.train], s), apart.predict(x[subset.train], s))


@pytest.mark.parametrize("fitter", [fit_literal, fit_batched])
def test_a_fit_ends_though_it_never_misses_enough(fitter):
    x, y = problem(30, 4, 2, noise=1.0)
    patient = replace(RECIPES["test"], patience=10**6, check_every=50)
    fits = fitter(x, y, 2, [Subset(np.arange(20), np.arange(20, 30))], GRID[:, :1], patient)
    assert fits.accuracy.shape == (1, 1)


@pytest.mark.parametrize("fitter", [fit_literal, fit_batched])
def test_the_callers_random_states_are_untouched(fitter):
    x, y = problem(40, 4, 2)
    random.seed(3)
    np.random.seed(4)
    torch.manual_seed(5)
    before = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    fitter(x, y, 2, [Subset(np.arange(40))], GRID, RECIPES["fast"])
    assert random.getstate() == before[0]
    assert np.array_equal(np.random.get_state()[1], before[1])
    assert torch.equal(torch.get_rng_state(), before[2])
