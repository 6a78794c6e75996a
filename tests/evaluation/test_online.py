"""Dev accuracies while training: those that the evaluation program finds, from the rows that choose the l2 alone."""

import functools

import numpy as np
import pytest
import torch
import transfer_cases
from sklearn.model_selection import StratifiedKFold
from transfer_cases import MINI, TASKS

from dystress_text.errors import UserError
from dystress_text.evaluation.classifier import L2_VALUES, RECIPES, Subset, fit_batched, fit_literal
from dystress_text.evaluation.evaluators import transfer_evaluator
from dystress_text.evaluation.transfer import dev_accuracy, evaluate_transfer

bag_of_words = functools.partial(transfer_cases.bag_of_words, dim=32)


@pytest.mark.parametrize(
    ("name", "fitter"),
    [("MiniSubjectivity", fit_batched), ("MiniQuestions", fit_literal), ("MiniParaphrase", fit_batched)],
)
def test_the_dev_accuracy_is_that_of_the_whole_task(name, fitter):
    task = TASKS[name]
    asked = []
    found = dev_accuracy(task, task.read(MINI), lambda s: asked.extend(s) or bag_of_words(s))
    assert found == evaluate_transfer(task, MINI, bag_of_words, "fast", fitter).dev_accuracy
    splits = task.read(MINI)
    test = {text for column in splits["test"].columns for text in column} if "test" in splits else set()
    trained = {text for split in splits if split != "test" for column in splits[split].columns for text in column}
    assert set(asked) == trained
    assert not (test - trained) & set(asked)


def test_nested_folds_are_scored_by_their_best_l2():
    """Against a plain loop over scikit-learn's folds: the mean over outer folds of the best inner mean."""
    task, recipe = TASKS["MiniSentiment"], RECIPES["fast"]
    split = task.read(MINI)["all"]
    x, y = bag_of_words(split.columns[0]), split.labels
    fold = StratifiedKFold(recipe.folds, shuffle=True, random_state=1111)
    best = []
    for rows, _ in fold.split(x, y):
        inner = [Subset(rows[i], rows[j]) for i, j in fold.split(rows, y[rows])]
        fits = fit_batched(x, torch.from_numpy(y), 2, inner, np.tile(np.array(L2_VALUES), (len(inner), 1)), recipe)
        best.append(max(round(100 * mean, 2) for mean in fits.accuracy.mean(0)))
    assert dev_accuracy(task, {"all": split}, bag_of_words) == round(np.mean(best), 2)


def test_a_task_with_a_dev_split(tmp_path):
    """SST2's layout, at a small size: l2 by the dev split."""
    task = TASKS["SST2"]
    lines = [f"the {w} film was {'good' if i % 2 else 'bad'} {i}\t{i % 2}" for i, w in enumerate("abcdefgh" * 15)]
    for file, part in zip(task.files, (lines[:70], lines[70:100], lines[100:]), strict=True):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("\n".join(part) + "\n")
    small = type(task)(task.name, task.files, {"train": 70, "dev": 30, "test": 20}, "dev", 2, task.reader)
    found = dev_accuracy(small, small.read(tmp_path), bag_of_words)
    assert found == evaluate_transfer(small, tmp_path, bag_of_words, "fast", fit_literal).dev_accuracy
    assert found > 50


def test_several_tasks_have_a_mean_and_one_has_none():
    names = ["MiniSubjectivity", "MiniQuestions"]
    evaluator = transfer_evaluator(names)
    metrics = evaluator(bag_of_words)
    assert list(metrics) == ["minisubjectivity_dev_accuracy", "miniquestions_dev_accuracy", "avg_transfer_dev"]
    each = [dev_accuracy(TASKS[name], TASKS[name].read(MINI), bag_of_words) for name in names]
    assert list(metrics.values()) == [*each, pytest.approx(sum(each) / 2)]
    assert evaluator.best_metrics == ["avg_transfer_dev", *list(metrics)[:2]]
    alone = transfer_evaluator(["MiniQuestions", "MiniQuestions"])
    assert list(alone(bag_of_words)) == alone.best_metrics == ["miniquestions_dev_accuracy"]


def test_missing_and_damaged_files_are_one_line(tmp_path):
    with pytest.raises(
        UserError, match=r"^--eval_transfer: no files of MR, TREC in .*senteval.*dystress prepare senteval"
    ):
        transfer_evaluator(["MR", "TREC", "MiniQuestions"], tmp_path)
    for file in TASKS["TREC"].files:
        (tmp_path / "senteval" / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "senteval" / file).write_text("DESC:x what is it\n")
    with pytest.raises(UserError, match=r"^--eval_transfer: TREC has 1 texts in 'train', 5,452 expected"):
        transfer_evaluator(["TREC"], tmp_path)
    with pytest.raises(UserError, match=r"^--eval_transfer: no task 'all'; known are all, or some of MR, CR"):
        transfer_evaluator(["all", "MR"], tmp_path)
