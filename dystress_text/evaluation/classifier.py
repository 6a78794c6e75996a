"""Train many of SentEval's logistic regressions at once.

A fit is one linear layer on frozen embeddings, trained with early stopping, for one subset of the
rows and one value of l2. Each optimiser step trains all fits of a task with two batched matrix
products. Each fit draws the same random numbers as SentEval, so its results differ only by
rounding.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

SEED = 1111
MAX_EPOCHS = 200
L2_VALUES = (1e-5, 1e-4, 1e-3, 1e-2)

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Recipe:
    """How fits are trained, and the number of folds that select l2."""

    folds: int
    optimizer: str  # at torch's default learning rate
    batch_size: int
    patience: int  # checks without improvement before a fit stops
    check_every: int  # epochs between checks on the held-out rows


RECIPES = {
    # the published figures
    "test": Recipe(folds=10, optimizer="adam", batch_size=64, patience=5, check_every=4),
    "fast": Recipe(folds=5, optimizer="rmsprop", batch_size=128, patience=3, check_every=2),
}


@dataclass(frozen=True)
class Subset:
    """The rows on which a fit is trained, and those held out for early stopping."""

    train: Rows
    held_out: Rows | None = None  # for early stopping; None: 5 % of ``train``


@dataclass(frozen=True)
class Fits:
    """Trained classifiers: S subsets with L values of l2 each."""

    accuracy: NDArray[np.float64]  # (S, L), the best one on the held-out rows
    weight: Tensor  # (S, L, classes, dim), of the best round
    bias: Tensor  # (S, L, classes)

    def predict(self, x: Tensor, subset: int) -> Tensor:
        """Predict the classes (n,) of ``x`` (n, dim), with the first fit of a subset."""
        return torch.addmm(self.bias[subset, 0], x, self.weight[subset, 0].T).argmax(1)


@torch.no_grad()
def fit(
    x: Tensor,
    y: Tensor,
    classes: int,
    subsets: Sequence[Subset],
    l2: NDArray[np.float64],
    recipe: Recipe,
) -> Fits:
    """Train a classifier for each pair of a subset and an l2 value.

    Subsets of the same size draw the same permutations and take the same number of steps, so they
    are trained in lockstep; a cross-validation has two or three sizes.

    Args:
        x: (n, dim) features of all rows; the fits run on their device.
        y: (n,) classes from 0.
        classes: the number of classes.
        subsets: S subsets of the rows.
        l2: weight decay, which applies to the bias too, (S, L).
        recipe: how each fit is trained.
    """
    accuracy = np.empty(l2.shape)
    weight = x.new_empty(*l2.shape, classes, x.shape[1])
    bias = x.new_empty(*l2.shape, classes)
    lockstep: dict[tuple[int, bool], list[int]] = defaultdict(list)
    for s, subset in enumerate(subsets):
        lockstep[len(subset.train), subset.held_out is None].append(s)
    for members in lockstep.values():
        fits = _Lockstep(x, y, classes, [subsets[s] for s in members], l2[members], recipe)
        epochs = 0
        while len(fits.alive) and epochs <= MAX_EPOCHS:
            for _ in range(recipe.check_every):
                fits.train_epoch()
            epochs += recipe.check_every
            fits.check_held_out()
            fits.drop_finished()
        accuracy[members] = fits.best
        weight[members] = fits.best_weight
        bias[members] = fits.best_bias
    return Fits(accuracy, weight, bias)


class _Lockstep:
    """The fits of S subsets of the same size, with L values of l2 each, trained together."""

    def __init__(
        self,
        x: Tensor,
        y: Tensor,
        classes: int,
        subsets: Sequence[Subset],
        l2: NDArray[np.float64],
        recipe: Recipe,
    ) -> None:
        count, values = l2.shape
        self.x = x
        self.y = y
        self.recipe = recipe
        self.by_fit = (values, classes, -1)  # the view of (L classes, n)
        train = []
        self.held_out = []
        for subset in subsets:
            self.random, rows, held_out = _draw_split(subset)  # in the same state for each subset
            train.append(rows)
            self.held_out.append(torch.from_numpy(held_out).to(x.device))
        self.train = torch.from_numpy(np.stack(train)).to(x.device)  # (S, n)
        self.targets = nn.functional.one_hot(y, classes).to(x)  # (rows of x, classes)
        decay = torch.from_numpy(l2).to(x)  # (S, L)
        self.decay = decay.repeat_interleave(classes, 1).unsqueeze(2)  # (S, L classes, 1)

        layer = initial_layer(x.shape[1], classes).to(x)
        weight = layer.weight.detach().repeat(count, values, 1)  # (S, L classes, dim)
        bias = layer.bias.detach().unsqueeze(1).repeat(count, values, 1)  # (S, L classes, 1)
        self.parameters = [weight, bias]
        for parameter in self.parameters:
            parameter.grad = torch.empty_like(parameter)
        self.optimizer: torch.optim.Optimizer
        if recipe.optimizer == "adam":
            self.optimizer = torch.optim.Adam(self.parameters, fused=True)
        else:
            self.optimizer = torch.optim.RMSprop(self.parameters, foreach=True)

        # subsets with an active fit: the rows of train, decay and parameters
        self.alive = np.arange(count)
        self.active = np.ones((count, values), dtype=bool)
        self.misses = np.zeros((count, values), dtype=int)
        self.best = np.full((count, values), -1.0)
        self.best_weight = torch.empty_like(weight).view(count, *self.by_fit)
        self.best_bias = torch.empty_like(bias).view(count, values, classes)

    def train_epoch(self) -> None:
        """Pass once over the training rows; each step trains all fits with two batched products."""
        weight, bias = self.parameters
        permutation = torch.from_numpy(self.random.permutation(self.train.shape[1]))
        for columns in torch.split(permutation.to(self.x.device), self.recipe.batch_size):
            rows = self.train[:, columns]  # (S, b)
            batch = self.x[rows.flatten()].view(*rows.shape, -1)  # (S, b, dim)
            logits = torch.baddbmm(bias, weight, batch.mT)  # (S, L classes, b)
            probabilities = logits.view(len(rows), *self.by_fit).softmax(2)  # (S, L, classes, b)
            targets = self.targets[rows].mT[:, None]  # (S, 1, classes, b)
            error = probabilities - targets  # d loss / d logits, times b
            error = error.div_(rows.shape[1]).view_as(logits)
            torch.bmm(error, batch, out=weight.grad)
            torch.sum(error, 2, keepdim=True, out=bias.grad)
            for parameter in self.parameters:
                assert parameter.grad is not None
                parameter.grad.addcmul_(parameter, self.decay)
            self.optimizer.step()

    def check_held_out(self) -> None:
        """Measure held-out accuracy; keep improved weights, stop fits that ran out of patience."""
        weight, bias = self.parameters
        for i, s in enumerate(self.alive):
            rows = self.held_out[s]
            logits = torch.addmm(bias[i], weight[i], self.x[rows].T)  # (L classes, rows)
            predicted = logits.view(self.by_fit).argmax(1)  # (L, rows)
            correct = (predicted == self.y[rows]).sum(1)  # (L,)
            reached = correct.cpu().numpy() / len(rows)
            better = self.active[s] & (reached > self.best[s])
            missed = self.active[s] & ~better
            stopped = missed & (self.misses[s] >= self.recipe.patience)
            self.active[s] &= ~stopped
            self.misses[s] += missed
            self.best[s, better] = reached[better]
            self.best_weight[s, better] = weight[i].view(self.by_fit)[better]
            self.best_bias[s, better] = bias[i].view(self.by_fit).squeeze(2)[better]

    def drop_finished(self) -> None:
        """Remove subsets whose fits have all stopped from the tensors and the optimiser."""
        going_on = np.flatnonzero(self.active[self.alive].any(1))
        if len(going_on) == len(self.alive):
            return
        self.alive = self.alive[going_on]
        rows = torch.from_numpy(going_on).to(self.x.device)
        self.train = self.train[rows]
        self.decay = self.decay[rows]
        for i, parameter in enumerate(self.parameters):
            smaller = parameter[rows]
            smaller.grad = torch.empty_like(smaller)
            state = self.optimizer.state.pop(parameter)
            for name, value in state.items():
                if value.shape == parameter.shape:  # a scalar counts the steps
                    state[name] = value[rows]
            self.optimizer.state[smaller] = state
            self.optimizer.param_groups[0]["params"][i] = smaller
            self.parameters[i] = smaller


def initial_layer(dim: int, classes: int) -> nn.Linear:
    """Return the layer from which every fit starts; the random state does not change."""
    with torch.random.fork_rng(devices=[]):
        # torch.manual_seed would reseed the GPU too, and so dropout
        torch.default_generator.manual_seed(SEED)
        return nn.Linear(dim, classes)


def _draw_split(subset: Subset) -> tuple[np.random.RandomState, Rows, Rows]:
    """Split a subset at random; return the generator, the training rows and the held-out rows."""
    random = np.random.RandomState(SEED)
    if subset.held_out is not None:
        return random, subset.train, subset.held_out
    rows = subset.train[random.permutation(len(subset.train))]
    held_out = int(0.05 * len(rows))
    return random, rows[held_out:], rows[:held_out]
