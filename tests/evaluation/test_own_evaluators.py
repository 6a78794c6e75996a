"""Evaluators of sentence-transformers and of users in runs of this package."""

import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from conftest import build_tokenizer, build_transformer, make_sentences
from model_cases import build_model, build_static
from sentence_transformers import InputExample, SentenceTransformer
from sentence_transformers.base.evaluation import SentenceEvaluator
from sentence_transformers.sentence_transformer import evaluation
from torch.utils.data import DataLoader

import dystress_text as dt
from dystress_text.errors import ParameterError, TrainingError
from dystress_text.evaluation.evaluator_list import EvaluatorList
from dystress_text.finetuning import fine_tune as fine_tuning
from dystress_text.finetuning.measures import Measurements
from dystress_text.programs.report import main as report

ONE = make_sentences(12, seed=5)
TWO = make_sentences(12, seed=6)
BY_ID = {f"d{i}": text for i, text in enumerate(ONE)}
LABELS = [0, 1] * 6


class Head(torch.nn.Module):
    """A classifier of two classes that ignores the model."""

    def forward(self, features, labels):
        return None, features[0]["input_ids"][:, 1:3].float()


def label_accuracy(**name):
    examples = [InputExample(texts=[text], label=i % 2) for i, text in enumerate(ONE)]
    loader = DataLoader(examples, batch_size=4)
    return evaluation.LabelAccuracyEvaluator(loader, softmax_model=Head(), **name)


def retrieval(**name):
    queries = {"q0": ONE[0], "q1": ONE[1]}
    relevant = {"q0": {"d0", "d3"}, "q1": {"d1"}}
    return evaluation.InformationRetrievalEvaluator(queries, BY_ID, relevant, **name)


def translation(**name):
    return evaluation.TranslationEvaluator(ONE, TWO, **name)


def sequential(**name):
    return evaluation.SequentialEvaluator([translation(**name), retrieval()])


MAKE = {
    "binary": lambda **name: evaluation.BinaryClassificationEvaluator(ONE, TWO, LABELS, **name),
    "mse": lambda **name: evaluation.MSEEvaluator(
        ONE, TWO, teacher_model=build_model("bert"), **name
    ),
    "label_accuracy": label_accuracy,
    "sequential": sequential,
    "translation": translation,
}


@pytest.fixture
def train(tmp_path, text_file):
    """Return a function that trains a tiny model with an evaluator."""

    def run(evaluator, **options):
        torch.manual_seed(0)
        folder = tmp_path / "encoder"
        build_transformer("bert").save_pretrained(folder)
        build_tokenizer().save_pretrained(folder)
        defaults = {
            "preset": "small",
            "model_name_or_path": str(folder),
            "train_file": str(text_file),
            "output_dir": str(tmp_path / "out"),
            "pooler_type": "avg",
            "max_steps": 4,
            "eval_steps": 2,
            "train_batch_size": 8,
            "learning_rate": 1e-2,
            "mixed_precision": "no",
            "log_similarity": False,
        }
        return dt.train(evaluator=evaluator, **defaults | options)

    return run


def log_of(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("binary", "own"),
        ("mse", ""),
        ("label_accuracy", "own"),
        ("sequential", ""),
        ("translation", "own"),
        ("translation", "mean"),
    ],
)
def test_evaluators_of_sentence_transformers_choose_the_step(kind, name, train, tmp_path):
    """Also where the name is the beginning of the primary metric, ``mean_accuracy``."""
    theirs = MAKE[kind](name=name)
    run = train(theirs)
    expected = theirs(run.model)
    assert run.evaluation == pytest.approx(expected, abs=1e-4)
    chosen = run.record.settings["metric_for_best_model"]
    assert chosen.endswith(theirs.primary_metric)
    measured = {line["step"]: line[chosen] for line in log_of(tmp_path / "out") if chosen in line}
    assert set(measured) == {2, 4}
    assert measured[run.record.best_step] == max(measured.values())


class Scripted(SentenceEvaluator):
    """Return the results of a list, one a call; an error is raised."""

    def __init__(self, *results):
        super().__init__()
        self.results = list(results)

    def __call__(self, model, output_path=None, epoch=-1, steps=-1):
        result = self.results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result


NUMBERS = {
    "first": Fraction(3, 4),
    "numpy": np.float32(0.75),
    "array": np.array(0.75),
    "tensor": torch.tensor(0.75, dtype=torch.bfloat16),
    "bool": True,
    "numpy_bool": np.bool_(True),
}
OTHERS = {
    "step": 7,
    "loss": 0.5,
    "text": "0.5",
    "list": [0.5],
    "vector": torch.zeros(2),
    "nothing": None,
}


def test_any_number_is_a_figure():
    evaluators = EvaluatorList([], Scripted({**NUMBERS, "infinite": math.inf, **OTHERS}))
    figures = evaluators(build_static(small=True))
    assert figures == {name: 1 if "bool" in name else 0.75 for name in NUMBERS}
    assert [each.partition(" ")[0] for each in evaluators.ignored] == list(OTHERS)


def test_figures_before_and_after_training_are_shown(train, tmp_path, capsys):
    """The evaluator has no primary metric."""
    run = train(
        Scripted({"a": 0.25, "b": math.nan, "c": "text"}, {"a": 0.5, "step": 9}, {"a": 0.75})
    )
    assert run.record.compared == {"untrained": {"a": 0.25}, "trained": {"a": 0.75}}
    assert run.record.settings["metric_for_best_model"] == "a"
    assert "<td>0.25</td><td>0.75</td>" in (tmp_path / "out" / "report.html").read_text()
    assert "c (str)" in capsys.readouterr().out
    assert [line["step"] for line in log_of(tmp_path / "out")] == [2, 2, 4, 4]
    assert report([str(tmp_path / "out")]) == 0


OURS = ("mini_sts_spearman", "mini_sts_alignment", "pairs_recall@1")  # that of held-out rows


@pytest.mark.parametrize("name", OURS)
def test_a_name_of_our_metrics_is_refused(name, train, tmp_path):
    with pytest.raises(ParameterError, match=rf"^evaluator: [^\n]*{name}"):
        train(Scripted({"a": 0.5, name: 0.5}), eval_set="mini_sts")
    assert not (tmp_path / "out").exists()


def test_a_primary_metric_names_a_number():
    evaluator = Scripted(torch.tensor(0.5))
    evaluator.primary_metric = "mine"
    assert EvaluatorList([], evaluator)(build_static(small=True)) == {"mine": 0.5}


def wrong_primary_metric():
    evaluator = Scripted({"a": 0.5})
    evaluator.primary_metric = "accuracy"
    return evaluator


def lower_is_better():
    evaluator = Scripted({"a": 0.5})
    evaluator.greater_is_better = False
    return evaluator


@pytest.mark.parametrize(
    "make",
    [
        lambda: Scripted(None),
        lambda: Scripted({"text": "good"}),
        lambda: Scripted(ValueError("none of my files is here")),
        wrong_primary_metric,
        lower_is_better,
        lambda: MAKE["sequential"](name="mean"),
    ],
)
def test_what_cannot_work_says_so_before_the_first_step(make, train, tmp_path):
    with pytest.raises(ParameterError, match=r"^[^\n]+$"):
        train(make())
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("result", [KeyError("accuracy"), {"b": 0.5}, {"a": math.nan}])
def test_the_model_is_there_though_its_evaluation_fails(result, train, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(TrainingError, match=rf"^[^\n]*{out}$"):
        train(Scripted({"a": 0.5}, result), eval_steps=0)
    before = SentenceTransformer(str(tmp_path / "encoder"), device="cpu").encode(ONE)
    after = SentenceTransformer(str(out), device="cpu").encode(ONE)
    assert abs(after - before).max() > 1e-3


@pytest.mark.parametrize(
    ("place", "name", "overwrite"),
    [
        (Measurements, "after_training", False),
        (fine_tuning, "finish_run", True),
        (fine_tuning, "write_card", False),
        (fine_tuning, "leave_report", False),
        (fine_tuning, "_upload", False),
    ],
)
def test_the_model_is_there_whatever_fails(place, name, overwrite, train, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    out = tmp_path / "out"
    if overwrite:
        train(Scripted(*[{"a": 0.5}] * 3), max_steps=2)
    monkeypatch.setattr(place, name, full)
    with pytest.raises(TrainingError, match=rf"^[^\n]*No space left[^\n]*{out}$"):
        train(Scripted(*[{"a": 0.5}] * 3), overwrite_output_dir=overwrite)
    assert SentenceTransformer(str(out), device="cpu").encode(ONE).shape == (12, 16)
