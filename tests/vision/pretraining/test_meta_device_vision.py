"""A step of pre-training with every tensor on the meta device, augmentation included, for want of a GPU."""

import pytest
import torch
from meta_cases import META, leave_autocast_out, step, to_meta

from dystress_text.training.accelerator import make_accelerator
from vision.pretraining.run import VisionRun
from vision.pretraining.settings import WITHOUT_TEMPERATURE
from vision.train import parse

SHORT = ["--preset=quickstart", "--max_train_samples=64", "--train_batch_size=16", "--out_dim=8", "--knn_k=0"]


@pytest.mark.parametrize("objective", ["ntxent", "infonce", "dcl", "dclw", "queue", *WITHOUT_TEMPERATURE])
def test_a_step(objective, tmp_path, monkeypatch):
    """Encoder and objective are moved; the images stay on the CPU, and their views follow their batch."""
    leave_autocast_out(monkeypatch)
    settings = parse([*SHORT, f"--objective={objective}", f"--output_dir={tmp_path / 'out'}", "--blur=true"])
    task = VisionRun(settings, make_accelerator(settings.engine)).task
    to_meta(task)
    # torch's fused optimisers do not know the meta device
    assert step(task, 16, lambda network: torch.optim.SGD(network.parameters(), 0.1, momentum=0.9)).device == META
