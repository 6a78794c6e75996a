"""Image encoders on several processes, through the real engine, in fp64: exact in spite of batch statistics."""

import copy
import json

import pytest
import torch
import torch.nn.functional as F
from conftest import reset_accelerator
from encoder_cases import colour_images, tiny_encoder
from processes import spawn
from safetensors.torch import load_file
from torch import nn

from dystress_text.core import CosineTemperature, NTXentLoss, ProcessGather, QueueInfoNCELoss
from dystress_text.core.gather import LocalGather
from dystress_text.training.accelerator import make_accelerator
from dystress_text.training.settings import EngineSettings
from dystress_text.training.task import Run
from dystress_text.training.trainer import Trainer
from vision.data.views import RandomViews
from vision.pretraining.batchnorm import CpuSyncBatchNorm, synchronise
from vision.pretraining.build_task import make_optimizer
from vision.pretraining.settings import VisionSettings
from vision.pretraining.task import PretrainTask, QueueTask

STEPS, BATCH, IMAGES = 6, 8, 21  # two batches an epoch, and 5 images that sit it out


class TurningViews(RandomViews):
    """Views without chance: as they are, and upside down."""

    def on_device(self, batch):
        images = batch["images"].double() / 255 - 0.5
        return [images, images.flip(2)]


KINDS = ("views", "queue")


def train(folder, kind):
    settings = EngineSettings(
        output_dir=str(folder), mixed_precision="no", max_steps=STEPS, train_batch_size=BATCH, learning_rate=0.05,
        logging_steps=1, metric_for_best_model=None,
    )  # fmt: skip
    accelerator = make_accelerator(settings)
    folder.mkdir(parents=True, exist_ok=True)
    processes = accelerator.num_processes
    gather = ProcessGather(accelerator.process_index, processes) if processes > 1 else None
    encoder = tiny_encoder(out_dim=16).double()
    if gather is not None:
        synchronise(encoder, gather, accelerator.device)
    images = colour_images(IMAGES)
    if kind == "views":
        objective = NTXentLoss(CosineTemperature(0.1, 0.2), gather=gather)
        task = PretrainTask(encoder, TurningViews(images, None), objective)
    else:
        objective = QueueInfoNCELoss(CosineTemperature(0.1, 0.2), 24, 16, gather=gather).double()
        torch.manual_seed(3)
        objective.queue.copy_(F.normalize(torch.randn(objective.queue.shape, dtype=torch.float64), dim=-1))
        task = QueueTask(encoder, TurningViews(images, None), objective, momentum=0.9, autocast=accelerator.autocast)
    vision = VisionSettings(optimizer="sgd")
    run = Run(
        task=task, samples=IMAGES, make_optimizer=lambda network: make_optimizer(network, settings, vision, BATCH)
    )
    Trainer(run, settings, accelerator).fit()
    accelerator.free_memory()
    reset_accelerator()


def train_all(folder):
    for kind in KINDS:
        train(folder / f"two {kind}", kind)


def results(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    state = load_file(folder / "model.safetensors") | load_file(folder / "projector.safetensors")
    weights = torch.cat([w.flatten() for n, w in state.items() if "running" not in n and w.is_floating_point()])
    running = torch.cat([w.flatten() for name, w in state.items() if "running" in name])
    return torch.tensor([line["loss"] for line in lines], dtype=torch.float64), weights, running


@pytest.mark.slow
def test_processes_equal_one(tmp_path):
    spawn(2, train_all, tmp_path)
    for kind in KINDS:
        train(tmp_path / f"one {kind}", kind)
        for found, expected in zip(results(tmp_path / f"two {kind}"), results(tmp_path / f"one {kind}"), strict=True):
            assert len(found) == len(expected) > 0
            assert float((found - expected).norm() / expected.norm()) < 1e-10


@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 4, 3)])
def test_the_layer_is_torchs_for_one_process(shape):
    torch.manual_seed(0)
    plain = (nn.BatchNorm1d if len(shape) == 2 else nn.BatchNorm2d)(5).double()
    nn.init.normal_(plain.weight)
    ours = CpuSyncBatchNorm(copy.deepcopy(plain), LocalGather())
    for _ in range(3):
        x = (torch.randn(shape, dtype=torch.float64) * 3 + 7).requires_grad_()
        y = x.detach().clone().requires_grad_()
        grad = torch.randn(shape, dtype=torch.float64)
        expected, found = plain(x), ours(y)
        expected.backward(grad)
        found.backward(grad)
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(y.grad, x.grad, rtol=1e-10, atol=1e-12)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[name], value, rtol=1e-12, atol=1e-12)
    for (name, a), b in zip(plain.named_parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-10, atol=1e-12, msg=name)
    torch.testing.assert_close(ours.eval()(x), plain.eval()(x))
