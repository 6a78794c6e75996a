"""What holds on a GPU, as far as a machine without one can tell: seeds, kernels, precision, checkpoints, failures."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch
from conftest import reset_accelerator
from safetensors.torch import load_file

from dystress_text.errors import UserError
from dystress_text.evaluation.classifier import initial_layer
from dystress_text.files.whole import versions
from dystress_text.simcse.task import SimcseTask
from dystress_text.train import main
from dystress_text.training import accelerator as module
from dystress_text.training.accelerator import check_processes, make_accelerator, set_tf32
from dystress_text.training.checkpoints import SavedState, identity_of
from dystress_text.training.settings import EngineSettings


@pytest.fixture(autouse=True)
def _kernels_as_before():
    before = torch.backends.cuda.cudnn_sdp_enabled(), torch.backends.cudnn.benchmark
    yield
    torch.backends.cuda.enable_cudnn_sdp(before[0])
    torch.backends.cudnn.benchmark = before[1]
    torch.use_deterministic_algorithms(False)


def test_draws_of_an_evaluation_do_not_reseed_a_gpu(monkeypatch):
    """torch.manual_seed reseeds every device, after which dropout would repeat itself."""
    from encoder_cases import tiny_encoder

    from vision.evaluation.fine_tuning import Classifier

    encoder = tiny_encoder()
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("reseeds the GPU"))
    state = torch.get_rng_state()
    layers = [initial_layer(4, 3).weight for _ in range(2)]
    heads = [Classifier(encoder, 3, seed).layer.weight for seed in (1, 1, 2)]
    assert torch.equal(*layers)
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("deterministic", [False, True])
def test_kernels(deterministic, tmp_path):
    make_accelerator(EngineSettings(output_dir=str(tmp_path), deterministic=deterministic))
    assert not torch.backends.cuda.cudnn_sdp_enabled()  # it rounds the dropout rate
    assert torch.backends.cudnn.benchmark == (not deterministic)
    assert torch.are_deterministic_algorithms_enabled() == deterministic


def test_deterministic_kernels_change_nothing_on_the_cpu(tiny_run, tmp_path):
    for name, more in (("plain", []), ("deterministic", ["--deterministic"])):
        assert main([*tiny_run, f"--output_dir={tmp_path / name}", "--max_steps=3", *more]) == 0
        reset_accelerator()
    plain, other = (load_file(tmp_path / name / "model.safetensors") for name in ("plain", "deterministic"))
    assert all(torch.equal(plain[name], other[name]) for name in plain)


def test_a_checkpoint_of_another_kind_of_device_is_refused(tiny_run, tmp_path, monkeypatch, capsys):
    flags = [*tiny_run, f"--output_dir={tmp_path}", "--max_steps=4", "--save_steps=2"]
    elsewhere = {"device": "cuda"}
    with monkeypatch.context() as patch:
        patch.setattr("dystress_text.training.trainer.identity_of", lambda *a: identity_of(*a) | elsewhere)
        assert main(flags) == 0
    reset_accelerator()
    assert main([*flags, "--resume_from_checkpoint"]) == 2
    assert "(device was cuda, is cpu)" in capsys.readouterr().err


def test_an_older_checkpoint_does_not_say_its_device(tiny_run, tmp_path, monkeypatch):
    flags = [*tiny_run, f"--output_dir={tmp_path}", "--max_steps=4", "--save_steps=2"]

    def older(*arguments):
        return {
            name: value for name, value in identity_of(*arguments).items() if name not in ("device", "deterministic")
        }

    with monkeypatch.context() as patch:
        patch.setattr("dystress_text.training.trainer.identity_of", older)
        assert main(flags) == 0
    reset_accelerator()
    stored = json.loads((tmp_path / "checkpoint-2" / "training_state.json").read_text())
    assert "device" not in stored["identity"]
    assert main([*flags, "--resume_from_checkpoint"]) == 0


def test_a_random_state_that_was_not_loaded_is_noticed(tiny_run, tmp_path, monkeypatch, capsys):
    flags = [*tiny_run, f"--output_dir={tmp_path}", "--max_steps=4", "--save_steps=2"]
    assert main(flags) == 0
    reset_accelerator()
    check = SavedState._check_random_states

    def lost(self, folder):
        torch.rand(1)  # as if accelerate had not set the state
        check(self, folder)

    monkeypatch.setattr(SavedState, "_check_random_states", lost)
    assert main([*flags, "--resume_from_checkpoint"]) == 2
    assert "the random state was not loaded" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB"),
         "batch of 8: the device is out of memory, with "),
        (torch.AcceleratorError("CUDA error: unspecified launch failure\nCUDA kernel errors might"),
         "batch of 8: the device has failed (CUDA error: unspecified launch failure CUDA kernel errors might)."),
    ],
)  # fmt: skip
def test_a_device_that_fails_is_one_line_and_checkpoints_stay(error, said, tiny_run, tmp_path, monkeypatch, capsys):
    embed, calls = SimcseTask.embed, []

    def failing(self, model, batch):
        calls.append(0)
        if len(calls) == 6:
            raise error
        return embed(self, model, batch)

    monkeypatch.setattr(SimcseTask, "embed", failing)
    assert main([*tiny_run, f"--output_dir={tmp_path}", "--max_steps=8", "--save_steps=2", "--eval_steps=0"]) == 2
    line = capsys.readouterr().err.strip().split("\n")[-1]
    assert said in line
    assert line.startswith("dystress train: error: after step 5 of 8")
    assert line.endswith("complete checkpoints stay as they are")
    assert ("--grad_cache_chunk" in line) == isinstance(error, torch.OutOfMemoryError)
    assert (tmp_path / "checkpoint-4").is_dir()


def test_what_a_gpu_cannot_do_is_refused(monkeypatch, tmp_path):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    with pytest.raises(UserError, match="--mixed_precision: this GPU has no bf16; use fp16 or no"):
        make_accelerator(EngineSettings(output_dir=str(tmp_path), mixed_precision="bf16"))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(UserError, match="--num_processes: 2 processes on this machine, which shows them 1 GPU"):
        check_processes()
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    check_processes()


def test_a_package_that_is_not_installed_ends_no_run():
    found = versions("no-such-package")
    assert found["no-such-package"] == "not installed"
    assert found["python"] == sys.version.split()[0]
    assert module.evaluation_dtype(make_accelerator(EngineSettings())) == torch.float32  # on a CPU


@pytest.mark.parametrize(("device", "known", "allowed", "expected"), [
    ("cuda", True, True, ["high"]), ("cuda", True, False, ["highest"]), ("cuda", False, True, []),
    ("cuda", False, False, []), ("cpu", True, True, []), ("cpu", True, False, []),
])  # fmt: skip
def test_tf32_is_for_gpus_that_have_it_and_others_say_so(device, known, allowed, expected, monkeypatch):
    chosen, said = [], []
    monkeypatch.setattr(torch, "set_float32_matmul_precision", chosen.append)
    monkeypatch.setattr(torch.cuda, "is_tf32_supported", lambda: known)
    set_tf32(SimpleNamespace(device=torch.device(device), print=said.append), allowed)
    assert chosen == expected
    nothing = f"--tf32 has no effect: this device ({device}) has no TF32"
    assert said == ([nothing] if allowed and not expected else [])
