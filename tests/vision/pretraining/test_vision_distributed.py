"""Image encoders on several processes, through the real engine, in fp64."""

import json
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from conftest import reset_accelerator
from processes import spawn
from safetensors.torch import load_file
from torch import nn
from vision_cases import colour_images, tiny_encoder

from dystress_text.losses import CosineTemperature, NTXentLoss, ProcessGather, QueueInfoNCELoss
from dystress_text.training.accelerator import make_accelerator
from dystress_text.training.settings import TrainingSettings
from dystress_text.training.task import TrainingPlan
from dystress_text.training.trainer import Trainer
from vision.data.views import RandomViews
from vision.pretraining.build_task import make_optimizer
from vision.pretraining.settings import PretrainSettings, VisionSettings
from vision.pretraining.task import PretrainTask, QueueTask

STEPS = 6
BATCH = 8
IMAGES = 21  # two batches an epoch; 5 images are left over


class TurningViews(RandomViews):
    """Views without chance: as they are, and upside down."""

    def on_device(self, batch):
        images = batch["images"].double() / 255 - 0.5
        return [images, images.flip(2)]


def each_image_alone(module):
    """The module without batch statistics."""
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm1d | nn.BatchNorm2d):
            setattr(module, name, nn.GroupNorm(1, child.num_features))
        else:
            each_image_alone(child)
    return module


def make_task(kind, accelerator):
    processes = accelerator.num_processes
    gather = ProcessGather(accelerator.process_index, processes) if processes > 1 else None
    temperature = CosineTemperature(0.1, 0.2)
    encoder = each_image_alone(tiny_encoder()).double()
    views = TurningViews(colour_images(IMAGES), None)
    if kind == "views":
        return PretrainTask(encoder, views, NTXentLoss(temperature, gather=gather))
    objective = QueueInfoNCELoss(temperature, queue_size=24, dim=16, gather=gather).double()
    torch.manual_seed(3)
    keys = torch.randn(objective.queue.shape, dtype=torch.float64)
    objective.queue.copy_(F.normalize(keys, dim=-1))
    return QueueTask(encoder, views, objective, momentum=0.9, autocast=accelerator.autocast)


def train(folder, kind):
    settings = TrainingSettings(
        output_dir=str(folder),
        mixed_precision="no",
        max_steps=STEPS,
        train_batch_size=BATCH,
        learning_rate=0.05,
        logging_steps=1,
        metric_for_best_model=None,
    )
    accelerator = make_accelerator(settings)
    folder.mkdir(parents=True, exist_ok=True)
    task = make_task(kind, accelerator)
    options = PretrainSettings(VisionSettings(), settings, task.objective, preset="")
    optimizer = partial(make_optimizer, settings=options)
    plan = TrainingPlan(task=task, samples=IMAGES, make_optimizer=optimizer)
    Trainer(plan, settings, accelerator).fit()
    accelerator.free_memory()
    reset_accelerator()


def train_all(folder, processes):
    for kind in ("views", "queue"):
        train(folder / f"{processes} {kind}", kind)


def results(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    state = load_file(folder / "model.safetensors") | load_file(folder / "projector.safetensors")
    weights = torch.cat([w.flatten() for w in state.values()])
    return torch.tensor([line["loss"] for line in lines], dtype=torch.float64), weights


@pytest.mark.slow
def test_processes_equal_one(tmp_path):
    spawn(2, train_all, tmp_path, 2)
    train_all(tmp_path, 1)
    for kind in ("views", "queue"):
        of_two = results(tmp_path / f"2 {kind}")
        of_one = results(tmp_path / f"1 {kind}")
        for found, expected in zip(of_two, of_one, strict=True):
            assert len(found) == len(expected) > 0
            assert float((found - expected).norm() / expected.norm()) < 1e-10
