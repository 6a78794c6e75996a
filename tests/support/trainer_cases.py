"""Short training runs for tests."""

from __future__ import annotations

import json
from contextlib import contextmanager

import pytest
import torch
from conftest import reset_accelerator, set_dropout
from model_cases import build_model

from dystress_text.finetuning.initial_model import TextModel, new_head
from dystress_text.finetuning.task import TextTask
from dystress_text.losses import InfoNCELoss, ShiftedCosineTemperature
from dystress_text.models.model_with_heads import ModelWithHeads
from dystress_text.programs.train import main
from dystress_text.training.accelerator import make_accelerator
from dystress_text.training.run_record import RunRecord
from dystress_text.training.settings import TrainingSettings
from dystress_text.training.task import TrainingPlan
from dystress_text.training.trainer import Trainer


class ScriptedTask(TextTask):
    """A task with given scores that counts how often it is saved."""

    scores = iter(())
    saved = 0

    def evaluate(self):
        return dict(zip(["score"], self.scores, strict=False))

    def save(self, folder):
        self.saved += 1


SHIFTED = ShiftedCosineTemperature(0.05, 0.07, shift=-0.4)


def make_task(corpus, dropout=0.0, objective=None):
    torch.manual_seed(1)
    model = build_model("bert", "cls")
    transformer = model[0].model
    set_dropout(transformer, dropout)
    transformer.config.attention_probs_dropout_prob = dropout
    head = new_head(transformer)
    initial = TextModel(ModelWithHeads(model, head), model, model, "cls", [])
    return ScriptedTask(initial, corpus, objective or InfoNCELoss(SHIFTED))


def run(task, folder, scaler=None, **options):
    """Train for six steps, unless options say otherwise; return the final state and the trainer.

    A scaler trains in fp16, which accelerate refuses on a CPU.
    """
    folder.mkdir(parents=True, exist_ok=True)
    defaults = {"train_batch_size": 8, "learning_rate": 1e-2, "mixed_precision": "no"}
    defaults |= {"max_steps": 6, "eval_steps": 0}
    settings = TrainingSettings(output_dir=str(folder), **defaults | options)
    accelerator = make_accelerator(settings)
    if scaler is not None:
        accelerator.native_amp = True
        accelerator.state._mixed_precision = "fp16"
        accelerator.scaler = scaler
    record = RunRecord(settings=vars(settings))
    plan = TrainingPlan(task=task, samples=len(task.corpus), record=record)
    trainer = Trainer(plan, settings, accelerator)
    return trainer.fit(), trainer


def scaled(corpus, folder, scale, backoff=0.5, **options):
    """Train in fp16 with a given loss scale, and return the final state."""
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=scale, backoff_factor=backoff, growth_interval=10**6
    )
    state, _ = run(make_task(corpus), folder, scaler=scaler, learning_rate=1e-3, **options)
    reset_accelerator()
    return state


def change_loss(task, number, change):
    """Let ``change(loss, embeddings)`` be the loss of one batch, counted from 1."""
    inner = task.loss
    calls = []

    def loss(embeddings):
        calls.append(embeddings)
        value = inner(embeddings)
        return change(value, embeddings) if len(calls) == number else value

    task.loss = loss


def weights(task):
    return {name: tensor.clone() for name, tensor in task.model.state_dict().items()}


def log_of(folder, key):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line[key] for line in lines if key in line]


def equal(a, b):
    """Compare the :func:`weights` of two models bit by bit."""
    return all(torch.equal(a[name], b[name]) for name in a)


@contextmanager
def before_step(number, act):
    """In this context, call ``act`` before a step of a run; its first step here is 1."""
    steps = []
    step = Trainer._step

    def acting(self, batches):
        steps.append(self)
        if len(steps) == number:
            act()
        step(self, batches)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_step", acting)
        yield


def kill_before(number, arguments):
    """Start the training program, and kill it before a step."""

    def kill():
        raise KeyboardInterrupt

    with before_step(number, kill):
        assert main(arguments) == 130


def interrupt(folder):
    """Turn a finished run into one that was killed after its last checkpoint."""
    record = json.loads((folder / "run.json").read_text())
    assert record.pop("state") == "finished"
    (folder / "run.json").write_text(json.dumps(record | {"state": "interrupted"}))


def outcome(folder):
    """Return the model's bytes, and the log and the record without timings."""
    log = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    record = json.loads((folder / "run.json").read_text())
    for line in log:
        line.pop("samples_per_second", None)
    names = ("untrained", "trained", "best_step", "steps", "skipped_steps")
    return (folder / "model.safetensors").read_bytes(), log, [record[name] for name in names]


def logged(out):
    log = out / "metrics.jsonl"
    return len(log.read_text().splitlines()) if log.exists() else 0
