"""What SimCLR's augmentation costs: in batch on the device, by kornia's modules, and image by image with Pillow.

    python tests/benchmarks/augmentation.py [--batch 128] [--repeats 15] [--threads 2] [--device cpu]

Two views of a batch of 32 x 32 images, the random parameters included; then crop, resize and flip alone. The ways take
turns, and medians are printed. Pillow's row is one process: workers divide it by their number at best.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
import time
from collections.abc import Callable

import kornia.augmentation as K
import numpy as np
import torch
from devices import wait
from PIL import Image, ImageEnhance
from torch import Tensor

from vision.data.augment import SimclrAugment
from vision.data.crops import RandomCrop, crop_resize_flip, draw_crops

SIDE = 32
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


def pillow_crop(image: Image.Image) -> Image.Image:
    """Random resized crop and flip, by torchvision's rule."""
    box = (0, 0, SIDE, SIDE)
    for _ in range(10):
        area, aspect = SIDE**2 * random.uniform(0.2, 1), math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        width, height = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < width <= SIDE and 0 < height <= SIDE:
            left, top = random.randint(0, SIDE - width), random.randint(0, SIDE - height)
            box = (left, top, left + width, top + height)
            break
    image = image.crop(box).resize((SIDE, SIDE), Image.Resampling.BILINEAR)
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


def measure(ways: dict[str, Callable[[], object]], repeats: int, device: torch.device) -> dict[str, dict[str, float]]:
    """Median milliseconds of each, of wall clock and of processor time; they take turns."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
    for turn in range(repeats + 2):
        for name, run in ways.items():
            wait(device)
            start, used = time.perf_counter(), time.process_time()
            run()
            wait(device)
            if turn >= 2:  # the first ones warm up
                times[name].append((time.perf_counter() - start, time.process_time() - used))
    return {
        name: dict(
            zip(("wall", "processor"), (1000 * statistics.median(t) for t in zip(*taken, strict=True)), strict=True)
        )
        for name, taken in times.items()
    }


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    """Measure and print a table and its JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    images = torch.randint(0, 256, (options.batch, 3, SIDE, SIDE), dtype=torch.uint8)
    pictures = list(images.permute(0, 2, 3, 1).numpy())
    images = images.to(device)

    ours = SimclrAugment(RandomCrop(SIDE, 0.2), MEAN, STD).to(device)
    crop = K.AugmentationSequential(K.RandomResizedCrop((SIDE, SIDE), scale=(0.2, 1.0)), K.RandomHorizontalFlip())
    whole = K.AugmentationSequential(
        K.RandomResizedCrop((SIDE, SIDE), scale=(0.2, 1.0)),
        K.RandomHorizontalFlip(),
        K.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8),
        K.RandomGrayscale(p=0.2),
        K.Normalize(torch.tensor(MEAN), torch.tensor(STD)),
    ).to(device)
    ways: dict[str, Callable[[], object]] = {
        "two views, this project": lambda: (ours(images), ours(images)),
        "two views, kornia's modules": lambda: (whole(images.float() / 255), whole(images.float() / 255)),
        "two views, Pillow image by image": lambda: torch.stack([pillow_view(p) for p in pictures * 2]),
        "crop and flip, one grid_sample": lambda: crop_resize_flip(
            images, draw_crops(len(images), SIDE, SIDE, RandomCrop(SIDE, 0.2), device), SIDE
        ),
        "crop and flip, kornia's modules": lambda: crop(images.float() / 255),
        "crop and flip, Pillow image by image": lambda: [pillow_crop(Image.fromarray(p)) for p in pictures],
    }
    with torch.no_grad():
        medians = measure(ways, options.repeats, device)
    print(f"{options.batch} images of {SIDE} x {SIDE}, {options.threads} threads, {device.type}\n")
    print("| | ms | ms of processor time | times ours |\n|---|---|---|---|")
    for name, taken in medians.items():
        ours_of = medians[next(other for other in ways if other.split(",")[0] == name.split(",")[0])]
        ratio = taken["processor"] / ours_of["processor"]  # what other programs take of the cores counts less there
        print(f"| {name} | {taken['wall']:.2f} | {taken['processor']:.2f} | {ratio:.1f} |")
    print(json.dumps({"batch": options.batch, "threads": options.threads, "device": device.type, "ms": medians}))


if __name__ == "__main__":
    main()
