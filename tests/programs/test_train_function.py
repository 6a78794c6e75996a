"""``dystress_text.train`` is the command line as a function, and leaves nothing behind."""

import contextlib
import gc
import importlib
import io
import logging
import os
import random
import re
import signal
import sys
import tempfile
import warnings
from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
import transformers
from accelerate.state import AcceleratorState, GradientState, PartialState
from conftest import make_sentences
from sentence_transformers.base.evaluation import SentenceEvaluator
from trainer_cases import outcome

import dystress_text
from dystress_text.errors import Interrupted, ParameterError, UserError
from dystress_text.losses import InfoNCELoss
from dystress_text.programs.train import main
from dystress_text.programs.train import train as train_function
from dystress_text.training.trainer import Trainer


def state():
    """What a run may change of its process."""
    names = (None, "accelerate", "accelerate.utils.other", "torch")
    shared = (PartialState, AcceleratorState, GradientState)
    return {
        "accelerate": [dict(each._shared_state) for each in shared],
        "environment": dict(os.environ),
        "matplotlib": [matplotlib.get_backend(), dict(matplotlib.rcParams)],
        "warnings": warnings.formatwarning,
        "stdout": getattr(sys.stdout, "errors", None),
        "python": random.getstate(),
        "numpy": str(np.random.get_state()),
        "torch": torch.get_rng_state().tolist(),
        "deterministic": torch.get_deterministic_debug_mode(),
        "precision": torch.get_float32_matmul_precision(),
        "type": torch.get_default_dtype(),
        "gradients": torch.is_grad_enabled(),
        "benchmark": torch.backends.cudnn.benchmark,
        "levels": [logging.getLogger(name).level for name in names],
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
        "max_steps": 2,
        "mixed_precision": "no",
    }


@pytest.fixture
def command(options, tmp_path):
    """The same options on the command line, into the folder ``line``."""
    return [
        *(f"--{name}={value}" for name, value in options.items()),
        f"--output_dir={tmp_path}/line",
    ]


def test_it_is_the_run_of_the_command_line(options, command, tmp_path):
    assert main([*command, "--loss=infonce(0.05)"]) == 0
    run = dystress_text.train(**options, loss=InfoNCELoss(0.05), output_dir=tmp_path / "function")
    assert outcome(tmp_path / "line") == outcome(run.folder)
    assert run.evaluation == run.record.trained
    assert run.model.encode(make_sentences(3)).shape == (3, 16)


def test_paths_may_begin_with_the_home_folder(options, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ("model_name_or_path", "train_file", "data_dir"):
        target = options[name]
        (tmp_path / name).symlink_to(target)
        options[name] = f"~/{name}"
    run = dystress_text.train(**options, output_dir=Path("~/out"))
    assert run.folder == tmp_path / "out"
    figures = dystress_text.evaluate("~/out", suite="mini", tasks="sts", output="~/own.jsonl")
    assert {str(run.folder), "lexical"} == figures.keys()
    assert (tmp_path / "own.jsonl").is_file()
    audited = dystress_text.audit("~/out", make_sentences(4), "infonce(0.05)", batch_size=4)
    assert audited.negatives == 12
    assert not (tmp_path / "~").exists()


def test_it_trains_in_any_mode_of_the_caller(options, tmp_path):
    options["loss"] = "infonce(learned(0.05))"
    expected = dystress_text.train(**options, output_dir=tmp_path / "out")
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            run = dystress_text.train(**options, output_dir=tmp_path / mode.__name__)
            assert not torch.is_grad_enabled()
        assert outcome(run.folder) == outcome(expected.folder)


@pytest.mark.parametrize(
    ("place", "module"), [("prepare_data", np), ("Trainer._step", torch), ("write_card", torch)]
)
def test_too_little_memory_is_one_line(place, module, command, monkeypatch, capsys):
    monkeypatch.setattr(
        f"dystress_text.finetuning.fine_tune.{place}", lambda *_: module.empty(10**15)
    )
    assert main(command) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("dystress train: error: ")
    assert "memory" in last


def changed_since(before):
    after = state()
    return [name for name in before if before[name] != after[name]]


def test_the_process_is_as_before(options, tmp_path):
    """Twice in one process, too, and with another precision."""
    before = state()
    options |= {"eval_set": "none"}
    other = {"deterministic": True, "mixed_precision": "bf16"}
    dystress_text.train(**options | other, output_dir=tmp_path / "out")
    dystress_text.train(**options, output_dir=tmp_path / "again")
    assert changed_since(before) == []


def refused(*_):
    raise UserError("no")


def ctrl_c(*_):
    raise KeyboardInterrupt


def signalled(*_):
    signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize(
    ("place", "ends", "error"),
    [
        ("finetuning.fine_tune.prepare_data", refused, UserError),
        ("training.trainer.Trainer._step", ctrl_c, KeyboardInterrupt),
        ("training.trainer.Trainer._step", signalled, Interrupted),
    ],
)
def test_the_process_is_as_before_a_run_that_ends_early(
    place, ends, error, options, tmp_path, monkeypatch
):
    before = state()
    monkeypatch.setattr(f"dystress_text.{place}", ends)
    with pytest.raises(error):
        dystress_text.train(**options, eval_set="none", output_dir=tmp_path / "out")
    assert changed_since(before) == []


def test_ctrl_c_ends_a_loop_that_suppresses_exceptions(options, tmp_path, monkeypatch):
    monkeypatch.setattr(Trainer, "_step", signalled)
    with pytest.raises(KeyboardInterrupt), contextlib.suppress(Exception):
        dystress_text.train(**options, output_dir=tmp_path)


def test_all_unknown_options_are_named(tmp_path):
    with pytest.raises(ParameterError, match=r"do_train, .*outputdir.*output_dir") as told:
        dystress_text.train(do_train=True, outputdir=tmp_path)
    assert "mlp" not in str(told.value)


def test_a_temporary_folder_goes_with_the_run(options, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    run = dystress_text.train(**options, output_dir=None)
    assert run.folder.parent == tmp_path
    assert run.model.encode(make_sentences(3)).shape == (3, 16)
    del run
    gc.collect()
    with pytest.raises(ParameterError):
        dystress_text.train(**options | {"pooler_type": "none"}, output_dir=None)
    assert list(tmp_path.iterdir()) == []


def test_errors_name_options_as_keywords(options, tmp_path):
    dystress_text.train(**options, output_dir=tmp_path)
    with pytest.raises(ParameterError, match=r"`overwrite_output_dir` or `resume_") as told:
        dystress_text.train(**options, output_dir=tmp_path)
    assert "--" not in str(told.value)
    with pytest.raises(ParameterError, match=r"^data_dir") as told:
        dystress_text.evaluate(tmp_path, data_dir=tmp_path)
    assert "--" not in str(told.value)


def test_what_is_printed_has_no_options_of_the_command_line(options, tmp_path, capsys):
    """With a cut of most texts, a run that had finished, and results that are not saved."""
    options |= {"max_seq_length": 5, "output_dir": tmp_path}
    dystress_text.train(**options)
    run = dystress_text.train(**options, resume_from_checkpoint=True)
    dystress_text.evaluate(run.model, suite="mini", tasks="sts")
    printed = capsys.readouterr().out
    assert "max_seq_length" in printed
    assert "overwrite_output_dir" in printed
    assert re.findall(r"(?<![\w-])--\w+", printed) == []


@pytest.mark.parametrize("title", ["title", "subject"])
def test_the_card_names_the_views_of_a_table(options, tmp_path, title):
    rows = [f"{title},text"]
    rows += [f"{sentence[:10]},{sentence}" for sentence in make_sentences(40)]
    options["train_file"] = tmp_path / "table.csv"
    options["train_file"].write_text("\n".join(rows))
    run = dystress_text.train(**options, views="crop", output_dir=tmp_path / "out")
    (views,) = re.findall(r"\| views \| (.*) \|", (run.folder / "README.md").read_text())
    assert views.startswith("two crops of a sample")
    assert ("title" in views) == (title == "title")


def test_a_run_that_goes_on_from_a_trained_model(options, tmp_path, capsys):
    old = tmp_path / "old"
    dystress_text.train(**options, output_dir=old)
    with pytest.raises(ParameterError, match=r"model_name_or_path` .*old.* `output_dir`"):
        dystress_text.train(
            **options | {"max_steps": 4}, output_dir=old, resume_from_checkpoint=True
        )
    options |= {"model_name_or_path": old}
    run = dystress_text.train(**options, output_dir=tmp_path / "new")
    assert "old" in capsys.readouterr().out
    assert "untrained" in (old / "README.md").read_text()
    written = [(run.folder / name).read_text() for name in ("README.md", "report.html")]
    for text in (repr(run), *written):
        assert "old" in text
        assert "untrained" not in text


def test_output_in_ascii(options, tmp_path, monkeypatch):
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii"))
    del options["train_file"]
    texts = [f"{sentence} 猫" for sentence in make_sentences(40)]
    dystress_text.train(**options, texts=texts, output_dir=tmp_path / "out", eval_set="none")
    sys.stdout.flush()
    assert rb"\u732b" in written.getvalue()
    assert sys.stdout.errors == "strict"


@pytest.mark.parametrize("evaluator", [[], lambda model: {"x": 1.0}, SentenceEvaluator])
def test_what_is_no_evaluator_is_refused_before_anything_starts(evaluator, options, tmp_path):
    with pytest.raises(ParameterError, match=r"^evaluator: "):
        dystress_text.train(**options, evaluator=evaluator, output_dir=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_import_of_the_module_for_launchers_leaves_the_function():
    with pytest.raises(ImportError, match="the function"):
        importlib.import_module("dystress_text.train")
    assert dystress_text.train is train_function


def test_the_package_logger_silences_functions(options, tmp_path, capsys):
    logger = logging.getLogger("dystress_text")
    logger.setLevel(logging.WARNING)
    run = dystress_text.train(**options, output_dir=tmp_path)
    dystress_text.evaluate(run.model, suite="mini", tasks="sts")
    assert "".join(capsys.readouterr()) == ""
    logger.setLevel(logging.INFO)
    dystress_text.evaluate(run.model, suite="mini", tasks="sts")
    assert "MiniSTS" in capsys.readouterr().out
