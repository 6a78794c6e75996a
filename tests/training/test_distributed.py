"""Several processes against one, through the real training: the same batches, losses and weights."""

import gc
import json
import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.utils import DistributedType
from conftest import build_tokenizer, reset_accelerator
from processes import spawn
from torch.distributed import distributed_c10d
from trainer_cases import SHIFTED, log_of, make_task, run

from dystress_text import losses
from dystress_text.data.corpus import load_corpus
from dystress_text.data.crops import Crops
from dystress_text.data.texts import plain_text
from dystress_text.errors import UserError
from dystress_text.training.accelerator import (
    StopSignals,
    _check_launch,
    make_accelerator,
    on_main_process,
)
from dystress_text.training.run import before_first_step
from dystress_text.training.settings import TrainingSettings

STEPS, BATCH, SENTENCES = (
    20,
    8,
    67,
)  # 8 batches an epoch and 3 sentences that sit it out: two and a half epochs

OBJECTIVES = {
    "InfoNCE, shifted cosine": lambda gather: losses.InfoNCELoss(SHIFTED, gather=gather),
    "NT-Xent, cosine in the gradient": lambda gather: losses.NTXentLoss(
        losses.CosineTemperature(0.05, 0.1), detach_temperature=False, gather=gather
    ),
    "MACL": lambda gather: losses.MACLLoss(0.1, alpha=0.5, a_0=0.8, gather=gather),
    "learned temperature": lambda gather: losses.InfoNCELoss(
        losses.LearnableTemperature(
            losses.CosineTemperature(0.05, 0.1), learning_rate=0.05
        ).double(),
        gather=gather,
    ),
    "DCL-W": lambda gather: losses.DCLWLoss(0.1, gather=gather),
}
CASES = {name: (name, {}) for name in OBJECTIVES}
CASES["accumulation"] = ("InfoNCE, shifted cosine", {"gradient_accumulation_steps": 2})
CASES["gradient cache"] = ("MACL", {"grad_cache_chunk": 1})
CASES["crops"] = ("MACL", {"grad_cache_chunk": 1})


def train(folder, text, case, **options):
    """One run of a case in fp64; leaves metrics.jsonl and weights.pt in the folder."""
    objective, own = CASES[case]
    defaults = {
        "max_steps": STEPS,
        "train_batch_size": BATCH,
        "learning_rate": 1e-3,
        "max_grad_norm": 0.5,
    }
    defaults |= {"logging_steps": 1, "eval_steps": 10, "weight_decay": 0.1, "log_similarity": True}
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    gather = losses.ProcessGather(int(os.environ["RANK"]), world_size) if world_size > 1 else None
    corpus = load_corpus(
        plain_text(text),
        build_tokenizer(),
        16,
        SENTENCES,
        crops=Crops(1) if case == "crops" else None,
    )
    task = make_task(corpus)
    task.model.double()
    task.objective = OBJECTIVES[objective](gather)
    task.evaluate = lambda: {"norm": float(task.probe().norm())}
    task.save = lambda folder: torch.save(
        task.model.state_dict(), folder / "weights.pt"
    )  # as in memory
    _, trainer = run(task, corpus, folder, **defaults | own | options)
    types = {type(module).__name__ for module in trainer.model.modules()}
    trainer.model = task.model
    trainer.accelerator.free_memory()
    del trainer
    gc.collect()
    reset_accelerator()
    return types


def train_all(folder, text):
    """What each of several processes runs, one case after another in one process group."""
    with pytest.raises(UserError, match=f"train_batch_size: {BATCH + 1} does not divide among"):
        train(folder, text, "MACL", train_batch_size=BATCH + 1)
    reset_accelerator()
    for case in CASES:
        assert "DistributedDataParallel" in train(folder / case, text, case)


@pytest.fixture(scope="module")
def alone(tmp_path_factory, text_file):
    """The runs of one process."""
    folder = tmp_path_factory.mktemp("alone")
    for case in CASES:
        train(folder / case, text_file, case)
    return folder


def results(folder):
    losses, norms = (
        torch.tensor(log_of(folder, key), dtype=torch.float64) for key in ("loss", "norm")
    )
    return (
        losses,
        norms,
        torch.cat([w.flatten() for w in torch.load(folder / "weights.pt").values()]),
    )


def similarities(folder):
    """The log of similarities as one vector."""
    lines = [json.loads(line) for line in (folder / "similarity.jsonl").read_text().splitlines()]
    figures = [[value for value in line.values() if not isinstance(value, dict)] for line in lines]
    return torch.tensor(figures, dtype=torch.float64)


def apart(a, b):
    return float((a - b).norm() / b.norm())


def compare(folder, reference):
    losses, norms, weights = results(folder)
    expected_losses, expected_norms, expected_weights = results(reference)
    assert len(losses) == len(expected_losses) == STEPS
    assert (
        float(expected_losses[-5:].mean() / expected_losses[:5].mean()) < 0.95
    )  # it learns something
    assert weights.dtype == torch.float64
    assert apart(losses, expected_losses) < 1e-10
    assert apart(weights, expected_weights) < 1e-10
    assert apart(norms, expected_norms) < 1e-5  # evaluation rounds to fp32
    assert apart(similarities(folder), similarities(reference)) < 1e-10


@pytest.mark.slow(30)
def test_several_processes_equal_one(alone, tmp_path, text_file):
    """20 steps over two and a half epochs of 67 sentences in batches of 8: 3 sit out each epoch, in
    any number.
    """
    spawn(2, train_all, tmp_path, text_file)
    for case in CASES:
        compare(tmp_path / case, alone / case)


def wait_for_an_evaluation():
    """With torch's default, which is here two seconds, the main process is gone too long."""
    distributed_c10d._get_default_timeout = lambda backend: timedelta(seconds=2)
    on_main_process(make_accelerator(TrainingSettings()), lambda: time.sleep(5))


def test_an_evaluation_may_take_longer_than_the_default_timeout():
    spawn(2, wait_for_an_evaluation)


def build_alone(accelerator):
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        raise UserError("no data")
    accelerator.wait_for_everyone()


def end_early(folder):
    accelerator = make_accelerator(TrainingSettings(output_dir=str(folder)))
    with pytest.raises(UserError) as caught, before_first_step(accelerator):
        build_alone(accelerator)
    said = (
        "no data",
        "before the first step: another process of this run is gone; its last output says why",
    )
    assert str(caught.value) == said[int(os.environ["RANK"])]
    os._exit(0)


def test_an_error_of_one_process_before_the_first_step_is_a_line_of_the_others(tmp_path):
    spawn(2, end_early, tmp_path)


def stop_one(folder):
    """1,000 steps, of 2 and 4 ms; the second process is told to stop after 300 of them."""
    accelerator = make_accelerator(TrainingSettings())
    rank, asked, real = accelerator.process_index, [], dist.all_reduce
    dist.all_reduce = lambda *arguments: asked.append(1) or real(*arguments)
    with StopSignals(accelerator) as stop:
        for step in range(1000):
            time.sleep(0.002 * (1 + rank))
            if rank == 1 and step == 300:
                signal.raise_signal(signal.SIGTERM)
                told = time.monotonic()
            if stop.agreed():
                break
    waited = time.monotonic() - told if rank == 1 else 0.0
    (folder / str(rank)).write_text(json.dumps([step, len(asked), waited]))


def test_a_signal_is_agreed_on_soon_and_without_a_word_after_each_step(tmp_path):
    spawn(2, stop_one, tmp_path)
    (step, asked, _), (last, _, waited) = (
        json.loads((tmp_path / name).read_text()) for name in "01"
    )
    assert 300 <= step == last < 999
    assert asked < step / 10
    assert waited < 5


ROOT = Path(__file__).resolve().parents[2]
CONFIGURATIONS = sorted((ROOT / "docs" / "accelerate").glob("*.yaml"))


def test_configuration_files_are_accelerates():
    """Its own class refuses unknown keys."""
    for file in CONFIGURATIONS:
        configuration = load_config_from_file(str(file))
        assert configuration.num_processes % configuration.num_machines == 0
        comment = file.read_text().partition("compute_environment")[0]
        assert f"accelerate launch --config_file docs/accelerate/{file.name}" in comment
    assert {file.stem for file in CONFIGURATIONS} == {"one_gpu", "ddp", "two_machines", "cpu"}


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            {"WORLD_SIZE": "2"},
            r"started several processes.*ACCELERATE_USE_CPU=true|`MASTER_ADDR`",
        ),  # older ones join
        (
            {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4"},
            r"gradient_accumulation_steps.*says 4.*program 1",
        ),
        (
            {
                "ACCELERATE_MIXED_PRECISION": "no",
                "MASTER_ADDR": "127.0.0.1",
            },  # as after ``--cpu --num_processes 2``
            "asked for several processes and has started one",
        ),
    ],
)
@pytest.mark.filterwarnings("error::UserWarning")
def test_what_a_launcher_asks_for_and_the_loop_does_not_do_is_told(variables, message, monkeypatch):
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with (
        patch.dict(os.environ, variables),  # accelerate 1.10 sets more
        pytest.raises((UserError, UserWarning), match=message),
    ):
        make_accelerator(TrainingSettings())


def test_shards_are_refused():
    accelerator = SimpleNamespace(
        distributed_type=DistributedType.FSDP, num_processes=2, device=torch.device("cpu")
    )
    with pytest.raises(UserError, match="FSDP is not supported"):
        _check_launch(accelerator, TrainingSettings())
