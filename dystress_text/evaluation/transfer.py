"""SentEval's transfer tasks: logistic regression on frozen embeddings.

from dystress_text.evaluation.catalogue import TRANSFER_TASKS
from dystress_text.evaluation.transfer import evaluate_transfer
evaluate_transfer(TRANSFER_TASKS[0], folder, embed)   # embed: sentences -> vectors (n, dim)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedKFold
from torch import Tensor

from dystress_text.evaluation.catalogue import TransferTask
from dystress_text.evaluation.classifier import L2_VALUES, RECIPES, SEED, Recipe, Rows, Subset, fit
from dystress_text.evaluation.readers import Labelled
from dystress_text.evaluation.sts import Embed


@dataclass(frozen=True)
class _Choice:
    """A classifier that is tested, and the fits that choose its l2."""

    inner: list[Subset]
    final: Subset
    test: Rows


def evaluate_transfer(
    task: TransferTask, folder: Path, embed: Embed, mode: str = "test"
) -> dict[str, Any]:
    """Run a task in SentEval's ``downstream`` folder; its classifiers are trained on the device of
    the vectors.

    Returns:
        ``accuracy`` x 100: the mean over the outer folds, or the accuracy on the test split.
        ``dev_accuracy`` x 100: of the chosen l2 on the rows that chose it, the mean over the outer
        folds. ``l2``: the chosen values, one for each outer fold. ``folds``: the accuracy of each
        outer fold; empty where there is a test split. ``f1`` x 100: on the test split of a pair
        task; None for other tasks. ``counts``: texts by split.
    """
    splits = task.read(folder)
    recipe = RECIPES[mode]
    x, y, choices = _prepared(splits, embed, recipe)
    scores = _inner_scores(x, y, task.classes, choices, recipe)
    l2 = [L2_VALUES[int(np.argmax(score))] for score in scores]  # the smallest on ties
    final = [choice.final for choice in choices]
    fits = fit(x, y, task.classes, final, np.array(l2)[:, None], recipe)
    reached = []
    f1 = None
    for fold, choice in enumerate(choices):
        predicted = fits.predict(x[choice.test], fold)  # (rows,)
        expected = y[choice.test]
        reached.append(round(100 * float((predicted == expected).double().mean()), 2))
        if "test" in splits and len(splits["test"].columns) == 2:
            f1 = round(100 * float(f1_score(expected.cpu(), predicted.cpu())), 2)
    return {
        "accuracy": round(float(np.mean(reached)), 2),
        "dev_accuracy": _mean_of_best(scores),
        "l2": l2,
        "folds": reached if "all" in splits else [],
        "f1": f1,
        "counts": {name: len(split) for name, split in splits.items()},
    }


def dev_accuracy(
    task: TransferTask, splits: Mapping[str, Labelled], embed: Embed, mode: str = "fast"
) -> float:
    """Return a task's ``dev_accuracy`` alone, on what ``task.read`` returns but the test split."""
    recipe = RECIPES[mode]
    seen = {name: split for name, split in splits.items() if name != "test"}
    x, y, choices = _prepared(seen, embed, recipe)
    return _mean_of_best(_inner_scores(x, y, task.classes, choices, recipe))


def features(split: Labelled, embed: Embed) -> Tensor:
    """The vectors u of texts, (n, dim); for pairs [|u - v|, u * v], (n, 2 dim)."""
    if len(split.columns) == 1:
        return embed(split.columns[0])
    u, v = (embed(column) for column in split.columns)
    return torch.cat([(u - v).abs(), u * v], 1)


def _prepared(
    splits: Mapping[str, Labelled], embed: Embed, recipe: Recipe
) -> tuple[Tensor, Tensor, list[_Choice]]:
    """Return features (n, features) and classes (n,) of all splits one below another, and what is
    fitted on which rows.

    Without a test split the cross-validation is nested. With one, a dev split chooses l2, or else
    folds of the training split.
    """
    x = torch.cat([features(split, embed) for split in splits.values()])
    labels = np.concatenate([split.labels for split in splits.values()])
    ends = np.cumsum([len(split) for split in splits.values()])
    rows = dict(zip(splits, np.split(np.arange(len(labels)), ends[:-1]), strict=True))
    y = torch.from_numpy(labels).to(x.device)
    test = rows.get("test", np.arange(0))
    if "dev" in rows:
        only = Subset(rows["train"], rows["dev"])
        return x, y, [_Choice([only], only, test)]
    outer = _folds(rows["all"], labels, recipe) if "all" in rows else [(rows["train"], test)]
    choices = []
    for train, held_out in outer:
        inner = [Subset(*fold) for fold in _folds(train, labels, recipe)]
        choices.append(_Choice(inner, Subset(train), held_out))
    return x, y, choices


def _folds(rows: Rows, labels: NDArray[np.int64], recipe: Recipe) -> list[tuple[Rows, Rows]]:
    """Return the training and the held-out rows of a cross-validation, stratified by label."""
    folds = StratifiedKFold(recipe.folds, shuffle=True, random_state=SEED)
    return [(rows[train], rows[held_out]) for train, held_out in folds.split(rows, labels[rows])]


def _inner_scores(
    x: Tensor, y: Tensor, classes: int, choices: Sequence[_Choice], recipe: Recipe
) -> list[list[float]]:
    """Mean held-out accuracy x 100 of each l2 value for each choice, rounded as SentEval does; all
    fits together.
    """
    inner = [subset for choice in choices for subset in choice.inner]
    grid = np.tile(np.array(L2_VALUES), (len(inner), 1))  # (S, L)
    accuracy = fit(x, y, classes, inner, grid, recipe).accuracy
    return [
        [round(100 * float(mean), 2) for mean in of.mean(0)]
        for of in np.split(accuracy, len(choices))
    ]


def _mean_of_best(scores: Sequence[Sequence[float]]) -> float:
    return round(float(np.mean([max(score) for score in scores])), 2)
