"""The training loop against plain loops: order, seeds, the best model and clear errors."""

import copy
import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from conftest import reset_accelerator
from torch.nn.utils import parameters_to_vector
from trainer_cases import SHIFTED, change_loss, equal, log_of, make_task, run, scaled, weights

from dystress_text.errors import DataError, TrainingError
from dystress_text.losses import InfoNCELoss, LearnableTemperature, ScheduledTemperature
from dystress_text.training import similarity_log
from dystress_text.training.accelerator import resolve_precision
from dystress_text.training.batches import BatchOrder
from dystress_text.training.checkpoints import TrainingState
from dystress_text.training.run_folder import checkpoint_folders


def test_temperature_schedule_advances_in_epochs(tmp_path, corpus):
    temperature = ScheduledTemperature(0.1, 1.0, half_period=2)
    run(make_task(corpus, objective=InfoNCELoss(temperature)), tmp_path, max_steps=30)
    assert float(temperature.time) == pytest.approx(29 / 25)  # 25 steps an epoch


def test_result_depends_on_the_seed_alone(tmp_path, corpus):
    results = []
    for i, (seed, eval_steps) in enumerate([(1, 0), (1, 2), (2, 0)]):
        task = make_task(corpus, dropout=0.1)
        run(task, tmp_path / str(i), seed=seed, eval_steps=eval_steps)
        results.append(weights(task))
    assert equal(results[0], results[1])
    assert not equal(results[0], results[2])


@pytest.mark.parametrize(("launcher", "expected"), [("no", "fp16"), ("bf16", "bf16")])
def test_auto_fp16(launcher, expected, monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", launcher)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_precision("auto_fp16") == expected
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert resolve_precision("auto_fp16") == resolve_precision("auto")


def rate_of(schedule, step):
    """Return the learning rate of six steps with two of warmup, as a fraction of the peak."""
    if step < 2:
        return step / 2
    done = (step - 2) / 4
    if schedule == "cosine":
        return 0.5 * (1 + math.cos(math.pi * done))
    return 1 - done if schedule == "linear" else 1.0


@pytest.mark.parametrize(
    ("accumulation", "schedule"), [(1, "cosine"), (3, "linear"), (1, "constant")]
)
def test_training_equals_a_plain_loop(tmp_path, corpus, accumulation, schedule):
    task = make_task(corpus)
    plain = copy.deepcopy(task.model)
    untrained = copy.deepcopy(task.model)
    options = {"lr_scheduler_type": schedule, "weight_decay": 0.1, "warmup_ratio": 0.3}
    options |= {"max_grad_norm": 0.5, "learning_rate": 1e-3, "logging_steps": 2}
    run(task, tmp_path, gradient_accumulation_steps=accumulation, **options)

    decayed = {"params": [p for p in plain.parameters() if p.ndim > 1], "weight_decay": 0.1}
    others = {"params": [p for p in plain.parameters() if p.ndim <= 1], "weight_decay": 0}
    optimizer = torch.optim.AdamW([decayed, others])
    batches = BatchOrder(len(corpus), 8, 42).epoch(0)
    losses = []
    for step in range(6):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * rate_of(schedule, step)
        optimizer.zero_grad()
        total = 0.0
        for indices in batches[step * accumulation : (step + 1) * accumulation]:
            z = F.normalize(plain(**corpus.batch(indices)), dim=-1)  # both views, without dropout
            s = z @ z.T
            loss = F.cross_entropy(s / SHIFTED(s.detach()), torch.arange(8))
            (loss / accumulation).backward()
            total += loss.item() / accumulation
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        optimizer.step()
        losses.append(total)
    assert log_of(tmp_path, "loss") == pytest.approx(np.reshape(losses, (3, 2)).mean(1), rel=1e-4)
    reached = parameters_to_vector(task.model.parameters())
    expected = parameters_to_vector(plain.parameters())
    start = parameters_to_vector(untrained.parameters())
    assert (reached - expected).norm() < 0.01 * (start - expected).norm()


def test_best_model_is_kept(tmp_path, corpus):
    task = make_task(corpus)
    task.scores = iter([1.0, 3.0, float("nan"), 2.0, 3.0, 2.5])
    summary, _ = run(task, tmp_path, eval_steps=1, metric_for_best_model="score")
    assert task.saved == 2
    assert (summary.best_step, summary.metrics) == (2, {"score": 3.0})
    assert log_of(tmp_path, "score")[:3] == [1.0, 3.0, None]  # standard JSON has no NaN


def test_bf16_keeps_fp32_weights(tmp_path, corpus):
    task = make_task(corpus)
    options = {"logging_steps": 1, "learning_rate": 1e-3}
    run(task, tmp_path / "bf16", mixed_precision="bf16", **options)
    assert {p.dtype for p in task.model.parameters()} == {torch.float32}
    reset_accelerator()
    run(make_task(corpus), tmp_path / "fp32", **options)
    difference = np.subtract(log_of(tmp_path / "bf16", "loss"), log_of(tmp_path / "fp32", "loss"))
    assert 0 < np.abs(difference).max() < 0.2


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_loss_or_gradient_that_is_not_finite_stops_the_run(what, tmp_path, corpus):
    task = make_task(corpus)
    change = {
        "loss": lambda loss, _: loss * math.nan,
        "gradient": lambda loss, z: loss + torch.sqrt(0 * z.views[0].sum()),  # infinite slope
    }
    change_loss(task, 10, change[what])
    options = {"gradient_accumulation_steps": 2, "logging_steps": 3, "max_steps": 20}
    with pytest.raises(TrainingError, match=f"{what}.* at step 5 of 20"):
        run(task, tmp_path, **options)
    assert task.saved == 0
    assert checkpoint_folders(tmp_path) == []


@pytest.mark.parametrize(("at", "kept"), [(0, []), (3, ["checkpoint-3"])])
def test_damaged_sample_leaves_the_last_step(at, kept, tmp_path, corpus):
    task = make_task(corpus)
    load = task.load

    def damaged(indices, step):
        if step == at:
            raise DataError("photo.jpg is damaged")
        return load(indices, step)

    task.load = damaged
    with pytest.raises(DataError, match=r"photo\.jpg"):
        run(task, tmp_path)
    assert [folder.name for folder in checkpoint_folders(tmp_path)] == kept


def test_weights_that_are_not_finite_are_not_saved(tmp_path, corpus):
    task = make_task(corpus)
    unused = task.model.model[0].model.pooler.dense.weight  # so that the losses are finite
    torch.nn.init.constant_(unused, math.inf)
    with pytest.raises(TrainingError, match="weight"):
        run(task, tmp_path)
    assert task.saved == 0


@pytest.mark.parametrize("clip", [0.0, 1.0])
def test_fp16_overflow_is_skipped_and_counted(clip, tmp_path, corpus):
    options = {"max_steps": 12, "logging_steps": 4, "max_grad_norm": clip}
    state = scaled(corpus, tmp_path, 2.0**36, backoff=0.05, **options)
    assert 4 <= state.skipped_steps < 11
    first, *_, last = log_of(tmp_path, "loss")
    assert first is None  # no step was taken
    assert math.isfinite(last)
    state = TrainingState()
    assert state.add_losses([1.0], math.inf, fp16=True) is None  # the norm may be NaN or infinite
    assert state.skipped_steps == 1
    assert state.add_losses([1.0], math.inf, fp16=False) is not None


def test_similarity_log(tmp_path, corpus, monkeypatch):
    monkeypatch.setattr(similarity_log, "HIGH_SIMILARITY", 0.9)
    plain = make_task(corpus)
    run(plain, tmp_path / "plain", max_steps=5)
    task = make_task(corpus)
    batches = []
    task.objective.register_forward_pre_hook(lambda _, views: batches.append(views))
    run(task, tmp_path, max_steps=5, logging_steps=2, log_similarity=True)
    assert equal(weights(plain), weights(task))
    lines = list(map(json.loads, (tmp_path / "similarity.jsonl").read_text().splitlines()))
    counts = {
        line["step"]: (line["comparison"]["batches"], sum(line["histograms"]["negatives"]))
        for line in lines
        if line.keys() & {"comparison", "histograms"}
    }
    assert counts == {2: (2, 2 * 8 * 7), 4: (2, 2 * 8 * 7), 5: (1, 8 * 7)}
    for line, (z1, z2) in zip(lines, batches, strict=True):
        s = F.cosine_similarity(z1[:, None], z2[None], dim=-1).detach()
        is_negative = ~torch.eye(8, dtype=torch.bool)
        others = s[is_negative]
        tau = SHIFTED(others)
        gradient = (s / SHIFTED(s)).softmax(1)[is_negative] / tau
        expected = {
            "positive": s.diagonal().mean(),
            "negative": others.mean(),
            "high_share": (others > 0.9).float().mean(),
            "high_gradient": gradient[others > 0.9].sum() / gradient.sum(),
            "tau_negative": tau.mean(),
            "tau_effective": (gradient * tau).sum() / gradient.sum(),
        }
        for name, value in expected.items():
            assert line[name] == pytest.approx(float(value), rel=1e-5, abs=1e-6)


@pytest.mark.parametrize(("eval_steps", "evaluations"), [(10, 3), (0, 1)])
def test_epochs_and_evaluations(eval_steps, evaluations, tmp_path, corpus):
    """Each epoch has its own order, which the second begins after 25 steps."""
    task = make_task(corpus)
    load = task.load
    loaded = []
    task.load = lambda indices, step: load(loaded.append(indices) or indices, step)
    calls = []
    task.evaluate = lambda: calls.append(task) or {}
    state, _ = run(task, tmp_path, max_steps=26, eval_steps=eval_steps)
    order = BatchOrder(len(corpus), 8, 42)
    assert np.array_equal(loaded, [*order.epoch(0), order.epoch(1)[0]])
    assert len(calls) == evaluations
    assert (state.step, state.skipped_steps) == (26, 0)
    assert state.train_seconds > 0


def test_learned_temperature_is_that_of_the_best_model(corpus, tmp_path):
    """It has a rate of its own, which neither clipping nor weight decay changes."""
    objective = InfoNCELoss(LearnableTemperature(0.05, learning_rate=0.01))
    task = make_task(corpus, objective=objective)
    task.scores = iter([3.0, 2.0, 1.0])
    expected = []
    for step in (-0.01, 0.01):  # Adam's first step is its rate
        moved = copy.deepcopy(objective)
        moved.temperature.free.data += step
        expected.append(pytest.approx(moved.learned(), rel=1e-5))
    options = {"max_steps": 3, "eval_steps": 1, "metric_for_best_model": "score"}
    options |= {"weight_decay": 0.5, "max_grad_norm": 1e-6, "lr_scheduler_type": "constant"}
    state, _ = run(task, tmp_path, **options)
    assert state.learned in expected
    assert state.learned != objective.learned()
