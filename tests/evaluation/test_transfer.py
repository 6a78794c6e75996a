"""Transfer tasks against a literal nested loop over scikit-learn's folds."""

import zlib

import numpy as np
import pytest
import torch
from model_cases import model_of
from sklearn.model_selection import StratifiedKFold

from dystress_text.errors import ParameterError
from dystress_text.evaluation.catalogue import MINI_TRANSFER_TASKS, TRANSFER_TASKS
from dystress_text.evaluation.classifier import L2_VALUES, RECIPES, Subset, fit
from dystress_text.evaluation.evaluator_list import EvaluatorList, transfer_evaluators
from dystress_text.evaluation.text_sets import Labelled
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


def literal_scores(classes, splits, mode):
    """Return accuracy and dev accuracy of one fit after another, as SentEval's loops do it."""
    recipe = RECIPES[mode]
    folds = StratifiedKFold(n_splits=recipe.folds, shuffle=True, random_state=1111)
    x = torch.cat([features(split, bag_of_words) for split in splits.values()])
    y = np.concatenate([split.labels for split in splits.values()])
    ends = np.cumsum([len(split) for split in splits.values()])
    rows = dict(zip(splits, np.split(np.arange(len(y)), ends[:-1]), strict=True))

    def fitted(train, held_out, l2):
        subset = Subset(train, held_out)
        return fit(x, torch.from_numpy(y), classes, [subset], np.array([[l2]]), recipe)

    def mean_accuracy(train, l2):
        """Return the mean over the inner folds."""
        inner = [(train[i], train[j]) for i, j in folds.split(train, y[train])]
        if "dev" in rows:
            inner = [(train, rows["dev"])]
        accuracies = [fitted(*fold, l2).accuracy[0, 0] for fold in inner]
        return round(100 * np.mean(accuracies), 2)

    outer = folds.split(x, y) if "all" in rows else [(rows["train"], rows["test"])]
    accuracies = []
    bests = []
    for train, test in outer:
        means = [mean_accuracy(train, l2) for l2 in L2_VALUES]
        l2 = L2_VALUES[int(np.argmax(means))]
        predicted = fitted(train, rows.get("dev"), l2).predict(x[test], 0).numpy()
        accuracies.append(round(100 * (predicted == y[test]).mean(), 2))
        bests.append(max(means))
    return {"accuracy": round(np.mean(accuracies), 2), "dev_accuracy": round(np.mean(bests), 2)}


@pytest.mark.parametrize(("name", "floor"), [("MiniSubjectivity", 60), ("MiniParaphrase", 40)])
def test_tasks_equal_the_literal_loop(name, floor):
    splits = TASKS[name].read(MINI)
    result = evaluate_transfer(2, splits, bag_of_words, "fast")
    assert result == literal_scores(2, splits, "fast")
    assert result["accuracy"] > floor


def test_dev_splits_equal_the_literal_loop():
    draw = np.random.default_rng(0)
    splits = {}
    for split, count in (("train", 120), ("dev", 40), ("test", 60)):
        labels = draw.integers(2, size=count)
        texts = []
        for label in labels:
            words = draw.integers(10 * label, 10 * label + 25, 5)
            texts.append(" ".join(f"w{word}" for word in words))
        splits[split] = Labelled((tuple(texts),), labels)
    expected = literal_scores(2, splits, "test")
    assert evaluate_transfer(2, splits, bag_of_words) == expected
    assert dev_accuracy(2, splits, bag_of_words, "test") == expected["dev_accuracy"]


def test_features_of_pairs():
    split = TASKS["MiniParaphrase"].read(MINI)["test"]
    u, v = (bag_of_words(column).numpy() for column in split.columns)
    expected = np.concatenate([abs(u - v), u * v], 1)
    np.testing.assert_allclose(features(split, bag_of_words).numpy(), expected)


def test_training_measures_dev_accuracies_and_their_mean():
    """The test texts are not read."""
    names = ["MiniParaphrase", "MiniQuestions"]
    seen = set()

    def embed(texts):
        seen.update(texts)
        return bag_of_words(texts)

    metrics = EvaluatorList(transfer_evaluators([*names, names[0]]))(model_of(embed))
    expected = []
    for name in names:
        splits = TASKS[name].read(MINI)
        expected.append(evaluate_transfer(TASKS[name].classes, splits, bag_of_words, "fast"))
        assert not set(splits["test"].columns[0]) & seen
    accuracies = [each["dev_accuracy"] for each in expected]
    assert metrics == {
        "miniparaphrase_dev_accuracy": accuracies[0],
        "miniquestions_dev_accuracy": accuracies[1],
        "avg_transfer_dev_accuracy": pytest.approx(sum(accuracies) / 2),
    }


def test_missing_and_damaged_files_are_refused(tmp_path):
    (tmp_path / "senteval/TREC").mkdir(parents=True)
    for file in TASKS["TREC"].files:
        (tmp_path / "senteval" / file).write_text("DESC:x what is it\n")
    for names in (["all"], ["TREC"]):
        with pytest.raises(ParameterError, match=r"^eval_transfer: "):
            transfer_evaluators(names, tmp_path)
