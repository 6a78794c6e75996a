"""The classifiers, against the protocol by autograd in fp64, one fit after another."""

from dataclasses import astuple, replace

import numpy as np
import pytest
import torch

from dystress_text.evaluation.classifier import L2_VALUES, RECIPES, Subset, fit, initial_layer


def problem(n, dim, classes, noise=3.0):
    """Return overlapping clouds: the best round is neither the first nor the last."""
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(classes, (n,), generator=generator)
    centres = torch.randn(classes, dim, generator=generator)
    return centres[y] + noise * torch.randn(n, dim, generator=generator), y


def literal_fit(x, y, subset, l2, recipe):
    """Return the accuracy and the parameters of SentEval's loop, by autograd and torch.optim."""
    layer = initial_layer(x.shape[1], 3).double()
    draw = np.random.RandomState(1111)
    train = subset.train
    held_out = subset.held_out
    if held_out is None:
        order = draw.permutation(len(train))
        cut = int(0.05 * len(train))
        held_out = train[order[:cut]]
        train = train[order[cut:]]
    kinds = {"adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}
    optimizer = kinds[recipe.optimizer](layer.parameters(), weight_decay=l2)
    best = -1.0
    kept = None
    misses = 0
    epochs = 0
    while epochs <= 200:
        for _ in range(recipe.check_every):
            order = torch.from_numpy(draw.permutation(len(train)))
            for columns in order.split(recipe.batch_size):
                rows = train[columns]
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(layer(x[rows]), y[rows]).backward()
                optimizer.step()
        epochs += recipe.check_every
        accuracy = float((layer(x[held_out]).argmax(1) == y[held_out]).double().mean())
        if accuracy > best:
            best = accuracy
            kept = torch.cat([layer.weight, layer.bias[:, None]], 1).detach()
        elif misses >= recipe.patience:
            break
        else:
            misses += 1
    return best, kept


def test_recipes_are_those_of_senteval():
    """``test`` is that of the published figures, ``fast`` that of SimCSE while it trains."""
    assert tuple(10.0**exponent for exponent in range(-5, -1)) == L2_VALUES
    assert astuple(RECIPES["test"]) == (10, "adam", 64, 5, 4)
    assert astuple(RECIPES["fast"]) == (5, "rmsprop", 128, 3, 2)


@pytest.mark.parametrize("mode", ["test", "fast"])
def test_fits_equal_the_protocol(mode):
    """Subsets of several sizes, some with a split of their own, stop at different rounds."""
    x, y = problem(150, 8, 3)
    x = x.double()
    order = np.random.default_rng(0).permutation(150)
    subsets = [
        Subset(order[:120], order[120:]),
        Subset(order[30:], order[:30]),
        Subset(order[:125], order[125:]),
        Subset(order[:120]),
    ]
    grid = np.outer(np.arange(1, 5), (1e-5, 1e-2))
    fits = fit(x, y, 3, subsets, grid, RECIPES[mode])
    for s, subset in enumerate(subsets):
        for k, l2 in enumerate(grid[s]):
            accuracy, expected = literal_fit(x, y, subset, l2, RECIPES[mode])
            assert fits.accuracy[s, k] == accuracy
            found = torch.cat([fits.weight[s, k], fits.bias[s, k, :, None]], 1)
            torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)
        logits = x @ fits.weight[s, 0].T + fits.bias[s, 0]
        assert torch.equal(fits.predict(x, s), logits.argmax(1))


@pytest.mark.parametrize(("dim", "reached"), [(2, 1.0), (1, 0.0)])
def test_fits_end_without_misses(dim, reached):
    """Without features only the biases learn: that of the class is the higher after 260 or 410 steps."""
    patient = replace(RECIPES["test"], patience=10**6, check_every=100)  # 300 epochs
    x = torch.zeros(30, dim)
    y = torch.ones(30, dtype=torch.long)
    fits = fit(x, y, 2, [Subset(np.arange(20), np.arange(20, 30))], np.array([[1e-5]]), patient)
    assert fits.accuracy == reached
