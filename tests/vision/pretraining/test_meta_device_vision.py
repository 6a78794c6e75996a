"""A step of pre-training with every tensor on the meta device, augmentation included, for want of a GPU."""

from dataclasses import replace

import pytest
import torch
from meta_cases import META, leave_autocast_out, step, to_meta

from dystress_text.training.accelerator import make_accelerator
from vision.pretraining.run import build_vision_run
from vision.pretraining.settings import WITHOUT_TEMPERATURE
from vision.train import parse

SHORT = ["--preset=quickstart", "--max_train_samples=64", "--train_batch_size=16", "--out_dim=8", "--knn_k=0"]


@pytest.fixture(autouse=True)
def _left_out(monkeypatch):
    leave_autocast_out(monkeypatch)


def meta_run(*flags):
    """A run whose encoder, objective and views were moved; the images stay on the CPU."""
    settings = parse([*SHORT, *flags])
    run = build_vision_run(settings, make_accelerator(settings.engine), lambda *_: None)
    to_meta(run.task)
    views = run.task.views
    run.task.views = replace(
        views, augment=views.augment.to(META), others=tuple((a.to(META), n) for a, n in views.others)
    )
    return run


def sgd(run):
    """torch's fused optimisers do not know the meta device."""

    def make(network):
        if run.settings.vision.optimizer == "lars":
            return run.make_optimizer(network)
        return torch.optim.SGD(network.parameters(), 0.1, momentum=0.9)

    return make


@pytest.mark.parametrize("objective", ["ntxent", "infonce", "dcl", "dclw", "queue", *WITHOUT_TEMPERATURE])
def test_a_step(objective, tmp_path):
    run = meta_run(f"--objective={objective}", f"--output_dir={tmp_path / 'out'}", "--blur=true")
    assert step(run.task, 16, sgd(run)).device == META
