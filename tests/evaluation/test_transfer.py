"""Transfer tasks against a literal nested loop over scikit-learn's folds, and their dev accuracies
while training.
"""

import zlib
from dataclasses import replace

import numpy as np
import pytest
import torch
from model_cases import model_of
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedKFold

from dystress_text.errors import ParameterError
from dystress_text.evaluation.catalogue import MINI_TRANSFER_TASKS, TRANSFER_TASKS
from dystress_text.evaluation.classifier import L2_VALUES, RECIPES, Subset, fit
from dystress_text.evaluation.evaluators import transfer_evaluator
from dystress_text.evaluation.readers import Labelled
from dystress_text.evaluation.transfer import dev_accuracy, evaluate_transfer, features
from dystress_text.io.paths import EMBEDDED

MINI = EMBEDDED / "senteval"
TASKS = {task.name: task for task in (*TRANSFER_TASKS, *MINI_TRANSFER_TASKS)}


def bag_of_words(sentences, dim=48):
    """Hashed words, so that the tasks can be learnt."""
    vectors = torch.zeros(len(sentences), dim)
    for row, sentence in zip(vectors, sentences, strict=True):
        for word in sentence.lower().split():
            row[zlib.crc32(word.encode()) % dim] += 1
    return vectors


def fit_one(x, y, classes, train, held_out, l2, recipe):
    return fit(x, torch.from_numpy(y), classes, [Subset(train, held_out)], np.array([[l2]]), recipe)


def literal_score(task, folder, mode):
    """Accuracy, F1 and dev accuracy of one fit after another, as SentEval's validation module goes
    about it.
    """
    recipe, splits = RECIPES[mode], task.read(folder)
    fold = StratifiedKFold(n_splits=recipe.folds, shuffle=True, random_state=1111)
    x = {name: features(split, bag_of_words) for name, split in splits.items()}
    y = {name: split.labels for name, split in splits.items()}

    def choose(rows, x, y):
        """The l2 of the best mean over the inner folds, and that mean."""
        means = []
        for l2 in L2_VALUES:
            reached = [
                fit_one(x, y, task.classes, rows[i], rows[j], l2, recipe).accuracy[0, 0]
                for i, j in fold.split(rows, y[rows])
            ]
            means.append(round(100 * np.mean(reached), 2))
        return L2_VALUES[int(np.argmax(means))], max(means)

    if task.scheme == "folds":
        scores, bests = [], []
        for train, test in fold.split(x["all"], y["all"]):
            l2, best = choose(train, x["all"], y["all"])
            fitted = fit_one(x["all"], y["all"], task.classes, train, None, l2, recipe)
            predicted = fitted.predict(x["all"][test], 0).numpy()
            scores.append(round(100 * (predicted == y["all"][test]).mean(), 2))
            bests.append(best)
        return round(np.mean(scores), 2), None, round(np.mean(bests), 2)
    rows = np.arange(len(y["train"]))
    if "dev" in splits:
        both, held_out = torch.cat([x["train"], x["dev"]]), len(rows) + np.arange(len(y["dev"]))
        labels = np.concatenate([y["train"], y["dev"]])
        fits = [fit_one(both, labels, task.classes, rows, held_out, l2, recipe) for l2 in L2_VALUES]
        best = max(fits, key=lambda one: round(100 * one.accuracy[0, 0], 2))  # the first on ties
        right = (best.predict(x["test"], 0).numpy() == y["test"]).mean()
        return round(100 * right, 2), None, round(100 * best.accuracy[0, 0], 2)
    l2, best = choose(rows, x["train"], y["train"])
    predicted = (
        fit_one(x["train"], y["train"], task.classes, rows, None, l2, recipe)
        .predict(x["test"], 0)
        .numpy()
    )
    f1 = (
        round(100 * f1_score(y["test"], predicted), 2) if len(splits["test"].columns) == 2 else None
    )
    return round(100 * (predicted == y["test"]).mean(), 2), f1, best


@pytest.mark.parametrize(
    ("name", "floor"), [("MiniSubjectivity", 60), ("MiniQuestions", 30), ("MiniParaphrase", 40)]
)
def test_tasks_equal_the_literal_loop(name, floor):
    task, asked = TASKS[name], []
    result = evaluate_transfer(task, MINI, bag_of_words, "fast")
    assert (result["accuracy"], result["f1"], result["dev_accuracy"]) == literal_score(
        task, MINI, "fast"
    )
    assert result["accuracy"] > floor
    assert set(result["l2"]) <= set(L2_VALUES)
    splits = task.read(MINI)
    assert (
        dev_accuracy(task, splits, lambda s: asked.extend(s) or bag_of_words(s))
        == result["dev_accuracy"]
    )
    seen = {
        text
        for split in splits
        if split != "test"
        for column in splits[split].columns
        for text in column
    }
    assert set(asked) == seen  # nothing of the test split


def test_the_dev_scheme_equals_the_literal_loop(tmp_path):
    draw, splits = np.random.default_rng(0), {}
    for split, count in (("train", 120), ("dev", 40), ("test", 60)):
        labels = draw.integers(2, size=count)
        texts = (
            " ".join(f"w{word}" for word in draw.integers(10 * label, 10 * label + 25, 5))
            for label in labels
        )
        splits[split] = Labelled((tuple(texts),), labels)
    parts = {split: (len(rows), split) for split, rows in splits.items()}
    task = replace(TASKS["SST2"], parts=parts, reader=lambda file: splits[file.name])
    result = evaluate_transfer(task, tmp_path, bag_of_words)
    assert (result["accuracy"], None, result["dev_accuracy"]) == literal_score(
        task, tmp_path, "test"
    )
    assert dev_accuracy(task, splits, bag_of_words, "test") == result["dev_accuracy"]


def test_pairs_have_the_features_of_the_protocol():
    split = TASKS["MiniParaphrase"].read(MINI)["test"]
    u, v = bag_of_words(split.columns[0]).numpy(), bag_of_words(split.columns[1]).numpy()
    np.testing.assert_allclose(
        features(split, bag_of_words).numpy(), np.concatenate([abs(u - v), u * v], 1)
    )


def test_several_tasks_have_a_mean_and_one_has_none():
    names = ["MiniParaphrase", "MiniQuestions"]
    evaluator = transfer_evaluator(names)
    metrics = evaluator(model_of(bag_of_words))
    assert list(metrics) == [
        "miniparaphrase_dev_accuracy",
        "miniquestions_dev_accuracy",
        "avg_transfer_dev",
    ]
    each = [dev_accuracy(TASKS[name], TASKS[name].read(MINI), bag_of_words) for name in names]
    assert list(metrics.values()) == [*each, pytest.approx(sum(each) / 2)]
    assert evaluator.metrics == ["avg_transfer_dev", *list(metrics)[:2]]
    assert evaluator.primary_metric == "avg_transfer_dev"
    alone = transfer_evaluator(["MiniQuestions", "MiniQuestions"])
    assert list(alone(model_of(bag_of_words))) == alone.metrics == ["miniquestions_dev_accuracy"]


def test_missing_and_damaged_files_are_one_line(tmp_path):
    (tmp_path / "senteval/TREC").mkdir(parents=True)
    for file in TASKS["TREC"].files:
        (tmp_path / "senteval" / file).write_text("DESC:x what is it\n")
    for names, said in (
        (["MR", "MiniQuestions"], "no MR: cannot read .*prepare"), (["all", "MR"], "no 'all'; known"),
        (["TREC"], "no TREC: .* 1 rows in 'train', 5,452 expected"),
    ):  # fmt: skip
        with pytest.raises(ParameterError, match=f"^eval_transfer: {said}"):
            transfer_evaluator(names, tmp_path)
