"""Transfer tasks: logistic regression on frozen embeddings, as SentEval does it.

from eval.tasks import TRANSFER_TASKS
from eval.transfer import evaluate_transfer
evaluate_transfer(TRANSFER_TASKS[0], folder, embed)   # embed: sentences -> vectors (n, dim)
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedKFold
from torch import Tensor

from dystress_text.sts import Embed
from eval.classifier import L2_VALUES, RECIPES, SEED, Fits, Fitter, Recipe, Subset, fit_batched
from eval.tasks import Labelled, TransferTask


@dataclass(frozen=True)
class TransferResult:
    """What a task says of an encoder.

    Attributes:
        accuracy: x 100: the mean over the outer folds, or that of the test split.
        dev_accuracy: x 100, of the chosen l2 on the rows that chose it; the mean over the outer folds.
        l2: the chosen ones, one for each outer fold.
        folds: x 100, the outer folds' accuracies; empty where there is a test split.
        f1: x 100, on the test split of a pair task; None elsewhere.
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
        task: from :mod:`eval.tasks`.
        folder: SentEval's ``downstream`` folder.
        embed: sentences to vectors (n, dim).
        mode: ``test`` (the published figures) or ``fast``.
        fitter: trains the classifiers, on the device of the vectors.

    Raises:
        DataError: a file is missing or damaged.
    """
    splits = task.read(folder)
    recipe = RECIPES[mode]
    x = {name: features(split, embed) for name, split in splits.items()}
    y = {name: torch.from_numpy(split.labels).to(x[name].device) for name, split in splits.items()}
    counts = {name: len(split) for name, split in splits.items()}
    if task.scheme == "folds":
        accuracy, dev, l2, folds = _nested_folds(x["all"], y["all"], task.classes, recipe, fitter)
        return TransferResult(accuracy, dev, l2, folds, None, counts)
    n = counts["train"]
    if task.scheme == "dev":
        all_x, all_y = torch.cat([x["train"], x["dev"]]), torch.cat([y["train"], y["dev"]])
        final = Subset(np.arange(n), np.arange(n, n + counts["dev"]))
        scores = _scores(fitter(all_x, all_y, task.classes, [final], _grid(1), recipe))
    else:
        all_x, all_y = x["train"], y["train"]
        final = Subset(np.arange(n))
        inner = [Subset(*parts) for parts in _fold(splits["train"].labels, recipe)]
        scores = _scores(fitter(all_x, all_y, task.classes, inner, _grid(len(inner)), recipe))
    best = int(np.argmax(scores))  # the smallest l2 on ties
    fits = fitter(all_x, all_y, task.classes, [final], np.array([[L2_VALUES[best]]]), recipe)
    predicted = fits.predict(x["test"], 0)
    f1 = None
    if len(splits["test"].columns) == 2:
        f1 = round(100 * float(f1_score(splits["test"].labels, predicted.cpu().numpy())), 2)
    return TransferResult(_accuracy(predicted, y["test"]), scores[best], (L2_VALUES[best],), (), f1, counts)


def features(split: Labelled, embed: Embed) -> Tensor:
    """A text's vector u, (n, dim); for pairs [|u - v|, u * v], (n, 2 dim)."""
    if len(split.columns) == 1:
        return embed(split.columns[0])
    u, v = (embed(column) for column in split.columns)
    return torch.cat([(u - v).abs(), u * v], 1)


def _nested_folds(
    x: Tensor, y: Tensor, classes: int, recipe: Recipe, fitter: Fitter
) -> tuple[float, float, tuple[float, ...], tuple[float, ...]]:
    """Accuracy, dev accuracy, l2 and accuracy of each outer fold; all inner fits of all outer folds at once."""
    labels = y.cpu().numpy()
    outer = _fold(labels, recipe)
    inner = [
        Subset(train[rows], train[held_out]) for train, _ in outer for rows, held_out in _fold(labels[train], recipe)
    ]
    fits = fitter(x, y, classes, inner, _grid(len(inner)), recipe)
    scores = [_scores(fits, part) for part in np.split(np.arange(len(inner)), len(outer))]
    l2 = tuple(L2_VALUES[int(np.argmax(score))] for score in scores)
    final = fitter(x, y, classes, [Subset(train) for train, _ in outer], np.array(l2)[:, None], recipe)
    folds = tuple(_accuracy(final.predict(x[test], i), y[test]) for i, (_, test) in enumerate(outer))
    dev = round(float(np.mean([max(score) for score in scores])), 2)
    return round(float(np.mean(folds)), 2), dev, l2, folds


def _fold(labels: NDArray[np.int64], recipe: Recipe) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    folds = StratifiedKFold(recipe.folds, shuffle=True, random_state=SEED)
    return list(folds.split(np.zeros(len(labels)), labels))


def _grid(subsets: int) -> NDArray[np.float64]:
    """Each l2 value for each subset, (S, L)."""
    return np.tile(np.array(L2_VALUES), (subsets, 1))


def _scores(fits: Fits, subsets: NDArray[np.int64] | slice = slice(None)) -> list[float]:
    """Mean held-out accuracy x 100 of each l2 value, as SentEval rounds it: L of them."""
    return [round(100 * float(mean), 2) for mean in fits.accuracy[subsets].mean(0)]


def _accuracy(predicted: Tensor, y: Tensor) -> float:
    return round(100 * float((predicted == y).double().mean()), 2)
