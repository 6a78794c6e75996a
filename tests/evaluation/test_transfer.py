"""Transfer tasks against a literal nested loop over scikit-learn's folds, on small and on real texts."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedKFold
from transfer_cases import MINI, TASKS, bag_of_words

from dystress_text.errors import DataError
from dystress_text.evaluation.classifier import L2_VALUES, RECIPES, Subset, fit_batched, fit_literal
from dystress_text.evaluation.transfer import evaluate_transfer, features


def fit_one(x, y, classes, train, held_out, l2, recipe):
    return fit_literal(x, torch.from_numpy(y), classes, [Subset(train, held_out)], np.array([[l2]]), recipe)


def literal_score(task, folder, mode):
    """One fit after another, as SentEval's validation module goes about it."""
    recipe, splits = RECIPES[mode], task.read(folder)
    fold = StratifiedKFold(n_splits=recipe.folds, shuffle=True, random_state=1111)
    x = {name: features(split, bag_of_words) for name, split in splits.items()}
    y = {name: split.labels for name, split in splits.items()}

    def choose(rows, x, y):
        """The l2 of the best mean over the inner folds."""
        means = []
        for l2 in L2_VALUES:
            reached = [
                fit_one(x, y, task.classes, rows[i], rows[j], l2, recipe).accuracy[0, 0]
                for i, j in fold.split(rows, y[rows])
            ]
            means.append(round(100 * np.mean(reached), 2))
        return L2_VALUES[int(np.argmax(means))]

    if task.scheme == "folds":
        scores = []
        for train, test in fold.split(x["all"], y["all"]):
            l2 = choose(train, x["all"], y["all"])
            fitted = fit_one(x["all"], y["all"], task.classes, train, None, l2, recipe)
            predicted = fitted.predict(x["all"][test], 0).numpy()
            scores.append(round(100 * (predicted == y["all"][test]).mean(), 2))
        return round(np.mean(scores), 2), None
    rows = np.arange(len(y["train"]))
    l2 = choose(rows, x["train"], y["train"])
    predicted = fit_one(x["train"], y["train"], task.classes, rows, None, l2, recipe).predict(x["test"], 0).numpy()
    f1 = round(100 * f1_score(y["test"], predicted), 2) if len(splits["test"].columns) == 2 else None
    return round(100 * (predicted == y["test"]).mean(), 2), f1


@pytest.mark.parametrize(("name", "floor"), [("MiniSubjectivity", 60), ("MiniQuestions", 30), ("MiniParaphrase", 40)])
def test_tasks_equal_the_literal_loop(name, floor):
    result = evaluate_transfer(TASKS[name], MINI, bag_of_words, "fast")
    assert (result.accuracy, result.f1) == literal_score(TASKS[name], MINI, "fast")
    assert result.accuracy > floor
    assert set(result.l2) <= set(L2_VALUES)


@pytest.fixture
def sst(tmp_path):
    """A folder with a small task of SST2's layout."""
    folder = tmp_path / "SST" / "binary"
    folder.mkdir(parents=True)
    draw = np.random.default_rng(0)
    words = [f"w{i}" for i in range(40)]
    for split, count in (("train", 120), ("dev", 40), ("test", 60)):
        lines = []
        for _ in range(count):
            label = draw.integers(2)
            text = " ".join(draw.choice(words[20 * label // 2 :][:25], size=draw.integers(3, 7)))
            lines.append(f"{text}\t{label}\n")
        (folder / f"sentiment-{split}").write_text("".join(lines))
    return tmp_path


def test_the_dev_scheme_equals_the_literal_loop(sst):
    task = replace(TASKS["SST2"], counts={"train": 120, "dev": 40, "test": 60})
    splits, recipe = task.read(sst), RECIPES["test"]
    x = {name: features(split, bag_of_words) for name, split in splits.items()}
    both_x = torch.cat([x["train"], x["dev"]])
    both_y = np.concatenate([splits["train"].labels, splits["dev"].labels])
    fits = [fit_one(both_x, both_y, 2, np.arange(120), np.arange(120, 160), l2, recipe) for l2 in L2_VALUES]
    best = int(np.argmax([round(100 * fit.accuracy[0, 0], 2) for fit in fits]))
    expected = round(100 * (fits[best].predict(x["test"], 0).numpy() == splits["test"].labels).mean(), 2)
    result = evaluate_transfer(task, sst, bag_of_words)
    assert (result.accuracy, result.l2) == (expected, (L2_VALUES[best],))
    assert result.dev_accuracy == round(100 * fits[best].accuracy[0, 0], 2)


def test_pairs_have_the_features_of_the_protocol():
    split = TASKS["MiniParaphrase"].read(MINI)["test"]
    u, v = bag_of_words(split.columns[0]).numpy(), bag_of_words(split.columns[1]).numpy()
    np.testing.assert_allclose(features(split, bag_of_words).numpy(), np.concatenate([abs(u - v), u * v], 1))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["TREC", "MRPC"])
def test_batched_equals_literal_on_real_data(name, shared):
    """In fast mode on small vectors; the benchmark compares test mode on large ones."""
    folder = shared / "data" / "senteval"
    try:
        batched, literal = (
            evaluate_transfer(TASKS[name], folder, bag_of_words, "fast", fit).accuracy
            for fit in (fit_batched, fit_literal)
        )
    except DataError as error:
        pytest.skip(str(error))
    assert batched == pytest.approx(literal, abs=0.2)
