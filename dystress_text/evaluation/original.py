"""A cross-check with the ``senteval`` package, if it is installed and runs (SimCSE's copy is the one to install)."""

from __future__ import annotations

import importlib
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dystress_text.errors import ParameterError
from dystress_text.evaluation.catalogue import SENTEVAL_NAMES, Task
from dystress_text.evaluation.classifier import RECIPES, SEED
from dystress_text.evaluation.sts import Embed
from dystress_text.files.places import PACKAGE

NAMES = {ours: theirs for theirs, ours in SENTEVAL_NAMES.items()}  # the package's names, where they differ


def import_senteval() -> ModuleType:
    """The installed package, not one of our programs of that name, whose folders are taken from the path."""
    ours = (PACKAGE, PACKAGE.parent / "eval")
    sys.path[:] = [entry for entry in sys.path if Path(entry or ".").resolve() not in ours]
    try:
        return importlib.import_module("senteval")
    except ImportError as error:
        raise ParameterError("engine", f"the package senteval is not importable here: {error}") from error


def run_original(task: Task, folder: Path, embed: Embed, mode: str) -> float:
    """A task's figure in the published tables, by the package; its files were checked."""
    task.read(folder)
    senteval = import_senteval()
    recipe = RECIPES[mode]
    classifier = {
        "nhid": 0, "optim": recipe.optimizer, "batch_size": recipe.batch_size, "tenacity": recipe.patience,
        "epoch_size": recipe.check_every,
    }  # fmt: skip

    def batcher(_: Any, batch: list[list[str]]) -> NDArray[np.float32]:
        vectors: NDArray[np.float32] = embed([" ".join(words) for words in batch]).numpy()
        return vectors

    with tempfile.TemporaryDirectory() as root:
        (Path(root) / "downstream").symlink_to(folder.resolve())
        parameters = {"task_path": root, "usepytorch": True, "kfold": recipe.folds, "seed": SEED}
        try:
            engine = senteval.engine.SE({**parameters, "classifier": classifier}, batcher)
            return _figure(task.name, engine.eval(NAMES.get(task.name, task.name)))
        except Exception as error:  # an unmaintained package may raise anything
            raise ParameterError("engine", f"senteval failed on {task.name}: {error!r}") from error


def _figure(task: str, result: dict[str, Any]) -> float:
    if task in NAMES:
        spearman = result["test"]["spearman"]
        return round(100 * float(getattr(spearman, "correlation", spearman)), 2)
    if task.startswith("STS"):
        return round(100 * float(result["all"]["spearman"]["all"]), 2)
    return round(float(result["acc"]), 2)
