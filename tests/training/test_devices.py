"""What holds on a GPU, as far as a machine without one can tell: seeds, kernels, precision,
checkpoints, failures.
"""

import importlib.util
import os

import pytest
import torch

from dystress_text.evaluation.classifier import initial_layer
from dystress_text.finetuning.task import SimcseTask
from dystress_text.programs.train import main
from dystress_text.training.accelerator import limit_kernel_caches, make_accelerator
from dystress_text.training.global_state import restored_global_state
from dystress_text.training.settings import TrainingSettings


@pytest.fixture(autouse=True)
def _kernels_as_before():
    before = (
        torch.backends.cuda.cudnn_sdp_enabled(),
        torch.backends.cudnn.benchmark,
        torch.backends.cudnn.allow_tf32,
    )
    yield
    torch.backends.cuda.enable_cudnn_sdp(before[0])
    _, torch.backends.cudnn.benchmark, torch.backends.cudnn.allow_tf32 = before
    torch.use_deterministic_algorithms(False)


def test_draws_of_an_evaluation_do_not_reseed_a_gpu(monkeypatch):
    """torch.manual_seed reseeds every device, after which dropout would repeat itself."""
    from vision_cases import tiny_encoder

    from vision.evaluation.fine_tuning import new_classifier

    encoder = tiny_encoder()
    monkeypatch.setattr(torch.cuda, "manual_seed_all", lambda seed: pytest.fail("reseeds the GPU"))
    state = torch.get_rng_state()
    layers = [initial_layer(4, 3).weight for _ in range(2)]
    heads = [new_classifier(encoder, 3, seed).projector.weight for seed in (1, 1, 2)]
    assert torch.equal(*layers)
    assert torch.equal(heads[0], heads[1])
    assert not torch.equal(heads[0], heads[2])
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("deterministic", [False, True])
def test_kernels(deterministic, tmp_path):
    torch.backends.cudnn.allow_tf32 = True
    make_accelerator(TrainingSettings(output_dir=str(tmp_path), deterministic=deterministic))
    assert not torch.backends.cuda.cudnn_sdp_enabled()  # it rounds the dropout rate
    assert torch.backends.cudnn.allow_tf32  # torch's default, which the authors of images have
    assert torch.get_float32_matmul_precision() == "highest"
    assert torch.backends.cudnn.benchmark == (not deterministic)
    assert torch.are_deterministic_algorithms_enabled() == deterministic


def test_text_is_trained_in_fp32_and_python_has_its_own_precision_again(
    tiny_run, tmp_path, monkeypatch
):
    torch.backends.cudnn.allow_tf32 = True
    embed, allowed = SimcseTask.embed, set()

    def watched(self, model, batch):
        allowed.add(torch.backends.cudnn.allow_tf32)
        return embed(self, model, batch)

    monkeypatch.setattr(SimcseTask, "embed", watched)
    assert main([*tiny_run, f"--output_dir={tmp_path}", "--max_steps=1", "--eval_steps=0"]) == 0
    assert allowed == {False}
    assert torch.backends.cudnn.allow_tf32


@pytest.mark.filterwarnings("error")
def test_the_random_numbers_of_every_gpu_are_put_back_without_a_warning(monkeypatch):
    states = [torch.tensor(0), torch.tensor(1)]
    monkeypatch.setattr(torch.random, "_fork_rng_warned_already", False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: states[device])
    monkeypatch.setattr(
        torch.cuda, "set_rng_state", lambda state, device: states.__setitem__(device, state)
    )
    with restored_global_state():
        states[:] = [torch.tensor(7)] * 2
    assert states == [0, 1]


FAILED = getattr(torch, "AcceleratorError", RuntimeError)  # before 2.8


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB"),
            ": the device is out of memory, with ",
        ),
        (
            FAILED("CUDA error: unspecified launch failure\nCUDA kernel errors might"),
            ": the device has failed "
            "(CUDA error: unspecified launch failure CUDA kernel errors might).",
        ),
    ],
)
def test_a_device_that_fails_is_one_line_and_checkpoints_stay(
    error, said, tiny_run, tmp_path, monkeypatch, capsys
):
    embed, calls = SimcseTask.embed, []

    def failing(self, model, batch):
        calls.append(0)
        if len(calls) == 6:
            raise error
        return embed(self, model, batch)

    monkeypatch.setattr(SimcseTask, "embed", failing)
    assert (
        main(
            [
                *tiny_run,
                f"--output_dir={tmp_path}",
                "--max_steps=8",
                "--save_steps=2",
                "--eval_steps=0",
            ]
        )
        == 2
    )
    line = capsys.readouterr().err.strip().split("\n")[-1]
    assert said in line
    assert line.startswith(
        f"dystress train: error: after step 5 of 8, batch of 8, in {str(tmp_path)!r}: "
    )
    assert line.endswith("complete checkpoints stay as they are")
    assert ("--grad_cache_chunk" in line) == isinstance(error, torch.OutOfMemoryError)
    assert (tmp_path / "checkpoint-4").is_dir()


def test_caches_of_kernels_are_bounded_and_a_bound_of_the_user_stays(monkeypatch):
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "7")
    monkeypatch.delenv("LRU_CACHE_CAPACITY", raising=False)
    limit_kernel_caches()
    assert (os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"], os.environ["LRU_CACHE_CAPACITY"]) == (
        "7",
        "32",
    )


@pytest.mark.parametrize("name", ["no-tracker", "comet_ml"])
def test_a_tracker_that_accelerate_does_not_have_is_one_line(name, flags, capsys):
    assert importlib.util.find_spec("comet_ml") is None
    assert main([*flags, f"--report_to={name}"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert name in said
