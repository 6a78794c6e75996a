"""Small image sets and encoders, sets that the tests write, and clouds of features."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from conftest import reset_accelerator
from PIL import Image

from dystress_text.preparation import prepare as preparation
from vision import train
from vision.data.catalogue import CATALOG
from vision.data.images import DecodedImages
from vision.data.prepare_images import build
from vision.resnet import ImageInput, build_encoder


def prepare(name, request):
    """Get an image set ready, as the program does."""
    return preparation.prepare(name, request, lambda folder: build(CATALOG[name], request, folder))


def encoded(image, kind="PNG", **options):
    """The content of an image's file."""
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def noise(height, width, seed=0):
    """An RGB picture of random pixels."""
    random = np.random.default_rng(seed)
    return Image.fromarray(random.integers(0, 256, (height, width, 3), dtype=np.uint8))


def square(gray, side=8):
    return encoded(Image.new("RGB", (side, side), (gray,) * 3))


def write_folder(root, classes, side=8):
    """A folder for each class, with a square of each gray."""
    for name, grays in classes.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for number, gray in enumerate(grays):
            (root / name / f"{number}.png").write_bytes(square(gray, side))


def grays(images):
    """The grays of squares that ``write_folder`` or ``write_parquet`` wrote."""
    return images.pixels[:, 0, 0, 0].tolist()


def write_parquet(path, grays, labels, names=None, side=8):
    """Squares in the hub's layout."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(
        {"img": [{"bytes": square(gray, side), "path": None} for gray in grays], "label": labels}
    )
    if names:
        features = {
            "features": {
                "img": {"_type": "Image"},
                "label": {"names": names, "_type": "ClassLabel"},
            }
        }
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": features})})
    pq.write_table(table, path)


def clouds(n, m, dim=12, classes=5, seed=0):
    """Features around the centres of their classes: n and their labels, then m and their labels."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, dim, generator=generator)
    labels = torch.randint(classes, (n + m,), generator=generator)
    x = centres[labels] + 1.5 * torch.randn(n + m, dim, generator=generator)
    return x[:n], labels[:n], x[n:], labels[n:]


HALF = ImageInput(16, 1.0, (0.5,) * 3, (1.0,) * 3)  # what as_float does


def tiny_encoder(seed=0, out_dim=16):
    torch.manual_seed(seed)
    encoder = build_encoder("resnet10_narrow", "imagenet", "cifar", out_dim)
    encoder.input = HALF
    return encoder


def colour_images(n, classes=3, size=16, seed=0, name="colours", variant=None):
    """Noise around a colour that is the class's."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    colours = torch.tensor([[200.0, 60, 60], [60, 200, 60], [60, 60, 200], [200, 200, 60]])[labels]
    pixels = colours[:, :, None, None] + 60 * torch.randn(n, 3, size, size, generator=generator)
    return DecodedImages(
        name=name,
        pixels=pixels.clamp(0, 255).to(torch.uint8),
        labels=labels,
        classes=tuple("abcd"[:classes]),
        variant=variant,
    )


class GivenViews:
    """Views of an image set that are what ``view`` makes of rows and epoch."""

    def __init__(self, images, view):
        self.images = images
        self.view = view

    def batches(self, batches, device, step):
        for rows in batches:
            yield [self.view(rows, step)]


TINY_RUN = ["--architecture=resnet10_narrow", "--mixed_precision=no"]


def pretrain(dataset, output, *flags):
    """Run vision/train.py with a small network, and return its exit code."""
    code = train.main([*TINY_RUN, f"--dataset={dataset}", f"--output_dir={output}", *flags])
    reset_accelerator()
    return code


def record_of(output):
    return json.loads((output / "run.json").read_text())


def whole(images):
    """Views that are the images themselves."""
    return GivenViews(images, lambda rows, epoch: as_float(images.pixels[rows]))


def as_float(images):
    return images.float() / 255 - 0.5
