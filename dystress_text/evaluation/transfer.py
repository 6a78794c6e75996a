"""SentEval's transfer tasks: logistic regression on frozen embeddings.

from dystress_text.evaluation.catalogue import TRANSFER_TASKS
from dystress_text.evaluation.transfer import evaluate_transfer
evaluate_transfer(TRANSFER_TASKS[0], folder, embed)   # embed: sentences -> vectors (n, dim)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedKFold
from torch import Tensor

from dystress_text.evaluation.catalogue import TransferTask
from dystress_text.evaluation.classifier import (
    L2_VALUES,
    RECIPES,
    SEED,
    Fits,
    Fitter,
    Recipe,
    Rows,
    Subset,
    fit_batched,
)
from dystress_text.evaluation.readers import Labelled
from dystress_text.evaluation.sts import Embed


@dataclass(frozen=True)
class TransferResult:
    """Scores of an encoder on a task.

    Attributes:
        accuracy: x 100: the mean over the outer folds, or the accuracy on the test split.
        dev_accuracy: x 100, of the chosen l2 on the rows that chose it; the mean over the outer folds.
        l2: the chosen values, one for each outer fold.
        folds: x 100, the accuracy of each outer fold; empty where there is a test split.
        f1: x 100, on the test split of a pair task; None for other tasks.
        counts: texts by split.
    """

    accuracy: float
    dev_accuracy: float
    l2: tuple[float, ...]
    folds: tuple[float, ...]
    f1: float | None
    counts: dict[str, int]


def evaluate_transfer(
    task: TransferTask, folder: Path, embed: Embed, mode: str = "test", fitter: Fitter = fit_batched
) -> TransferResult:
    """Run a task.

    Args:
        task: from :mod:`dystress_text.evaluation.catalogue`.
        folder: SentEval's ``downstream`` folder.
        embed: sentences to vectors (n, dim).
        mode: ``test`` (the published figures) or ``fast``.
        fitter: trains the classifiers, on the device of the vectors.

    Raises:
        DataError: a file is missing or damaged.
    """
    splits = task.read(folder)
    recipe = RECIPES[mode]
    x, y = _vectors(splits, embed)
    counts = {name: len(split) for name, split in splits.items()}
    if task.scheme == "folds":
        accuracy, dev, l2, folds = _nested_folds(x["all"], y["all"], task.classes, recipe, fitter)
        return TransferResult(accuracy, dev, l2, folds, None, counts)
    choice = _choice(task, splits, x, y, recipe)
    scores = choice.scores(fitter)
    best = int(np.argmax(scores))  # the smallest l2 on ties
    fits = fitter(choice.x, choice.y, task.classes, [choice.final], np.array([[L2_VALUES[best]]]), recipe)
    predicted = fits.predict(x["test"], 0)
    f1 = None
    if len(splits["test"].columns) == 2:
        f1 = round(100 * float(f1_score(splits["test"].labels, predicted.cpu().numpy())), 2)
    return TransferResult(_accuracy(predicted, y["test"]), scores[best], (L2_VALUES[best],), (), f1, counts)


def dev_accuracy(
    task: TransferTask, splits: Mapping[str, Labelled], embed: Embed, mode: str = "fast", fitter: Fitter = fit_batched
) -> float:
    """A task's :attr:`TransferResult.dev_accuracy` alone; the test split is not used.

    Args:
        task: from :mod:`dystress_text.evaluation.catalogue`.
        splits: as ``task.read`` returns them.
        embed: sentences to vectors (n, dim).
        mode: ``test`` or ``fast``.
        fitter: trains the classifiers, on the device of the vectors.
    """
    recipe = RECIPES[mode]
    x, y = _vectors({name: split for name, split in splits.items() if name != "test"}, embed)
    if task.scheme == "folds":
        scores = _inner_scores(x["all"], y["all"], task.classes, _fold(splits["all"].labels, recipe), recipe, fitter)
        return _mean_of_best(scores)
    return max(_choice(task, splits, x, y, recipe).scores(fitter))


@dataclass(frozen=True)
class _Choice:
    """How the l2 of a task with a test split is chosen.

    Attributes:
        x: (n, features) of the rows that choose and train.
        y: (n,) their classes.
        classes: the number of classes.
        final: the rows for the classifier that is tested.
        subsets: the rows for the fits that choose.
        recipe: of all fits.
    """

    x: Tensor
    y: Tensor
    classes: int
    final: Subset
    subsets: Sequence[Subset]
    recipe: Recipe

    def scores(self, fitter: Fitter) -> list[float]:
        """Mean held-out accuracy x 100 of each l2 value."""
        return _scores(fitter(self.x, self.y, self.classes, self.subsets, _grid(len(self.subsets)), self.recipe))


def _choice(
    task: TransferTask,
    splits: Mapping[str, Labelled],
    x: Mapping[str, Tensor],
    y: Mapping[str, Tensor],
    recipe: Recipe,
) -> _Choice:
    n = len(splits["train"])
    if task.scheme == "dev":
        final = Subset(np.arange(n), np.arange(n, n + len(splits["dev"])))
        both = torch.cat([x["train"], x["dev"]]), torch.cat([y["train"], y["dev"]])
        return _Choice(*both, task.classes, final, [final], recipe)
    inner = [Subset(*fold) for fold in _fold(splits["train"].labels, recipe)]
    return _Choice(x["train"], y["train"], task.classes, Subset(np.arange(n)), inner, recipe)


def _vectors(splits: Mapping[str, Labelled], embed: Embed) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Features (n, features) and classes (n,) of each split."""
    x = {name: features(split, embed) for name, split in splits.items()}
    return x, {name: torch.from_numpy(split.labels).to(x[name].device) for name, split in splits.items()}


def features(split: Labelled, embed: Embed) -> Tensor:
    """The vectors u of texts, (n, dim); for pairs [|u - v|, u * v], (n, 2 dim)."""
    if len(split.columns) == 1:
        return embed(split.columns[0])
    u, v = (embed(column) for column in split.columns)
    return torch.cat([(u - v).abs(), u * v], 1)


def _nested_folds(
    x: Tensor, y: Tensor, classes: int, recipe: Recipe, fitter: Fitter
) -> tuple[float, float, tuple[float, ...], tuple[float, ...]]:
    """Accuracy, dev accuracy, l2 and accuracy of each outer fold; the inner fits of all outer folds run together."""
    outer = _fold(y.cpu().numpy(), recipe)
    scores = _inner_scores(x, y, classes, outer, recipe, fitter)
    l2 = tuple(L2_VALUES[int(np.argmax(score))] for score in scores)
    final = fitter(x, y, classes, [Subset(train) for train, _ in outer], np.array(l2)[:, None], recipe)
    folds = tuple(_accuracy(final.predict(x[test], i), y[test]) for i, (_, test) in enumerate(outer))
    return round(float(np.mean(folds)), 2), _mean_of_best(scores), l2, folds


def _inner_scores(
    x: Tensor, y: Tensor, classes: int, outer: Sequence[tuple[Rows, Rows]], recipe: Recipe, fitter: Fitter
) -> list[list[float]]:
    """Mean held-out accuracy x 100 of each l2 value within each outer fold."""
    labels = y.cpu().numpy()
    inner = [
        Subset(train[rows], train[held_out]) for train, _ in outer for rows, held_out in _fold(labels[train], recipe)
    ]
    fits = fitter(x, y, classes, inner, _grid(len(inner)), recipe)
    return [_scores(fits, fold) for fold in np.split(np.arange(len(inner)), len(outer))]


def _mean_of_best(scores: Sequence[Sequence[float]]) -> float:
    return round(float(np.mean([max(score) for score in scores])), 2)


def _fold(labels: NDArray[np.int64], recipe: Recipe) -> list[tuple[Rows, Rows]]:
    folds = StratifiedKFold(recipe.folds, shuffle=True, random_state=SEED)
    return list(folds.split(np.zeros(len(labels)), labels))


def _grid(subsets: int) -> NDArray[np.float64]:
    """Each l2 value for each subset, (S, L)."""
    return np.tile(np.array(L2_VALUES), (subsets, 1))


def _scores(fits: Fits, subsets: NDArray[np.int64] | slice = slice(None)) -> list[float]:
    """Mean held-out accuracy x 100 of each of the L values of l2, rounded as SentEval rounds it."""
    return [round(100 * float(mean), 2) for mean in fits.accuracy[subsets].mean(0)]


def _accuracy(predicted: Tensor, y: Tensor) -> float:
    return round(100 * float((predicted == y).double().mean()), 2)
