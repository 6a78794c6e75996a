"""Checkpoints: resume exactly, reject another run, and never run code from a file."""

import io
import json
import math
import pickle
import random
import shutil
from itertools import product

import pytest
import torch
from conftest import reset_accelerator
from fuzz_cases import Harm
from trainer_cases import change_loss, equal, log_of, make_task, run, scaled, weights

from dystress_text.errors import ParameterError, TrainingError
from dystress_text.losses import InfoNCELoss, LearnableTemperature
from dystress_text.training.run_folder import checkpoint_folders


def test_resumed_run_equals_an_uninterrupted_one(tmp_path, corpus):
    """With dropout, across the end of an epoch, and with the log of similarities."""
    options = {"max_steps": 30, "save_steps": 4, "logging_steps": 1, "log_similarity": True}
    whole = make_task(corpus, dropout=0.1)
    run(whole, tmp_path / "whole", **options)
    broken = make_task(corpus, dropout=0.1)
    change_loss(broken, 27, lambda loss, _: loss * math.nan)  # in the second epoch
    with pytest.raises(TrainingError):
        run(broken, tmp_path / "broken", **options)
    make_task(corpus, dropout=0.5)  # other weights and random state than at the interruption
    resumed = make_task(corpus, dropout=0.1)
    run(resumed, tmp_path / "broken", resume_from_checkpoint="yes", **options)
    assert equal(weights(whole), weights(resumed))
    logs = [tmp_path / name / "similarity.jsonl" for name in ("whole", "broken")]
    assert logs[0].read_bytes() == logs[1].read_bytes()
    for key in ("loss", "learning_rate"):
        assert log_of(tmp_path / "broken", key) == log_of(tmp_path / "whole", key)


def test_fp16_scale_is_restored(tmp_path, corpus):
    """A scale that overflows at first, in torch's fp16 of a CPU, which accelerate refuses."""
    options = {"max_steps": 12, "save_steps": 5, "backoff": 0.05, "logging_steps": 1}
    whole = scaled(corpus, tmp_path / "whole", 2.0**36, **options)
    scaled(corpus, tmp_path / "broken", 2.0**36, **options)
    shutil.rmtree(tmp_path / "broken" / "checkpoint-10")
    again = scaled(corpus, tmp_path / "broken", 2.0**10, **options, resume_from_checkpoint="yes")
    assert again.skipped_steps == whole.skipped_steps > 0
    assert log_of(tmp_path / "broken", "loss") == log_of(tmp_path / "whole", "loss")


def test_keeps_the_newest_checkpoints(tmp_path, corpus):
    for name in ("4", "9", "100", "20", "mine"):
        folder = tmp_path / f"checkpoint-{name}"
        folder.mkdir()
        (folder / "left by another run").touch()
    run(make_task(corpus), tmp_path, save_steps=4)
    kept = sorted(path.name for path in tmp_path.glob("checkpoint-*"))
    assert kept == ["checkpoint-100", "checkpoint-20", "checkpoint-mine"]


@pytest.fixture
def resumed(corpus, tmp_path):
    """The newest checkpoint of an interrupted run, and a function that resumes it."""
    options = {"max_steps": 3, "save_steps": 1, "gradient_accumulation_steps": 2}
    run(make_task(corpus), tmp_path / "out", **options)
    options["resume_from_checkpoint"] = "yes"

    def resume(**more):
        run(make_task(corpus), tmp_path / "out", **options | more)

    return checkpoint_folders(tmp_path / "out")[0], resume


def torch_bytes(value):
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def test_damaged_file_is_one_line_and_never_unpickled(resumed, tmp_path):
    """Replace each file by random bytes or by a harmful pickle, or remove it."""
    checkpoint, resume = resumed
    canary = tmp_path / "canary"
    harm = Harm(canary)
    pickle.loads(pickle.dumps(harm))  # it works
    canary.rmdir()
    harmful = torch_bytes({"state": {}, "param_groups": [harm], "torch_manual_seed": harm})
    states = "random_states_0.pkl"
    partial = torch.load(checkpoint / states, weights_only=False)
    del partial["random_state"]  # the first that accelerate would restore
    partial["torch_manual_seed"] = torch.Generator().manual_seed(1).get_state()
    names = [path.name for path in checkpoint.iterdir() if path.name != "scheduler.bin"]
    assert len(names) > 3
    cases = list(product(names, [random.Random(5).randbytes(300), harmful]))
    cases += [(names[0], pickle.dumps(harm)), (names[-1], None), (states, torch_bytes(partial))]
    cases += [("pytorch_model.bin", harmful), ("custom_checkpoint_0.pkl", harmful)]
    shutil.copytree(checkpoint, tmp_path / "copy")
    for name, content in cases:
        (checkpoint / name).unlink(missing_ok=True)
        if name == "pytorch_model.bin":
            (checkpoint / "model.safetensors").unlink()
        if content is not None:
            (checkpoint / name).write_bytes(content)
        with pytest.raises(ParameterError, match=r"^resume_from_checkpoint[^\n]*\Z"):
            resume()
        shutil.rmtree(checkpoint)
        shutil.copytree(tmp_path / "copy", checkpoint)
    assert not canary.exists()


def test_learned_temperature_is_restored(corpus, tmp_path):
    def train(**more):
        objective = InfoNCELoss(LearnableTemperature(0.05, learning_rate=0.05))
        task = make_task(corpus, objective=objective)
        state, _ = run(task, tmp_path, save_steps=3, **more)
        return state.learned

    assert train() == train(resume_from_checkpoint="yes")


def test_another_run_is_not_resumed(resumed, monkeypatch):
    checkpoint, resume = resumed
    file = checkpoint / "training_state.json"
    content = json.loads(file.read_text())
    other = {"device": "cuda", "number of processes": 2, "training data": "other"}
    content["identity"] |= other
    file.write_text(json.dumps(content))
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    reset_accelerator()
    changed = "seed.*precision was no, is bf16.*device.*number of processes.*training data"
    with pytest.raises(ParameterError, match=changed):
        resume(seed=43, mixed_precision="auto")


def test_resuming_shortens_the_logs(resumed):
    checkpoint, resume = resumed
    shutil.rmtree(checkpoint)
    log = checkpoint.parent / "metrics.jsonl"
    with log.open("ab") as file:
        file.writelines([b"\xff\xfe\n", b"[1]\n", b'{"step": 9}\n', b'{"step": 2, "lo'])
    resume(logging_steps=1)  # has no effect on the result
    steps = [json.loads(line)["step"] for line in log.read_text().splitlines()]
    assert steps == [2, 3]
