"""Pre-training images a second, beside the common way: Pillow transforms in worker processes, NCHW, eager.

    python tests/benchmarks/pretraining_speed.py [--architecture resnet18] [--batch 128] [--steps 6] [--repeats 3]

The same network, loss, precision, batch and threads, on random 32 x 32 images; the contestants take turns. The common
way feeds a bare loop from a DataLoader with as many workers as threads; this project's is its engine.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import random
import tempfile
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from devices import here, in_turn, print_rates, wait
from numpy.typing import NDArray
from PIL import Image, ImageEnhance
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from dystress_text.core import CosineTemperature, NTXentLoss
from dystress_text.training.accelerator import make_accelerator
from dystress_text.training.settings import EngineSettings
from dystress_text.training.task import Run
from dystress_text.training.trainer import Trainer
from vision.data.augment import SimclrAugment
from vision.data.crops import RandomCrop
from vision.data.images import ImageSet
from vision.data.views import RandomViews
from vision.pretraining.allocator import keep_freed_memory
from vision.pretraining.task import PretrainTask
from vision.resnet import build_encoder

RATE = 0.06
SIDE = 32
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def pillow_crop(image: Image.Image) -> Image.Image:
    """Random resized crop and flip; torchvision draws again where the box does not fit, here it is cut to fit."""
    area, aspect = SIDE**2 * random.uniform(0.2, 1), math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
    width, height = (min(SIDE, round(math.sqrt(x))) for x in (area * aspect, area / aspect))
    left, top = random.randint(0, SIDE - width), random.randint(0, SIDE - height)
    image = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, (left, top, left + width, top + height))
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT) if random.random() < 0.5 else image


def pillow_hue(image: Image.Image, turns: float) -> Image.Image:
    """torchvision's adjust_hue."""
    hue, saturation, value = image.convert("HSV").split()
    turned = (np.asarray(hue).astype(np.int16) + round(turns * 255)).astype(np.uint8)
    return Image.merge("HSV", (Image.fromarray(turned), saturation, value)).convert("RGB")


def pillow_view(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> Tensor:
    """One view, from (h, w, 3)."""
    image = pillow_crop(Image.fromarray(pixels))
    if random.random() < 0.8:
        for operation in random.sample(range(4), 4):
            if operation == 3:
                image = pillow_hue(image, random.uniform(-0.1, 0.1))
            else:
                enhancer = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)[operation]
                image = enhancer(image).enhance(random.uniform(0.6, 1.4))
    if random.random() < 0.2:
        image = image.convert("L").convert("RGB")
    values = torch.from_numpy(np.asarray(image).copy()).permute(2, 0, 1).float().div_(255)
    return (values - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)


class TwoViews(Dataset[tuple[Tensor, Tensor]]):
    """Two Pillow views of each picture."""

    def __init__(self, pictures: NDArray[np.uint8]) -> None:
        self.pictures = pictures  # (n, h, w, 3)

    def __len__(self) -> int:
        """Pictures."""
        return len(self.pictures)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Both views of one."""
        return pillow_view(self.pictures[index]), pillow_view(self.pictures[index])


def ours(images: Tensor, architecture: str, batch: int, precision: str) -> float:
    """Seconds of the engine."""
    keep_freed_memory()  # as vision/train.py does
    encoder = build_encoder(architecture)
    data = ImageSet(images, None, None, (), "random", None, SIDE)
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()):
        settings = EngineSettings(
            output_dir=folder, train_batch_size=batch, learning_rate=RATE, mixed_precision=precision, max_grad_norm=0
        )
        accelerator = make_accelerator(settings)
        encoder.to(accelerator.device)
        views = RandomViews(data, SimclrAugment(RandomCrop(SIDE, 0.2), MEAN, STD))
        task = PretrainTask(encoder, views, NTXentLoss(CosineTemperature(0.07, 0.2)), one_pass=True)
        task.save = lambda folder: None  # type: ignore[method-assign]  # saving is not training
        run = Run(
            task=task,
            samples=len(data),
            make_optimizer=lambda network: torch.optim.SGD(network.parameters(), lr=RATE, momentum=0.9),
        )
        return Trainer(run, settings, accelerator).fit().train_seconds


def common(images: Tensor, architecture: str, batch: int, precision: str) -> float:
    """Seconds of the common way."""
    keep_freed_memory(False)
    device = here()
    encoder = build_encoder(architecture).to(device).train()
    encoder.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    loss = NTXentLoss(CosineTemperature(0.07, 0.2))
    optimizer = torch.optim.SGD(encoder.parameters(), lr=RATE, momentum=0.9)
    pictures = np.ascontiguousarray(images.permute(0, 2, 3, 1).numpy())
    loader = DataLoader(
        TwoViews(pictures), batch, shuffle=True, drop_last=True, num_workers=torch.get_num_threads(),
        pin_memory=device.type == "cuda", persistent_workers=True,
    )  # fmt: skip
    batches = iter(loader)  # workers start before the clock does
    start = time.perf_counter()
    for first, second in batches:
        views = torch.cat([first, second]).to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=precision == "bf16"):
            features = encoder.backbone(views).pooler_output.flatten(1)
            embeddings = encoder.projector(features)
        loss(*embeddings.float().chunk(2)).backward()
        optimizer.step()
        optimizer.zero_grad()
    wait(device)
    return time.perf_counter() - start


def main() -> None:
    """Print the table and its JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--architecture", default="resnet18")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--precision", choices=["bf16", "no"], default="bf16")
    options = parser.parse_args()
    images = torch.randint(0, 256, (options.steps * options.batch, 3, SIDE, SIDE), dtype=torch.uint8)

    def timed(contestant: Callable[[Tensor, str, int, str], float]) -> float:
        torch.manual_seed(0)
        return contestant(images, options.architecture, options.batch, options.precision)

    seconds = in_turn({"this project": partial(timed, ours), "common way": partial(timed, common)}, options.repeats)
    print_rates(f"{options.architecture}, CIFAR stem, batch {options.batch}, {options.precision}", len(images), seconds)


if __name__ == "__main__":
    main()
