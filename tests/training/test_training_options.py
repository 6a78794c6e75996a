"""Duplicates in a batch and a learned temperature, in runs of the program."""

import json

import pytest
import torch
from conftest import WORDS
from trainer_cases import make_task

from dystress_text.simcse.arguments import parse
from dystress_text.simcse.objective import TEXT, temperature_of_record
from dystress_text.simcse.task import SimcseTask
from dystress_text.train import main
from dystress_text.training.accelerator import make_accelerator
from dystress_text.training.build_loss import build_objective, learned_end_points, learned_group
from dystress_text.training.settings import EngineSettings, LossSettings
from dystress_text.training.trainer import Trainer

SENTENCES = [" ".join(WORDS[i : i + 4]) for i in range(10)] * 2 + [" ".join(WORDS[i : i + 5]) for i in range(20)]


def record_of(folder):
    return json.loads((folder / "out" / "run.json").read_text())


def losses_of(folder):
    lines = (folder / "out" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines if "loss" in json.loads(line)]


@pytest.mark.parametrize(
    ("options", "names"), [(["--temp=0.05"], {"tau"}), (["--tau_min=0.05", "--tau_max=0.2"], {"tau_min", "tau_max"})]
)
def test_a_learned_temperature_moves_and_is_recorded(flags, tmp_path, options, names):
    assert main([*flags, *options, "--learn_temperature", "--temperature_learning_rate=0.05", "--save_steps=3"]) == 0
    record = record_of(tmp_path)
    learned = record["learned_temperature"]
    assert learned.keys() == names
    starts = {"tau": 0.05, "tau_min": 0.05, "tau_max": 0.2}
    assert all(abs(value - starts[name]) > 1e-4 for name, value in learned.items())
    assert all(0.01 < value < 1 for value in learned.values())
    rebuilt = temperature_of_record(record)
    assert {name: getattr(rebuilt, name) for name in names} == learned
    before = {**learned}
    for folder in (tmp_path / "out").glob("checkpoint-6"):
        assert not folder.exists()
    assert main([*flags, *options, "--learn_temperature", "--temperature_learning_rate=0.05", "--save_steps=3",
                 "--resume_from_checkpoint"]) == 0  # fmt: skip
    assert record_of(tmp_path)["learned_temperature"] == before


@pytest.mark.parametrize(
    ("flags", "learned"), [(["--temp=0.05"], {"tau": 0.01}), (["--tau_max=0.2"], {"tau_min": 0.01, "tau_max": 0.01})]
)
def test_one_that_went_to_its_bound_can_be_read_back(flags, learned):
    settings = parse([*flags, "--learn_temperature", "--temperature_learning_rate=0.05"])
    rebuilt = temperature_of_record({"settings": settings.options(), "learned_temperature": learned})
    assert float(rebuilt(torch.tensor(0.5))) == pytest.approx(0.01)


def test_it_is_recorded_as_the_kept_model_had_it(corpus, tmp_path):
    """The first of three models is the best one."""
    loss, found = LossSettings(temp=0.05, learn_temperature=True, temperature_learning_rate=0.05), []
    for steps in (3, 1):
        engine = EngineSettings(
            output_dir=str(tmp_path), max_steps=steps, train_batch_size=8, eval_steps=1, mixed_precision="no",
            lr_scheduler_type="constant", metric_for_best_model="score",
        )  # fmt: skip
        task, scores = make_task(corpus), iter([3.0, 2.0, 1.0])
        task.objective = build_objective(loss, TEXT)
        task.evaluate = lambda scores=scores: {"score": next(scores)}
        task.snapshot = lambda task=task: SimcseTask.snapshot(task)
        group = learned_group(task.objective, loss)
        trainer = Trainer(task, len(corpus), engine, make_accelerator(engine), extra_group=group)
        assert trainer.fit().best_step == 1
        trainer.close()
        moved = task.objective.temperature.end_points()
        found.append((learned_end_points(task.objective.temperature), moved))
    assert found[0][0] == found[1][0] == {"learned_temperature": found[1][1]}
    assert found[0][1] != found[1][1]


def test_its_step_is_that_of_adam_alone(corpus, tmp_path):
    """Clipping and weight decay of the network do not reach it."""
    loss = LossSettings(temp=0.05, learn_temperature=True, temperature_learning_rate=0.01)
    engine = EngineSettings(
        output_dir=str(tmp_path), max_steps=1, train_batch_size=8, weight_decay=0.5, max_grad_norm=1e-6,
        mixed_precision="no", learning_rate=1e-9, lr_scheduler_type="constant",
    )  # fmt: skip
    task = make_task(corpus)
    task.objective = build_objective(loss, TEXT)
    before = task.objective.temperature.free.detach().clone()
    trainer = Trainer(
        task, len(corpus), engine, make_accelerator(engine), extra_group=learned_group(task.objective, loss)
    )
    trainer.fit()
    trainer.close()
    moved = (task.objective.temperature.free.detach() - before).abs()
    torch.testing.assert_close(moved, torch.full_like(moved, 0.01), rtol=1e-3, atol=0)  # Adam's first step is its rate


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--temperature_bounds", "0.01", "0.1"], "--temperature_bounds: has no effect without --learn_temperature"),
        (["--temperature_learning_rate=0.1"], "--temperature_learning_rate: has no effect without --learn_temperature"),
        (["--learn_temperature", "--temperature_bounds", "0.1"], "--temperature_bounds: two positive numbers"),
        (["--learn_temperature", "--temperature_bounds", "0.06", "0.1"], "--learn_temperature: 0.05 and 0.07 must lie"),
        (["--learn_temperature", "--temperature=scheduled"], "--learn_temperature: ScheduledTemperature has nothing"),
        (["--learn_temperature", "--temperature_learning_rate=0"], "--temperature_learning_rate: must be positive"),
        (["--objective=dcl", "--bidirectional"], "--bidirectional: objective 'dcl' has its own directions"),
    ],
)
def test_options_that_do_not_fit_are_one_line(flags, capsys, options, message):
    assert main([*flags, *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
