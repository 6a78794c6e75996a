"""Train with several processes and with one: the same batches, losses and weights."""

import gc
import json
import os
import signal
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file
from conftest import reset_accelerator
from model_cases import text_reader
from processes import spawn
from torch.distributed import distributed_c10d
from torch.nn.utils import parameters_to_vector
from trainer_cases import SHIFTED, log_of, make_task, run

import dystress_text
from dystress_text import losses
from dystress_text.errors import UserError
from dystress_text.finetuning import fine_tune
from dystress_text.finetuning.corpus import load_corpus
from dystress_text.finetuning.texts import plain_text
from dystress_text.training.accelerator import (
    StopSignals,
    before_first_step,
    make_accelerator,
    on_main_process,
)
from dystress_text.training.settings import TrainingSettings

STEPS = 20  # two and a half epochs
BATCH = 8
SENTENCES = 67  # 3 are left out of each epoch

OBJECTIVES = {
    "InfoNCE, shifted cosine": lambda gather: losses.InfoNCELoss(SHIFTED, gather=gather),
    "NT-Xent, cosine in the gradient": lambda gather: losses.NTXentLoss(
        losses.CosineTemperature(0.05, 0.1), detach_temperature=False, gather=gather
    ),
    "MACL": lambda gather: losses.MACLLoss(
        losses.AlignmentAdaptiveTemperature(0.1, alpha=0.5, a_0=0.8), gather=gather
    ),
    "learned temperature": lambda gather: losses.InfoNCELoss(
        losses.LearnableTemperature(0.05, learning_rate=0.05).double(), gather=gather
    ),
}
CASES = {name: (name, {}) for name in OBJECTIVES}
CASES["accumulation"] = ("InfoNCE, shifted cosine", {"gradient_accumulation_steps": 2})
CASES["gradient cache"] = ("MACL", {"grad_cache_chunk": 1})


def train(folder, text, case, **options):
    """One run of a case in fp64; leaves metrics.jsonl and weights.pt in the folder."""
    objective, own = CASES[case]
    defaults = {"max_steps": STEPS, "learning_rate": 1e-3, "max_grad_norm": 0.5}
    defaults |= {"logging_steps": 1, "eval_steps": 10, "weight_decay": 0.1, "log_similarity": True}
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    gather = losses.ProcessGather(int(os.environ["RANK"]), world_size) if world_size > 1 else None
    corpus = load_corpus(plain_text(text), text_reader(16), SENTENCES)
    task = make_task(corpus)
    task.model.double()
    task.objective = OBJECTIVES[objective](gather)
    weights = list(task.model.parameters())
    task.evaluate = lambda: {"norm": float(parameters_to_vector(weights).norm())}
    task.save = lambda folder: torch.save(task.model.state_dict(), folder / "weights.pt")
    _, trainer = run(task, folder, **defaults | own | options)
    types = {type(module).__name__ for module in trainer.model.modules()}
    trainer.model = task.model
    trainer.accelerator.free_memory()
    del trainer
    gc.collect()
    reset_accelerator()
    return types


def train_all(folder, text):
    """Train all cases in one process group."""
    with pytest.raises(UserError, match="train_batch_size"):
        train(folder, text, "MACL", train_batch_size=BATCH + 1)
    reset_accelerator()
    for case in CASES:
        assert "DistributedDataParallel" in train(folder / case, text, case)


def similarities(folder):
    """Return the log of similarities as a tensor."""
    figures = []
    for line in (folder / "similarity.jsonl").read_text().splitlines():
        figures.append([x for x in json.loads(line).values() if not isinstance(x, dict)])
    return torch.tensor(figures, dtype=torch.float64)


def compare(folder, reference):
    log = log_of(folder, "loss")
    expected = log_of(reference, "loss")
    assert len(log) == STEPS
    assert sum(expected[-5:]) < 0.95 * sum(expected[:5])  # it learns something
    assert log == pytest.approx(expected, rel=1e-10)
    assert log_of(folder, "norm") == pytest.approx(log_of(reference, "norm"), rel=1e-9)
    torch.testing.assert_close(similarities(folder), similarities(reference), rtol=1e-9, atol=1e-10)
    found = torch.load(folder / "weights.pt")
    for name, weight in torch.load(reference / "weights.pt").items():
        assert (found[name] - weight).norm() < 1e-9 * weight.norm() + 1e-12


@pytest.mark.slow(30)
def test_several_processes_equal_one(tmp_path, text_file):
    spawn(2, train_all, tmp_path, text_file)
    for case in CASES:
        alone = tmp_path / f"{case}, alone"
        train(alone, text_file, case)
        compare(tmp_path / case, alone)


def wait_for_an_evaluation():
    """Evaluate for longer than torch's default timeout, here two seconds."""
    distributed_c10d._get_default_timeout = lambda backend: timedelta(seconds=2)
    accelerator = make_accelerator(TrainingSettings())
    on_main_process(accelerator, lambda: time.sleep(5))


@pytest.mark.slow(10)
def test_evaluation_may_exceed_the_default_timeout():
    spawn(2, wait_for_an_evaluation)


def fail_on_main_process(accelerator):
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        raise UserError("no data")
    accelerator.wait_for_everyone()


def end_early(folder):
    accelerator = make_accelerator(TrainingSettings(output_dir=str(folder)))
    with pytest.raises(UserError) as caught, before_first_step(accelerator):
        fail_on_main_process(accelerator)
    expected = ("no data", "another process of this run")
    assert expected[int(os.environ["RANK"])] in str(caught.value)
    os._exit(0)


def test_error_of_one_process_ends_the_others(tmp_path):
    spawn(2, end_early, tmp_path)


def stop_one(folder):
    """Take 200 steps, of 1 and of 2 ms; signal the second process after 30 of them."""
    accelerator = make_accelerator(TrainingSettings())
    rank = accelerator.process_index
    with StopSignals(accelerator) as stop:
        for step in range(200):
            time.sleep(0.001 * (1 + rank))
            if rank == 1 and step == 30:
                signal.raise_signal(signal.SIGTERM)
            if stop.agreed():
                break
    (folder / str(rank)).write_text(str(step))


def test_processes_agree_on_a_signal(tmp_path):
    spawn(2, stop_one, tmp_path)
    assert [(tmp_path / name).read_text() for name in "01"] == ["30", "30"]


def test_accelerate_reads_the_configuration_files():
    """Its own class refuses unknown keys."""
    folder = Path(__file__).resolve().parents[2] / "docs" / "accelerate"
    for name in ("one_gpu", "ddp", "two_machines", "cpu"):
        configuration = load_config_from_file(str(folder / f"{name}.yaml"))
        assert configuration.num_processes % configuration.num_machines == 0


def test_launcher_without_devices_for_its_processes_is_rejected(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match=r"ACCELERATE_USE_CPU|MASTER_ADDR"):
        make_accelerator(TrainingSettings())


def test_accumulation_of_the_settings_comes_first(monkeypatch):
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    accelerator = make_accelerator(TrainingSettings(gradient_accumulation_steps=2))
    assert accelerator.gradient_accumulation_steps == 2


def train_and_show(options, folder):
    """Train, or find the run finished; leave what this process knows of it."""
    if os.environ["RANK"] != "0":
        fine_tune.content_of = pytest.fail  # one process reads the base model for its checksum
    run = dystress_text.train(**options, resume_from_checkpoint="auto", output_dir=folder)
    known = {"shown": repr(run), "evaluation": run.evaluation, "record": run.record.to_json()}
    file = folder.parent / f"{os.environ['RANK']}.json"
    file.write_text(json.dumps(known, default=str))


def test_all_processes_return_the_finished_run(tiny_bert, text_file, data_dir, tmp_path):
    given = {"model_name_or_path": tiny_bert, "train_file": text_file, "data_dir": data_dir}
    options = {**given, "max_steps": 2, "train_batch_size": 8, "mixed_precision": "no"}
    for _ in range(2):
        spawn(2, train_and_show, options, tmp_path / "out")
        first, second = (json.loads((tmp_path / f"{i}.json").read_text()) for i in range(2))
        assert first["record"]["state"] == "finished"
        assert first["evaluation"]
        assert second == first
