"""The training loop against plain loops, and what it promises: order, seeds, best model, resume, a
clear stop.
"""

import copy
import json
import math

import numpy as np
import pytest
import torch
from conftest import reset_accelerator
from torch.nn.utils import parameters_to_vector
from trainer_cases import SHIFTED, equal, log_of, make_task, run, weights

from dystress_text.analysis.runs import FinishedRun
from dystress_text.errors import TrainingError, UserError
from dystress_text.losses import (
    CosineTemperature,
    HCLReweighting,
    InfoNCELoss,
    LearnableTemperature,
    ScheduledTemperature,
)
from dystress_text.programs.train import main
from dystress_text.training import similarity_log
from dystress_text.training.accelerator import resolve_precision
from dystress_text.training.batches import BatchOrder
from dystress_text.training.run_folder import checkpoint_folders
from dystress_text.training.run_record import RunRecord
from dystress_text.training.settings import TrainingSettings


def test_impossible_batches_name_the_option(tmp_path, corpus):
    with pytest.raises(UserError, match=r"^train_batch_size: must lie in \[2, inf"):
        TrainingSettings(train_batch_size=1)
    with pytest.raises(UserError, match="gradient_accumulation_steps: 26 batches"):
        run(make_task(corpus), corpus, tmp_path, gradient_accumulation_steps=26)


@pytest.mark.parametrize(
    ("accumulation", "schedule"), [(1, "cosine"), (3, "linear"), (1, "constant")]
)
def test_losses_and_weights_equal_a_plain_loop(tmp_path, corpus, accumulation, schedule):
    task = make_task(corpus)
    plain, untouched = copy.deepcopy(task.model), copy.deepcopy(task.model)
    options = {
        "gradient_accumulation_steps": accumulation,
        "lr_scheduler_type": schedule,
        "weight_decay": 0.1,
    }
    options |= {
        "logging_steps": 1,
        "warmup_ratio": 0.3,
        "max_grad_norm": 0.5,
        "learning_rate": 1e-3,
    }
    run(task, corpus, tmp_path, **options)

    decayed = [p for p in plain.parameters() if p.requires_grad and p.ndim > 1]
    others = [p for p in plain.parameters() if p.requires_grad and p.ndim <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0}]
    )
    batches = BatchOrder(len(corpus), 8, 42).epoch(0)
    losses = []
    for step in range(6):
        warm = math.ceil(0.3 * 6)
        through = (step - warm) / (6 - warm)
        fall = {
            "linear": 1 - through,
            "cosine": 0.5 * (1 + math.cos(math.pi * through)),
            "constant": 1.0,
        }[schedule]
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * (step / warm if step < warm else fall)
        optimizer.zero_grad()
        total = 0.0
        for indices in batches[step * accumulation : (step + 1) * accumulation]:
            batch = corpus.batch(indices)
            z1, z2 = (torch.nn.functional.normalize(plain(**batch), dim=-1) for _ in range(2))
            s = z1 @ z2.T
            loss = torch.nn.functional.cross_entropy(s / SHIFTED(s.detach()), torch.arange(8))
            (loss / accumulation).backward()
            total += loss.item() / accumulation
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        optimizer.step()
        losses.append(total)
    assert log_of(tmp_path, "loss") == pytest.approx(losses, rel=1e-4)
    reached, expected, start = (
        parameters_to_vector(model.parameters()) for model in (task.model, plain, untouched)
    )
    assert (reached - expected).norm() < 0.01 * (start - expected).norm()


def test_the_schedule_of_a_temperature_advances_in_epochs(tmp_path, corpus):
    temperature = ScheduledTemperature(0.1, 1.0, half_period=2)
    run(make_task(corpus, objective=InfoNCELoss(temperature)), corpus, tmp_path, max_steps=30)
    assert float(temperature.time) == pytest.approx(
        29 / 25
    )  # 200 sentences in batches of 8: 25 steps an epoch


def test_one_seed_one_result_and_evaluation_does_not_disturb_it(tmp_path, corpus):
    results = []
    for i, (seed, eval_steps) in enumerate([(1, 0), (1, 0), (1, 2), (2, 0)]):
        task = make_task(corpus, dropout=0.1)
        run(task, corpus, tmp_path / str(i), seed=seed, eval_steps=eval_steps)
        results.append(weights(task))
    assert equal(results[0], results[1])
    assert equal(results[0], results[2])
    assert not equal(results[0], results[3])


def test_the_best_model_is_kept(tmp_path, corpus):
    task = make_task(corpus)
    task.scores = iter([1.0, 3.0, float("nan"), 2.0, 3.0, 2.5])
    summary, _ = run(task, corpus, tmp_path, eval_steps=1, metric_for_best_model="score")
    assert task.saved == 2
    assert (summary.best_step, summary.metrics) == (2, {"score": 3.0})
    assert log_of(tmp_path, "score")[:3] == [1.0, 3.0, None]  # other programs read no NaN
    task.scores = iter([float("nan")] * 6)
    with pytest.raises(TrainingError, match="score is nan at step 2"):
        run(task, corpus, tmp_path / "nan", eval_steps=2, metric_for_best_model="score")


def test_bf16_trains_with_fp32_weights_and_loss(tmp_path, corpus):
    task = make_task(corpus)
    seen = []
    inner = task.loss
    task.loss = lambda z: seen.append((z.views[0].dtype, inner(z).dtype)) or inner(z)
    _, trainer = run(
        task, corpus, tmp_path, mixed_precision="bf16", logging_steps=1, learning_rate=1e-3
    )
    assert trainer.accelerator.mixed_precision == "bf16"
    assert {dtype for _, dtype in seen} == {torch.float32}
    assert {p.dtype for p in task.model.parameters()} == {torch.float32}
    reset_accelerator()
    exact = make_task(corpus)
    run(exact, corpus, tmp_path / "fp32", logging_steps=1, learning_rate=1e-3)
    difference = np.subtract(log_of(tmp_path, "loss"), log_of(tmp_path / "fp32", "loss"))
    assert 0 < np.abs(difference).max() < 0.2  # bf16 is at work, and close


@pytest.mark.parametrize(("launcher", "expected"), [("no", "fp16"), ("bf16", "bf16")])
def test_auto_fp16_is_fp16_on_cuda_unless_the_launcher_says_otherwise(
    launcher, expected, monkeypatch
):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", launcher)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_precision("auto_fp16") == expected
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert resolve_precision("auto_fp16") == resolve_precision("auto")


@pytest.mark.parametrize("gradient", [False, True])
def test_a_loss_or_a_gradient_that_is_no_number_stops_the_run(gradient, tmp_path, corpus):
    task = make_task(corpus)
    inner, calls = task.loss, []

    def loss(z):
        calls.append(1)
        found = inner(z) * (float("nan") if not gradient and len(calls) == 10 else 1.0)
        rooted = (
            torch.sqrt(0 * z.views[0].sum()) if gradient and len(calls) == 10 else 0
        )  # an infinite slope
        return found + rooted

    task.loss = loss
    options = {
        "gradient_accumulation_steps": 2,
        "logging_steps": 3,
        "learning_rate": 1e-3,
        "max_steps": 20,
    }
    what = "the gradient's norm" if gradient else "the loss"
    place = r"step 5 of 20 \(epoch 0, batch 4, learning rate 0\.0008\)"
    told = rf"{what} is nan at {place}; lower --learning_rate"
    with pytest.raises(TrainingError, match=told):
        run(task, corpus, tmp_path, **options)
    assert task.saved == 0
    assert checkpoint_folders(tmp_path) == []  # nothing goes on from there


def scaled(corpus, folder, scale, backoff=0.5, **options):
    """A run in fp16 at a scale of one's own."""
    scaler = torch.amp.GradScaler(
        "cpu", init_scale=scale, backoff_factor=backoff, growth_interval=10**6
    )
    state, _ = run(make_task(corpus), corpus, folder, scaler=scaler, learning_rate=1e-3, **options)
    reset_accelerator()
    return state


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_steps_that_overflow_in_fp16_are_skipped_and_counted(clip, tmp_path, corpus):
    options = {"max_steps": 12, "logging_steps": 4, "max_grad_norm": clip}
    assert scaled(corpus, tmp_path / "calm", 2.0**6, **options).skipped_steps == 0
    wild = scaled(corpus, tmp_path / "wild", 2.0**36, backoff=0.05, **options)
    assert 4 <= wild.skipped_steps < 11
    losses = log_of(tmp_path / "wild", "loss")
    assert losses[0] is None  # no step was taken
    assert math.isfinite(losses[-1])


def test_steps_that_overflow_again_and_again_stop_the_run(tmp_path, corpus):
    with pytest.raises(TrainingError, match="fp16 has skipped 50 steps in a row at step 50 of 80"):
        scaled(corpus, tmp_path, 2.0**36, backoff=0.9999, max_steps=80, logging_steps=1)


def test_similarities_are_logged_step_by_step_and_change_nothing(tmp_path, corpus, monkeypatch):
    monkeypatch.setattr(similarity_log, "HIGH_SIMILARITY", 0.9)
    plain, task, batches = make_task(corpus), make_task(corpus), []
    run(plain, corpus, tmp_path / "plain", max_steps=5)
    assert not (tmp_path / "plain" / "similarity.jsonl").exists()
    inner = task.loss
    task.loss = lambda z: batches.append([view.detach().clone() for view in z.views]) or inner(z)
    run(task, corpus, tmp_path / "out", max_steps=5, logging_steps=2, log_similarity=True)
    assert equal(weights(plain), weights(task))
    lines = [
        json.loads(line)
        for line in (tmp_path / "out" / "similarity.jsonl").read_text().splitlines()
    ]
    assert [line["step"] for line in lines] == [1, 2, 3, 4, 5]
    counts = [sum(line["histograms"]["negatives"]) for line in lines if "histograms" in line]
    assert counts == [2 * 8 * 7, 2 * 8 * 7, 8 * 7]  # steps 1 and 2, 3 and 4, 5
    for line, (z1, z2) in zip(lines, batches, strict=True):
        s = torch.nn.functional.cosine_similarity(z1[:, None], z2[None], dim=-1)
        others = s[~torch.eye(8, dtype=torch.bool)]
        assert line["positive"] == pytest.approx(s.diagonal().mean().item(), rel=1e-5)
        assert line["negative"] == pytest.approx(others.mean().item(), rel=1e-5)
        assert line["high_share"] == pytest.approx((others > 0.9).float().mean().item(), abs=1e-6)
        assert line["tau_negative"] == pytest.approx(SHIFTED(others).mean().item(), rel=1e-5)


@pytest.mark.parametrize(
    ("options", "evaluated"),
    [
        ({"num_train_epochs": 0.5}, [13]),  # of 25 steps, rounded up
        ({"eval_steps": 10}, [10, 20, 25]),
        ({"max_steps": 100, "num_train_epochs": 1.5}, [38]),
        ({"max_steps": 3, "num_train_epochs": 1.5}, [3]),
    ],
)
def test_parts_of_an_epoch_and_when_it_is_evaluated(options, evaluated, tmp_path, corpus):
    task, steps = make_task(corpus), []
    task.evaluate = lambda: steps.append(1) or {"score": float(len(steps))}
    summary, _ = run(task, corpus, tmp_path, **{"max_steps": -1, **options})
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "score" in line] == evaluated
    assert summary.step == evaluated[-1]


# ---- what a loss learns


@pytest.mark.parametrize(
    ("loss", "names"),
    [
        ("infonce(learned(0.05, learning_rate=0.05))", {"tau"}),
        ("infonce(learned(cosine(0.05, 0.2), learning_rate=0.05))", {"tau_min", "tau_max"}),
        ("siglip(learning_rate=0.05)", {"logit_scale", "logit_bias"}),
    ],
)
def test_what_is_learned_moves_and_is_recorded(tiny_run, tmp_path, loss, names):
    assert main([*tiny_run, f"--loss={loss}", "--eval_set=none", f"--output_dir={tmp_path}"]) == 0
    record = json.loads((tmp_path / "run.json").read_text())
    learned = record["learned_temperature"]
    assert set(learned) == names
    before, after = (
        FinishedRun(tmp_path, RunRecord.from_json(record | more)).temperature
        for more in ({"learned_temperature": {}}, {})
    )
    s = torch.linspace(-1, 1, 9)
    assert (before(s) - after(s)).abs().max() > 1e-4
    assert (
        names == {"logit_scale", "logit_bias"}
        or {name: getattr(after, name) for name in names} == learned
    )


class OwnTemperature(CosineTemperature):
    """Of a user: one parameter learns, one is frozen, one is not used."""

    def __init__(self, tau_min: float, tau_max: float) -> None:
        super().__init__(tau_min, tau_max)
        self.factor = torch.nn.Parameter(torch.tensor(1.0))
        self.frozen = torch.nn.Parameter(torch.tensor(1.0), requires_grad=False)
        self.unused = torch.nn.Parameter(torch.ones(2))

    def forward(self, similarity):
        tau = super().forward(similarity)
        return (
            tau * self.factor * self.frozen if hasattr(self, "frozen") else tau
        )  # its base looks at it first


@pytest.mark.parametrize("reweighting", [None, HCLReweighting])
def test_only_what_can_learn_in_a_temperature_of_ones_own_does(reweighting, corpus, tmp_path):
    temperature = OwnTemperature(0.05, 0.06)
    run(
        make_task(
            corpus, objective=InfoNCELoss(reweighting(temperature) if reweighting else temperature)
        ),
        corpus,
        tmp_path,
    )
    assert abs(float(temperature.factor) - 1) > 1e-4
    assert float(temperature.frozen) == 1


def trained(corpus, folder, scores=(), **options):
    """Return the summary of a run that learns a constant, and the temperature before and after."""
    temperature, scores = LearnableTemperature(0.05, learning_rate=0.01), iter(scores)
    task = make_task(corpus, objective=InfoNCELoss(temperature))
    task.evaluate = lambda: {"score": next(scores)} if options.get("eval_steps") else {}
    before = temperature.free.detach().clone()
    summary, trainer = run(task, corpus, folder, lr_scheduler_type="constant", **options)
    trainer.close()
    return summary, before, task.objective


def test_it_is_recorded_as_the_kept_model_had_it(corpus, tmp_path):
    """The first of three models is the best one."""
    options = {"eval_steps": 1, "metric_for_best_model": "score"}
    best, _, last = trained(corpus, tmp_path / "3", [3.0, 2.0, 1.0], max_steps=3, **options)
    one, _, first = trained(corpus, tmp_path / "1", [3.0], max_steps=1, **options)
    assert best.best_step == 1
    assert best.learned == one.learned == first.learned() != last.learned()


def test_its_step_is_that_of_adam_alone(corpus, tmp_path):
    """Clipping and weight decay of the network do not reach it."""
    options = {"max_steps": 1, "weight_decay": 0.5, "max_grad_norm": 1e-6, "learning_rate": 1e-9}
    _, before, after = trained(corpus, tmp_path, **options)
    moved = (after.temperature.free.detach() - before).abs()
    torch.testing.assert_close(
        moved, torch.full_like(moved, 0.01), rtol=1e-3, atol=0
    )  # Adam's first step is its rate
