"""``dystress_text.train`` is the command line as a function: the same run, the same errors, and
nothing left behind.
"""

import importlib
import json
import logging
import random
import signal
import sys
import warnings

import numpy as np
import pytest
import torch
import transformers
from conftest import make_sentences
from trainer_cases import outcome

import dystress_text
from dystress_text.errors import Interrupted, UserError
from dystress_text.losses import InfoNCELoss
from dystress_text.programs.train import main
from dystress_text.programs.train import train as train_function
from dystress_text.training.trainer import Trainer


def state():
    """What a run may change of its process."""
    loggers = [
        logging.getLogger(),
        *(logging.getLogger(n) for n in ("accelerate", "accelerate.utils.other", "torch")),
    ]
    return {
        "warnings": warnings.formatwarning,
        "stdout": getattr(sys.stdout, "errors", None),
        "python": random.getstate(),
        "numpy": str(np.random.get_state()),
        "torch": torch.get_rng_state().tolist(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "benchmark": torch.backends.cudnn.benchmark,
        "levels": [logger.level for logger in loggers],
        "verbosity": transformers.logging.get_verbosity(),
        "signals": [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)],
        "path": sys.path.copy(),
    }


@pytest.fixture
def options(tiny_bert, text_file, data_dir):
    return {
        "model_name_or_path": tiny_bert,
        "train_file": text_file,
        "data_dir": data_dir,
        "train_batch_size": 8,
    }


def test_it_is_the_run_of_the_command_line(tmp_path, text_file):
    words = [
        "--preset=quickstart",
        "--loss=infonce(0.05)",
        "--max_steps=2",
        f"--train_file={text_file}",
    ]
    assert main([*words, f"--output_dir={tmp_path / 'line'}"]) == 0
    given = {
        "preset": "quickstart",
        "loss": InfoNCELoss(0.05),
        "max_steps": 2,
        "train_file": text_file,
    }
    run = dystress_text.train(**given, output_dir=tmp_path / "function")
    assert outcome(tmp_path / "line") == outcome(run.folder)
    line, function = (
        json.loads((tmp_path / name / "run.json").read_text()) for name in ("line", "function")
    )
    assert function == run.record
    assert function["settings"] == line["settings"] | {"output_dir": str(run.folder)}
    assert run.evaluation == line["trained"]
    assert run.model.encode(make_sentences(3)).shape == (
        3,
        run.model.get_sentence_embedding_dimension(),
    )


def ctrl_c(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("ends", "given", "stopped"),
    [
        (None, {"deterministic": True, "eval_set": ["stsb_dev"], "mixed_precision": "bf16"}, None),
        (UserError, {"pooler_type": "none"}, None),
        (KeyboardInterrupt, {}, ctrl_c),
        (Interrupted, {}, lambda *_: signal.raise_signal(signal.SIGINT)),
    ],
)
def test_the_process_is_as_before(ends, given, stopped, options, tmp_path, monkeypatch):
    """Twice in one process, too, and with another precision."""
    before = state()
    options |= {"eval_set": "none", "max_steps": 2, "mixed_precision": "no"}
    if ends is None:
        dystress_text.train(**options | given, output_dir=tmp_path / "out")
        dystress_text.train(**options, output_dir=tmp_path / "again")
    else:
        if stopped:
            monkeypatch.setattr(Trainer, "_step", stopped)
        with pytest.raises(ends):
            dystress_text.train(**options | given, output_dir=tmp_path / "out")
    after = state()
    assert [name for name in before if before[name] != after[name]] == []


def test_an_import_of_the_module_for_launchers_leaves_the_function():
    with pytest.raises(ImportError, match="the function"):
        importlib.import_module("dystress_text.train")
    assert dystress_text.train is train_function
