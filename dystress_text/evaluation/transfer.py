"""Evaluate SentEval's transfer tasks: logistic regression on frozen embeddings.

Source: SentEval (Conneau and Kiela, 2018).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedKFold
from torch import Tensor

from dystress_text.evaluation.classifier import L2_VALUES, RECIPES, SEED, Recipe, Rows, Subset, fit
from dystress_text.evaluation.sts import Embed
from dystress_text.evaluation.text_sets import Labelled


@dataclass(frozen=True)
class _Problem:
    """The features of all splits, and the rows to fit on, to select l2 on, and to test on."""

    x: Tensor  # (n, features)
    y: Tensor  # (n,) classes
    inner: list[list[Subset]]  # for each final fit the fits that select its l2
    final: list[Subset]
    tests: list[Rows]


def evaluate_transfer(
    classes: int, splits: Mapping[str, Labelled], embed: Embed, mode: str = "test"
) -> dict[str, float]:
    """Measure embeddings on a task with classifiers, which run on the device of the vectors.

    Args:
        classes: the number of classes.
        splits: the texts by split, as a task of the catalogue reads them.
        embed: a function that returns embeddings of sentences, (n, dim).
        mode: a key of :data:`RECIPES`.

    Returns:
        ``accuracy`` x 100: the mean over the outer folds, or the accuracy on the test split.
        ``dev_accuracy`` x 100: the best accuracy on the rows that select l2, as a mean over the
        outer folds if there are any.
    """
    recipe = RECIPES[mode]
    problem = _prepare(splits, embed, recipe)
    scores = _inner_scores(problem, classes, recipe)
    l2 = [L2_VALUES[int(np.argmax(score))] for score in scores]  # the smallest on ties
    grid = np.array(l2)[:, None]  # (outer folds, 1)
    fits = fit(problem.x, problem.y, classes, problem.final, grid, recipe)
    reached = []
    for fold, rows in enumerate(problem.tests):
        correct = fits.predict(problem.x[rows], fold) == problem.y[rows]  # (rows,)
        reached.append(round(100 * float(correct.double().mean()), 2))
    accuracy = round(float(np.mean(reached)), 2)
    return {"accuracy": accuracy, "dev_accuracy": _mean_of_best(scores)}


def dev_accuracy(
    classes: int, splits: Mapping[str, Labelled], embed: Embed, mode: str = "fast"
) -> float:
    """Return ``dev_accuracy`` as :func:`evaluate_transfer` does, without the test split."""
    recipe = RECIPES[mode]
    seen = {name: split for name, split in splits.items() if name != "test"}
    return _mean_of_best(_inner_scores(_prepare(seen, embed, recipe), classes, recipe))


def features(split: Labelled, embed: Embed) -> Tensor:
    """Return u for sentences, (n, dim), or [|u - v|, u * v] for pairs, (n, 2 dim)."""
    if len(split.columns) == 1:
        return embed(split.columns[0])
    u, v = (embed(column) for column in split.columns)
    return torch.cat([(u - v).abs(), u * v], 1)


def _prepare(splits: Mapping[str, Labelled], embed: Embed, recipe: Recipe) -> _Problem:
    """Return the classification problem of a task.

    Without a test split, the cross-validation is nested. With one, l2 is selected on the dev split
    or, if there is none, on folds of the training split.
    """
    x = torch.cat([features(split, embed) for split in splits.values()])
    labels = np.concatenate([split.labels for split in splits.values()])
    y = torch.from_numpy(labels).to(x.device)
    ends = np.cumsum([len(split) for split in splits.values()])
    parts = np.split(np.arange(len(labels)), ends[:-1])
    rows = dict(zip(splits, parts, strict=True))
    test = rows.get("test", np.arange(0))
    if "dev" in rows:
        only = Subset(rows["train"], rows["dev"])
        return _Problem(x, y, [[only]], [only], [test])
    outer = [(rows["train"], test)] if "train" in rows else _folds(rows["all"], labels, recipe)
    inner = []
    for train, _ in outer:
        inner.append([Subset(*fold) for fold in _folds(train, labels, recipe)])
    final = [Subset(train) for train, _ in outer]
    return _Problem(x, y, inner, final, [tested for _, tested in outer])


def _folds(rows: Rows, labels: NDArray[np.int64], recipe: Recipe) -> list[tuple[Rows, Rows]]:
    """Return the training and the held-out rows of each fold, stratified by label."""
    folds = StratifiedKFold(recipe.folds, shuffle=True, random_state=SEED)
    return [(rows[train], rows[held_out]) for train, held_out in folds.split(rows, labels[rows])]


def _inner_scores(problem: _Problem, classes: int, recipe: Recipe) -> list[list[float]]:
    """Return the mean held-out accuracy x 100 for each final fit and each l2 value.

    It is rounded before the best one is selected, as in SentEval.
    """
    subsets = [subset for inner in problem.inner for subset in inner]
    grid = np.tile(np.array(L2_VALUES), (len(subsets), 1))  # (S, L)
    accuracy = fit(problem.x, problem.y, classes, subsets, grid, recipe).accuracy  # (S, L)
    scores = []
    for of_final in np.split(accuracy, len(problem.final)):
        scores.append([round(100 * float(mean), 2) for mean in of_final.mean(0)])
    return scores


def _mean_of_best(scores: Sequence[Sequence[float]]) -> float:
    return round(float(np.mean([max(score) for score in scores])), 2)
