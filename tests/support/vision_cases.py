"""Small image sets that the tests write."""

import io
import json
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from accelerate import DistributedType
from PIL import Image


def processes(count, kind=DistributedType.NO):
    """What the settings ask of an accelerator."""
    return SimpleNamespace(num_processes=count, process_index=0, distributed_type=kind, device=torch.device("cpu"))


ONE_PROCESS = processes(1)


def encoded(gray, side=8, kind="PNG"):
    """A square of one gray."""
    stream = io.BytesIO()
    Image.new("RGB", (side, side), (gray,) * 3).save(stream, kind)
    return stream.getvalue()


def write_folder(root, classes, side=8):
    """A folder for each class, with a square of each gray."""
    root.mkdir(parents=True, exist_ok=True)
    for name, grays in classes.items():
        (root / name).mkdir(exist_ok=True)
        for number, gray in enumerate(grays):
            (root / name / f"{number}.png").write_bytes(encoded(gray, side))


def write_parquet(path, grays, labels, names=None, side=8, kind="PNG", rows=None, classes=1, label="label"):
    """Squares in the hub's layout; with ``rows``, so many of the first gray, in ``classes`` classes by turns."""
    path.parent.mkdir(parents=True, exist_ok=True)
    images = [{"bytes": encoded(gray, side, kind), "path": None} for gray in grays]
    if rows:
        images, labels = images[:1] * rows, [row % classes for row in range(rows)]
    table = pa.table({"img": images, label: labels})
    if names:
        features = {"features": {"img": {"_type": "Image"}, label: {"names": names, "_type": "ClassLabel"}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": features})})
    pq.write_table(table, path)
