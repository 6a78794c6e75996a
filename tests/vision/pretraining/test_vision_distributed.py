"""Image encoders on several processes, through the real engine, in fp64."""

import os
from contextlib import nullcontext
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from conftest import reset_accelerator
from encoder_cases import colour_images, tiny_encoder
from processes import spawn
from safetensors.torch import load_file
from torch import nn
from trainer_cases import log_of, run

from dystress_text.core import CosineTemperature, NTXentLoss, ProcessGather, QueueInfoNCELoss
from dystress_text.training.settings import EngineSettings
from vision.data.views import RandomViews
from vision.pretraining.build_task import make_optimizer
from vision.pretraining.settings import VisionSettings
from vision.pretraining.task import PretrainTask, QueueTask

STEPS, BATCH, IMAGES = 6, 8, 21  # two batches an epoch, and 5 images that sit it out


class TurningViews(RandomViews):
    """Views without chance: as they are, and upside down."""

    def on_device(self, batch):
        images = batch["images"].double() / 255 - 0.5
        return [images, images.flip(2)]


def each_image_alone(module):
    """The module without batch statistics."""
    for name, child in module.named_children():
        is_norm = isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d)
        setattr(module, name, nn.GroupNorm(1, child.num_features) if is_norm else each_image_alone(child))
    return module


def train(folder, kind):
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    gather = ProcessGather(int(os.environ["RANK"]), processes) if processes > 1 else None
    encoder, views = each_image_alone(tiny_encoder(out_dim=16)).double(), TurningViews(colour_images(IMAGES), None)
    if kind == "views":
        task = PretrainTask(encoder, views, NTXentLoss(CosineTemperature(0.1, 0.2), gather=gather))
    else:
        objective = QueueInfoNCELoss(CosineTemperature(0.1, 0.2), 24, 16, gather=gather).double()
        torch.manual_seed(3)
        objective.queue.copy_(F.normalize(torch.randn(objective.queue.shape, dtype=torch.float64), dim=-1))
        task = QueueTask(encoder, views, objective, momentum=0.9, autocast=nullcontext)
    engine, vision = EngineSettings(learning_rate=0.05), VisionSettings(optimizer="sgd")
    optimizer = partial(make_optimizer, engine=engine, vision=vision, batch_size=BATCH)
    options = {"max_steps": STEPS, "train_batch_size": BATCH, "learning_rate": 0.05, "logging_steps": 1}
    _, trainer = run(task, views.images, folder, make_optimizer=optimizer, **options)
    trainer.accelerator.free_memory()
    reset_accelerator()


def train_all(folder, processes):
    for kind in ("views", "queue"):
        train(folder / f"{processes} {kind}", kind)


def results(folder):
    state = load_file(folder / "model.safetensors") | load_file(folder / "projector.safetensors")
    weights = torch.cat([w.flatten() for w in state.values()])
    return torch.tensor(log_of(folder, "loss"), dtype=torch.float64), weights


@pytest.mark.slow
def test_processes_equal_one(tmp_path):
    spawn(2, train_all, tmp_path, 2)
    train_all(tmp_path, 1)
    for kind in ("views", "queue"):
        for found, expected in zip(results(tmp_path / f"2 {kind}"), results(tmp_path / f"1 {kind}"), strict=True):
            assert len(found) == len(expected) > 0
            assert float((found - expected).norm() / expected.norm()) < 1e-10
