"""A run beside the user's own accelerators and trainers, with any global settings of torch."""

import copy
import os
import random
import time

import numpy as np
import pytest
import torch
import torch.distributed as dist
from accelerate import Accelerator
from accelerate.utils import set_seed
from conftest import make_sentences
from datasets import Dataset
from model_cases import build_model
from processes import spawn
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import backends, nn

import dystress_text
from dystress_text.training.accelerator import make_accelerator
from dystress_text.training.global_state import full_fp32, restored_global_state
from dystress_text.training.settings import TrainingSettings

SENTENCES = make_sentences(32)


@pytest.fixture
def ours(tiny_bert, text_file, tmp_path):
    """Return a function that trains with this package, each time in another folder."""
    folders = (tmp_path / str(number) for number in range(9))

    def train(**options):
        given = {
            "model_name_or_path": tiny_bert,
            "train_file": text_file,
            "eval_set": "none",
            "train_batch_size": 8,
            "max_steps": 2,
        }
        return dystress_text.train(**given | options, output_dir=next(folders))

    return train


def their_trainer(folder, **options):
    """Return a trainer of sentence-transformers for a model that is always the same."""
    model = build_model("bert", "cls")
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder / "theirs"),
        max_steps=2,
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        max_grad_norm=1e9,  # clipping would hide the gradient's scale
        optim="sgd",
        report_to=[],
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
        **options,
    )
    data = Dataset.from_dict({"anchor": SENTENCES, "positive": SENTENCES})
    loss = MultipleNegativesRankingLoss(model)
    return SentenceTransformerTrainer(model=model, args=arguments, train_dataset=data, loss=loss)


def trained(trainer):
    trainer.train()
    return copy.deepcopy(trainer.model.state_dict())


@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("precision", [{}, {"mixed_precision": "bf16"}])
def test_trainers_in_any_order(ours, precision, accumulation, tmp_path):
    options = {"gradient_accumulation_steps": accumulation}
    expected = trained(their_trainer(tmp_path, **options))
    alone = ours(**precision).model.state_dict()
    made_before = their_trainer(tmp_path, **options)
    first = ours(**precision, gradient_accumulation_steps=2)
    assert trained(made_before).keys() == expected.keys()
    for name, weight in trained(their_trainer(tmp_path, **options)).items():
        assert weight.equal(expected[name])
        assert made_before.model.state_dict()[name].equal(expected[name])
    last = ours(**precision).model.state_dict()
    assert first.record.settings["gradient_accumulation_steps"] == 2
    assert all(weight.equal(last[name]) for name, weight in alone.items())


def test_the_callers_accelerator_accumulates_as_before(ours):
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    model, _ = accelerator.prepare(nn.Linear(1, 1), torch.optim.SGD([nn.Parameter(torch.ones(1))]))
    ours(gradient_accumulation_steps=2, mixed_precision="bf16")
    assert accelerator.gradient_accumulation_steps == 4
    assert accelerator.mixed_precision == "no"
    assert Accelerator(cpu=True, gradient_accumulation_steps=4).mixed_precision == "no"
    steps = []
    for _ in range(8):
        with accelerator.accumulate(model):
            steps.append(accelerator.sync_gradients)
    assert steps == [False, False, False, True] * 2


PRECISIONS = [backends]
if hasattr(backends, "fp32_precision"):
    PRECISIONS += [backends.cudnn, backends.cudnn.conv, backends.cudnn.rnn]
    PRECISIONS += [backends.cuda.matmul, backends.mkldnn.matmul, backends.mkldnn.conv]


def settings_of_torch():
    """Return all settings; the name of the error in place of one that cannot be read."""
    readers = {
        "matmul": torch.get_float32_matmul_precision,
        "cublas": lambda: backends.cuda.matmul.allow_tf32,
        "cudnn": lambda: backends.cudnn.allow_tf32,
        "deterministic": torch.are_deterministic_algorithms_enabled,
        "warn_only": torch.is_deterministic_algorithms_warn_only_enabled,
        "type": torch.get_default_dtype,
        "gradients": torch.is_grad_enabled,
        "inference": torch.is_inference_mode_enabled,
        "threads": torch.get_num_threads,
    }
    for number, each in enumerate(PRECISIONS):
        readers[f"fp32 {number}"] = lambda each=each: getattr(each, "fp32_precision", None)
    found = {}
    for name, read in readers.items():
        try:
            found[name] = read()
        except RuntimeError as error:
            found[name] = type(error)
    return found


def set_fp32(value, *modules):
    for module in modules:
        module.fp32_precision = value


NEW = pytest.mark.skipif(len(PRECISIONS) == 1, reason="new in torch 2.9")
CHANGES = {
    "default": lambda: None,
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
    "old": lambda: setattr(backends.cuda.matmul, "allow_tf32", True),
    "old, off": lambda: setattr(backends.cudnn, "allow_tf32", False),
    "warn_only": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "deterministic": lambda: torch.use_deterministic_algorithms(True),
    "fp64": lambda: torch.set_default_dtype(torch.float64),
}
NEW_CHANGES = {
    "all": lambda: set_fp32("tf32", backends),
    "cudnn": lambda: set_fp32("tf32", backends.cudnn),
    "products": lambda: set_fp32("tf32", backends.cuda.matmul),
    "products, CPU": lambda: set_fp32("bf16", backends.mkldnn.matmul),
    "no convolutions": lambda: set_fp32("ieee", backends.cudnn.conv),
    "no cudnn": lambda: set_fp32("none", backends.cudnn.conv, backends.cudnn.rnn),
}


@pytest.fixture
def changed(request):
    """Change settings of torch in the test."""
    with restored_global_state(), full_fp32():
        torch.set_float32_matmul_precision("highest")
        backends.cudnn.allow_tf32 = True
        request.param()
        yield


@pytest.mark.parametrize(
    "changed",
    [
        *(pytest.param(change, id=name) for name, change in CHANGES.items()),
        *(pytest.param(change, id=name, marks=NEW) for name, change in NEW_CHANGES.items()),
    ],
    indirect=True,
)
def test_settings_of_torch(changed):
    before = settings_of_torch()
    with restored_global_state(), full_fp32():
        inside = settings_of_torch()
        assert inside["matmul"] == "highest"
        assert inside["cublas"] is False
        assert inside["cudnn"] is False
        assert {value for name, value in inside.items() if name.startswith("fp32")} <= {
            None,
            "none",
            "ieee",
        }
        assert inside["type"] is torch.float32
        torch.use_deterministic_algorithms(False)
    assert settings_of_torch() == before
    if len(PRECISIONS) > 1:  # a setting that was inherited is inherited again
        set_fp32("ieee", backends)
        inherited = settings_of_torch()
        set_fp32(before["fp32 0"], backends)
        with restored_global_state(), full_fp32():
            pass
        set_fp32("ieee", backends)
        assert settings_of_torch() == inherited


@pytest.mark.parametrize("changed", [CHANGES["medium"], NEW_CHANGES["all"]], indirect=True)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_run_under_other_settings(changed, mode, ours):
    torch.set_default_dtype(torch.float64)
    torch.use_deterministic_algorithms(True, warn_only=True)
    before = settings_of_torch()
    with mode():
        run = ours(mlp_head=True, deterministic=True)
    assert settings_of_torch() == before
    assert {weight.dtype for weight in run.model.state_dict().values()} == {torch.float32}


def test_random_states_and_environment(monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    before = dict(os.environ)
    set_seed(3)
    expected = [random.random(), np.random.rand(), torch.rand(2).tolist()]
    set_seed(3)
    with restored_global_state():
        set_seed(4)
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        del os.environ["ACCELERATE_MIXED_PRECISION"]
    assert [random.random(), np.random.rand(), torch.rand(2).tolist()] == expected
    assert dict(os.environ) == before


def beside_a_process_group():
    """Run with the caller's process group."""
    caller = Accelerator()
    with restored_global_state():
        ours = make_accelerator(TrainingSettings(mixed_precision="no"))
        assert ours.num_processes == 2
    assert caller.gather(torch.tensor([caller.process_index])).tolist() == [0, 1]
    caller.end_training()
    assert not dist.is_initialized()


@pytest.mark.slow(15)
def test_the_callers_process_group_stays():
    spawn(2, beside_a_process_group)


def repeat_under_torchrun(port):
    """Run twice with torchrun's store, in which a second group would find the first one's keys."""
    os.environ |= {"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    for _ in range(2):
        if os.environ["RANK"] == "0":
            time.sleep(1)  # the main process writes card and page
        with restored_global_state():
            ours = make_accelerator(TrainingSettings(mixed_precision="no"))
            assert ours.gather(torch.tensor([ours.process_index])).tolist() == [0, 1]


@pytest.mark.slow(15)
def test_two_runs_in_one_launch():
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    spawn(2, repeat_under_torchrun, store.port)
