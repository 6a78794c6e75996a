"""A run beside the user's own accelerators and trainers, with any global settings of torch."""

import copy
import os
import random
import time
from functools import partial

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
from torch import backends

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


@pytest.mark.parametrize(("precision", "accumulation"), [({}, 2), ({"mixed_precision": "bf16"}, 1)])
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


PRECISIONS = {}
if hasattr(backends, "fp32_precision"):  # new in torch 2.9
    PRECISIONS = {
        "all": backends,
        "cudnn": backends.cudnn,
        "convolutions": backends.cudnn.conv,
        "recurrent": backends.cudnn.rnn,
        "products": backends.cuda.matmul,
        "products on a CPU": backends.mkldnn.matmul,
    }


def settings_of_torch():
    """Return all settings; the error's type in place of one that cannot be read."""
    readers = {
        "matmul": torch.get_float32_matmul_precision,
        "cublas": lambda: backends.cuda.matmul.allow_tf32,
        "cudnn": lambda: backends.cudnn.allow_tf32,
        "debug mode": torch.get_deterministic_debug_mode,
        "type": torch.get_default_dtype,
        "gradients": torch.is_grad_enabled,
        "inference": torch.is_inference_mode_enabled,
    }
    for name, module in PRECISIONS.items():
        readers[f"fp32, {name}"] = partial(getattr, module, "fp32_precision")
    values = {}
    for name, read in readers.items():
        try:
            values[name] = read()
        except RuntimeError as error:
            values[name] = type(error)
    return values


CHANGES = {
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
    "old, off": lambda: setattr(backends.cudnn, "allow_tf32", False),
    "warn_only": lambda: torch.use_deterministic_algorithms(True, warn_only=True),
    "fp64": lambda: torch.set_default_dtype(torch.float64),
}
for name, module in PRECISIONS.items():
    value = "bf16" if name == "products on a CPU" else "tf32"
    CHANGES[f"fp32, {name}"] = partial(setattr, module, "fp32_precision", value)


@pytest.fixture
def changed(request):
    """Change settings of torch in the test."""
    with restored_global_state(), full_fp32():
        torch.set_float32_matmul_precision("highest")
        backends.cudnn.allow_tf32 = True
        CHANGES[request.param]()
        yield


@pytest.mark.parametrize("changed", CHANGES, indirect=True)
def test_settings_of_torch(changed):
    before = settings_of_torch()
    with restored_global_state(), full_fp32():
        inside = settings_of_torch()
        precisions = {value for name, value in inside.items() if name.startswith("fp32")}
        assert precisions <= {"none", "ieee"}
        expected = {"matmul": "highest", "cublas": False, "cudnn": False, "type": torch.float32}
        assert expected.items() <= inside.items()
        torch.use_deterministic_algorithms(False)
    assert settings_of_torch() == before
    if PRECISIONS:  # a setting that was inherited is inherited again
        backends.fp32_precision = "ieee"
        inherited = settings_of_torch()
        backends.fp32_precision = before["fp32, all"]
        with restored_global_state(), full_fp32():
            pass
        backends.fp32_precision = "ieee"
        assert settings_of_torch() == inherited


@pytest.mark.parametrize("changed", ["medium", [*CHANGES][-1]], indirect=True)
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
