"""Transfer tasks against a literal nested loop over scikit-learn's folds."""

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
    """Return counts of hashed words, (n, dim)."""
    vectors = torch.zeros(len(sentences), dim)
    for row, sentence in zip(vectors, sentences, strict=True):
        for word in sentence.lower().split():
            row[zlib.crc32(word.encode()) % dim] += 1
    return vectors


def fit_one(x, y, classes, train, held_out, l2, recipe):
    return fit(x, torch.from_numpy(y), classes, [Subset(train, held_out)], np.array([[l2]]), recipe)


def literal_score(task, splits, mode):
    """Return accuracy, F1 and dev accuracy of one fit after another, as SentEval's loops do it."""
    recipe = RECIPES[mode]
    folds = StratifiedKFold(n_splits=recipe.folds, shuffle=True, random_state=1111)
    x = torch.cat([features(split, bag_of_words) for split in splits.values()])
    y = np.concatenate([split.labels for split in splits.values()])
    ends = np.cumsum([len(split) for split in splits.values()])
    rows = dict(zip(splits, np.split(np.arange(len(y)), ends[:-1]), strict=True))

    def choose(train):
        """Return the l2 of the best mean over the inner folds, and that mean."""
        means = []
        for l2 in L2_VALUES:
            if "dev" in rows:
                inner = [(train, rows["dev"])]
            else:
                inner = [(train[i], train[j]) for i, j in folds.split(train, y[train])]
            fits = [fit_one(x, y, task.classes, *fold, l2, recipe) for fold in inner]
            means.append(round(100 * np.mean([fit.accuracy[0, 0] for fit in fits]), 2))
        return L2_VALUES[int(np.argmax(means))], max(means)

    outer = folds.split(x, y) if "all" in rows else [(rows["train"], rows["test"])]
    scores = []
    bests = []
    f1 = None
    for train, test in outer:
        l2, best = choose(train)
        fitted = fit_one(x, y, task.classes, train, rows.get("dev"), l2, recipe)
        predicted = fitted.predict(x[test], 0).numpy()
        scores.append(round(100 * (predicted == y[test]).mean(), 2))
        bests.append(best)
        if "test" in splits and len(splits["test"].columns) == 2:
            f1 = round(100 * f1_score(y[test], predicted), 2)
    return round(np.mean(scores), 2), f1, round(np.mean(bests), 2)


@pytest.mark.parametrize(
    ("name", "floor"), [("MiniSubjectivity", 60), ("MiniQuestions", 30), ("MiniParaphrase", 40)]
)
def test_tasks_equal_the_literal_loop(name, floor):
    task = TASKS[name]
    splits = task.read(MINI)
    result = evaluate_transfer(task, MINI, bag_of_words, "fast")
    found = (result["accuracy"], result["f1"], result["dev_accuracy"])
    assert found == literal_score(task, splits, "fast")
    assert result["accuracy"] > floor


def test_dev_splits_equal_the_literal_loop(tmp_path):
    draw = np.random.default_rng(0)
    splits = {}
    for split, count in (("train", 120), ("dev", 40), ("test", 60)):
        labels = draw.integers(2, size=count)
        texts = [
            " ".join(f"w{word}" for word in draw.integers(10 * label, 10 * label + 25, 5))
            for label in labels
        ]
        splits[split] = Labelled((tuple(texts),), labels)
    parts = {split: (len(rows), split) for split, rows in splits.items()}
    task = replace(TASKS["SST2"], parts=parts, reader=lambda file: splits[file.name])
    result = evaluate_transfer(task, tmp_path, bag_of_words)
    expected = literal_score(task, splits, "test")
    assert (result["accuracy"], None, result["dev_accuracy"]) == expected
    assert dev_accuracy(task, splits, bag_of_words, "test") == expected[2]


def test_dev_accuracy_reads_no_test_texts():
    splits = TASKS["MiniQuestions"].read(MINI)
    seen = []

    def embed(texts):
        seen.extend(texts)
        return bag_of_words(texts)

    expected = evaluate_transfer(TASKS["MiniQuestions"], MINI, bag_of_words, "fast")
    assert dev_accuracy(TASKS["MiniQuestions"], splits, embed) == expected["dev_accuracy"]
    assert set(seen) == set(splits["train"].columns[0])


def test_features_of_pairs():
    split = TASKS["MiniParaphrase"].read(MINI)["test"]
    u, v = (bag_of_words(column).numpy() for column in split.columns)
    expected = np.concatenate([abs(u - v), u * v], 1)
    np.testing.assert_allclose(features(split, bag_of_words).numpy(), expected)


def test_several_tasks_have_a_mean():
    names = ["MiniParaphrase", "MiniQuestions"]
    evaluator = transfer_evaluator(names)
    metrics = evaluator(model_of(bag_of_words))
    each = [dev_accuracy(TASKS[name], TASKS[name].read(MINI), bag_of_words) for name in names]
    assert list(metrics.values()) == [*each, pytest.approx(sum(each) / 2)]
    assert evaluator.primary_metric == "avg_transfer_dev"
    alone = transfer_evaluator(["MiniQuestions", "MiniQuestions"])
    assert alone.metrics == ["miniquestions_dev_accuracy"]


def test_missing_and_damaged_files_are_refused(tmp_path):
    (tmp_path / "senteval/TREC").mkdir(parents=True)
    for file in TASKS["TREC"].files:
        (tmp_path / "senteval" / file).write_text("DESC:x what is it\n")
    for names in (["MR"], ["all", "MR"], ["TREC"]):
        with pytest.raises(ParameterError, match=r"^eval_transfer: "):
            transfer_evaluator(names, tmp_path)
