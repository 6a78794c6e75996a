"""The batched classifiers against those of SimCSE's copy of ``senteval``, if it is installed."""

import inspect
import shutil

import pytest
import torch
from test_transfer import MINI, TASKS, bag_of_words

from dystress_text.evaluation.classifier import RECIPES, SEED
from dystress_text.evaluation.transfer import evaluate_transfer

NAMES = {"MiniSubjectivity": "SUBJ", "MiniQuestions": "TREC", "MiniParaphrase": "MRPC"}


@pytest.fixture
def engine(monkeypatch):
    """Return the package's engine, for today's Python and the CPU."""
    engine = pytest.importorskip("senteval.engine", reason="SimCSE's SentEval is not installed")
    from senteval.tools.classifier import PyTorchClassifier

    def on_the_cpu(self, *data, **options):
        self.cudaEfficient = True
        return prepare_split(self, *data, **options)

    prepare_split = PyTorchClassifier.prepare_split
    monkeypatch.setattr(PyTorchClassifier, "prepare_split", on_the_cpu)
    monkeypatch.setattr(
        inspect, "getargspec", inspect.getfullargspec, raising=False
    )  # removed in Python 3.11
    for kind in (torch.Tensor, torch.nn.Module):
        monkeypatch.setattr(kind, "cuda", lambda self: self)
    return engine


@pytest.mark.slow(60)
@pytest.mark.parametrize("mode", ["test", "fast"])
@pytest.mark.parametrize(("ours", "theirs"), NAMES.items())
def test_figures_equal_the_package(engine, tmp_path, ours, theirs, mode):
    task = TASKS[ours]
    recipe = RECIPES[mode]
    for own, published in zip(task.files, TASKS[theirs].files, strict=True):
        file = tmp_path / "downstream" / published
        file.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(MINI / own, file)
    classifier = {
        "nhid": 0,
        "optim": recipe.optimizer,
        "batch_size": recipe.batch_size,
        "tenacity": recipe.patience,
        "epoch_size": recipe.check_every,
    }
    parameters = {
        "task_path": str(tmp_path),
        "kfold": recipe.folds,
        "seed": SEED,
        "classifier": classifier,
    }

    def batcher(_, batch):
        return bag_of_words([" ".join(words) for words in batch]).numpy()

    expected = engine.SE(parameters, batcher).eval(theirs)
    result = evaluate_transfer(task.classes, task.read(MINI), bag_of_words, mode)
    assert result == {"accuracy": expected["acc"], "dev_accuracy": expected["devacc"]}
