"""What two random crops of a photo cost: from the whole picture, and from its middle square as before.

    python tests/benchmarks/photo_crops.py [--photos 64] [--repeats 9] [--threads 1]

JPEG files of 500 x 375 pixels and about 100 kB, ImageNet's usual size. From the whole picture, Pillow resizes two boxes
of one decoding to 224 x 224. From the middle square, the shorter side is resized to 256 once, and two crops are one
``grid_sample`` each, which a GPU would do. The ways take turns; the medians are of processor time, which other programs
change least.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from vision.data.crops import RandomCrop, crop_resize_flip, draw_crops
from vision.data.images import ImageSet
from vision.data.pictures import PictureFiles

HEIGHT, WIDTH = 375, 500
CROP = RandomCrop(224)


def write_photos(folder: Path, count: int) -> list[Path]:
    """Photos of smooth colours and noise."""
    chance, paths = np.random.default_rng(0), []
    for i in range(count):
        coarse = Image.fromarray(chance.integers(0, 256, (15, 20, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC))
        grain = Image.fromarray(chance.integers(0, 256, (HEIGHT // 2, WIDTH // 2, 3), dtype=np.uint8))
        noise = np.asarray(grain.resize((WIDTH, HEIGHT), Image.Resampling.BILINEAR)).astype(float) - 128
        pixels = np.clip(smooth + 0.5 * noise, 0, 255).astype(np.uint8)
        paths.append(folder / f"{i}.jpg")
        Image.fromarray(pixels).save(paths[-1], quality=91)
    return paths


def main() -> None:
    """Measure and print a table and its JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        paths = write_photos(Path(folder), options.photos)
        size = statistics.mean(path.stat().st_size for path in paths) / 1000
        images = ImageSet(None, PictureFiles(paths), None, (), "photos", None, 256)
        rows, cpu = np.arange(len(paths)), torch.device("cpu")

        def squares() -> None:
            batch = images.batch(rows)
            for _ in range(2):
                crop_resize_flip(batch, draw_crops(len(batch), 256, 256, CROP, cpu), CROP.size)

        ways: dict[str, Callable[[], object]] = {
            "middle square, two crops on the device": squares,
            "whole picture, two crops by Pillow": lambda: images.crops(rows, [(CROP, 2)], (0, 0)),
            "the middle square alone, without crops": lambda: images.batch(rows),
            "the decoding alone": lambda: [np.asarray(Image.open(io.BytesIO(path.read_bytes()))) for path in paths],
        }
        times: dict[str, list[float]] = {name: [] for name in ways}
        for turn in range(options.repeats + 1):
            for name, run in ways.items():
                start = time.process_time()
                run()
                if turn:  # the first one warms up
                    times[name].append(1000 * (time.process_time() - start) / len(paths))
    print(f"{len(paths)} JPEG files of {WIDTH} x {HEIGHT}, {size:.0f} kB on average\n")
    print("| | ms of processor time a photo | smallest and largest |\n|---|---|---|")
    for name, taken in times.items():
        print(f"| {name} | {statistics.median(taken):.2f} | {min(taken):.2f} to {max(taken):.2f} |")
    print(json.dumps({"photos": len(paths), "kB": size, "ms": times}))


if __name__ == "__main__":
    main()
