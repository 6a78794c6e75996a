"""Small image sets that the tests write, and clouds of features."""

import io
import json
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from accelerate import DistributedType
from PIL import Image

# what the settings ask of an accelerator
ONE_PROCESS = SimpleNamespace(
    num_processes=1, process_index=0, distributed_type=DistributedType.NO, device=torch.device("cpu")
)


def encoded(image, kind="PNG", **options):
    """The content of an image's file."""
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def square(gray, side=8):
    """The content of a file, a square of one gray."""
    return encoded(Image.new("RGB", (side, side), (gray,) * 3))


def write_folder(root, classes, side=8):
    """A folder for each class, with a square of each gray."""
    for name, grays in classes.items():
        (root / name).mkdir(parents=True, exist_ok=True)
        for number, gray in enumerate(grays):
            (root / name / f"{number}.png").write_bytes(square(gray, side))


def write_parquet(path, grays, labels, names=None, side=8):
    """Squares in the hub's layout."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table({"img": [{"bytes": square(gray, side), "path": None} for gray in grays], "label": labels})
    if names:
        features = {"features": {"img": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": features})})
    pq.write_table(table, path)


def clouds(n, m, dim=12, classes=5, seed=0):
    """Features around the centres of their classes: n of them and their labels, and m others with theirs."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, dim, generator=generator)
    labels = torch.randint(classes, (n + m,), generator=generator)
    x = centres[labels] + 1.5 * torch.randn(n + m, dim, generator=generator)
    return x[:n], labels[:n], x[n:], labels[n:]
