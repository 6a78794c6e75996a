"""Several processes against one, through the real engine: the same batches, losses and weights."""

import gc
import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.utils import DistributedType
from conftest import build_tokenizer, reset_accelerator
from processes import spawn
from trainer_cases import log_of, make_task, run

from dystress_text.core import (
    AlignmentAdaptiveTemperature,
    CosineTemperature,
    DCLWLoss,
    InfoNCELoss,
    LearnableTemperature,
    MACLLoss,
    NTXentLoss,
    ProcessGather,
    ShiftedCosineTemperature,
)
from dystress_text.errors import UserError
from dystress_text.simcse.corpus import TextFile, load_corpus
from dystress_text.training.accelerator import _check_launch, make_accelerator
from dystress_text.training.settings import EngineSettings

STEPS, BATCH, SENTENCES = 20, 8, 67  # 8 batches an epoch and 3 sentences that sit it out: two and a half epochs

OBJECTIVES = {
    "InfoNCE, shifted cosine": lambda gather: InfoNCELoss(ShiftedCosineTemperature(), gather=gather),
    "NT-Xent, cosine in the gradient": lambda gather: NTXentLoss(
        CosineTemperature(0.05, 0.1), detach_temperature=False, gather=gather
    ),
    "MACL": lambda gather: MACLLoss(temperature=AlignmentAdaptiveTemperature(0.1, 0.5, 0.8), gather=gather),
    "learned temperature": lambda gather: InfoNCELoss(
        LearnableTemperature(CosineTemperature(0.05, 0.1)).double(), gather=gather
    ),
    "DCL-W": lambda gather: DCLWLoss(0.1, gather=gather),
}
CASES = {name: (name, {}) for name in OBJECTIVES}
CASES["accumulation"] = ("InfoNCE, shifted cosine", {"gradient_accumulation_steps": 2})
CASES["gradient cache"] = ("MACL", {"grad_cache_chunk": 1})


def train(folder, text, case, **options):
    """One run of a case in fp64; leaves metrics.jsonl and weights.pt in the folder."""
    objective, own = CASES[case]
    defaults = {"max_steps": STEPS, "train_batch_size": BATCH, "learning_rate": 1e-3, "max_grad_norm": 0.5}
    defaults |= {"logging_steps": 1, "eval_steps": 10, "weight_decay": 0.1, "log_similarity": True}
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    gather = ProcessGather(int(os.environ["RANK"]), world_size) if world_size > 1 else None
    corpus = load_corpus(TextFile(text), build_tokenizer(), 16, SENTENCES)
    task = make_task(corpus)
    task.model.double()
    task.objective = OBJECTIVES[objective](gather)
    task.evaluate = lambda: {"norm": float(task.encode(["the cat sat", "a dog ran"]).norm())}
    task.save = lambda folder: torch.save(task.model.state_dict(), folder / "weights.pt")  # as in memory
    learned = list(task.objective.temperature.parameters())
    beside = {"params": learned, "lr": 0.05, "weight_decay": 0.0} if learned else None
    _, trainer = run(task, corpus, folder, beside, **defaults | own | options)
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
    losses, norms = (torch.tensor(log_of(folder, key), dtype=torch.float64) for key in ("loss", "norm"))
    return losses, norms, torch.cat([w.flatten() for w in torch.load(folder / "weights.pt").values()])


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
    assert float(expected_losses[-5:].mean() / expected_losses[:5].mean()) < 0.95  # it learns something
    assert weights.dtype == torch.float64
    assert apart(losses, expected_losses) < 1e-10
    assert apart(weights, expected_weights) < 1e-10
    assert apart(norms, expected_norms) < 1e-5  # evaluation rounds to fp32
    assert apart(similarities(folder), similarities(reference)) < 1e-10


@pytest.mark.slow(30)
def test_several_processes_equal_one(alone, tmp_path, text_file):
    """20 steps over two and a half epochs of 67 sentences in batches of 8: 3 sit out each epoch, in any number."""
    spawn(2, train_all, tmp_path, text_file)
    for case in CASES:
        compare(tmp_path / case, alone / case)


# ---- launching ------------------------------------------------------------------------------------------------------

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
        ({"WORLD_SIZE": "2"}, r"started several processes.*ACCELERATE_USE_CPU=true"),
        ({"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4"}, r"gradient_accumulation_steps.*says 4.*program 1"),
    ],
)
def test_what_a_launcher_asks_for_and_the_loop_does_not_do_is_refused(variables, message, monkeypatch):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=message):
        make_accelerator(EngineSettings())


def test_shards_are_refused():
    accelerator = SimpleNamespace(distributed_type=DistributedType.FSDP, num_processes=2, device=torch.device("cpu"))
    with pytest.raises(UserError, match="FSDP is not supported"):
        _check_launch(accelerator, EngineSettings())
