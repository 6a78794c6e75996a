"""Random numbers, kernels, precision and failures of a GPU, as far as a CPU can tell."""

import subprocess
import sys

import pytest
import torch

from dystress_text.finetuning.task import TextTask
from dystress_text.programs.train import main
from dystress_text.training.accelerator import make_accelerator, peak_memory
from dystress_text.training.global_state import restored_global_state
from dystress_text.training.settings import TrainingSettings


@pytest.mark.parametrize("deterministic", [False, True])
def test_kernels(deterministic, tmp_path):
    with restored_global_state():
        make_accelerator(TrainingSettings(output_dir=str(tmp_path), deterministic=deterministic))
        assert not torch.backends.cuda.cudnn_sdp_enabled()  # it rounds the dropout rate
        assert torch.backends.cudnn.benchmark == (not deterministic)
        assert torch.are_deterministic_algorithms_enabled() == deterministic


def test_text_is_trained_in_fp32(tiny_run, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    embed = TextTask.embed
    allowed = set()

    def watched(self, model, batch):
        allowed.add(torch.backends.cudnn.allow_tf32)
        return embed(self, model, batch)

    monkeypatch.setattr(TextTask, "embed", watched)
    assert main([*tiny_run, f"--output_dir={tmp_path}", "--max_steps=1", "--eval_steps=0"]) == 0
    assert allowed == {False}
    assert torch.backends.cudnn.allow_tf32


def test_full_device_is_one_line(tiny_run, tmp_path, monkeypatch, capsys):
    embed = TextTask.embed
    calls = []

    def failing(self, model, batch):
        calls.append(0)
        if len(calls) == 6:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return embed(self, model, batch)

    monkeypatch.setattr(TextTask, "embed", failing)
    flags = ["--max_steps=8", "--save_steps=2", "--eval_steps=0", f"--output_dir={tmp_path}"]
    assert main([*tiny_run, *flags]) == 2
    line = capsys.readouterr().err.strip().split("\n")[-1]
    assert line.startswith("dystress train: error: after step 5 of 8")
    assert "--grad_cache_chunk" in line
    assert (tmp_path / "checkpoint-4").is_dir()


def test_peak_memory_is_that_of_the_kernel():
    resource = pytest.importorskip("resource")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    after = peak_memory(torch.device("cpu"))
    assert before <= after <= before + 2**27


WITHOUT = """
import sys
import psutil, torch
sys.modules["resource"] = sys.modules["fcntl"] = None
import dystress_text.__main__, dystress_text.programs.train, vision.train
from dystress_text.training.accelerator import peak_memory
print(peak_memory(torch.device("cpu")))
"""


def test_the_programs_start_where_resource_and_fcntl_are_missing():
    command = [sys.executable, "-W", "ignore", "-c", WITHOUT]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert 2**26 < int(done.stdout) < 2**33
