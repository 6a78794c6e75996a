"""Pictures, parquet files of them and saved image encoders that nobody thought of: read, or one
line of ours.
"""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fuzz_cases import ODD_BYTES, accepted, deep, inputs, spoiled, spoiled_value
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vision.data.decoding import decode, image_size, resized
from vision.data.sources import find_images
from vision.resnet import build_encoder, load_encoder, save_encoder


def picture(kind, mode):
    pixels = np.random.default_rng(0).integers(0, 256, (12, 9, 4), dtype=np.uint8)
    sink = io.BytesIO()
    Image.fromarray(pixels, "RGBA").convert(mode).save(sink, kind)
    return sink.getvalue()


PICTURES = [
    picture(*kind) for kind in (("PNG", "RGBA"), ("PNG", "P"), ("JPEG", "CMYK"), ("TIFF", "RGB"))
]


@inputs(400)
@pytest.mark.filterwarnings("ignore")
@given(
    st.one_of(
        [spoiled(content) for content in PICTURES]
        + [st.binary(max_size=50), st.sampled_from(ODD_BYTES)]
    )
)
def test_pictures(content):
    accepted(image_size, content)
    image = accepted(decode, content)
    assert image is None or (image.mode == "RGB" and resized(image, 8).shape == (3, 8, 8))


def parquet(labels, metadata=None):
    table = pa.table({"img": [{"bytes": PICTURES[0], "path": None}] * len(labels), "label": labels})
    sink = io.BytesIO()
    pq.write_table(table.replace_schema_metadata(metadata), sink)
    return sink.getvalue()


NAMES = {"info": {"features": {"label": {"names": ["a", "b"]}}}}
SAID = st.one_of(
    spoiled_value(NAMES).map(json.dumps), st.sampled_from([deep(), "{", "\0", "[]", "null"])
)


@inputs(250)
@given(st.one_of(
    spoiled(parquet([0, 1, 1], {"huggingface": json.dumps(NAMES)})),
    SAID.map(lambda said: parquet([0, 1, 1], {"huggingface": said})),
))  # fmt: skip
def test_parquet_files(tmp_path_factory, content):
    folder = tmp_path_factory.getbasetemp() / "parquet"
    folder.mkdir(exist_ok=True)
    (folder / "train-0.parquet").write_bytes(content)
    source = accepted(find_images, str(folder), "train")
    assert source is None or source.labels is None or max(source.labels) < len(source.classes)


@inputs(60)
@given(st.data())
def test_saved_encoders(tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp() / "encoder"
    if not folder.exists():
        save_encoder(build_encoder("resnet10_narrow", "cifar", "cifar", 8), folder)
    file = folder / data.draw(
        st.sampled_from(["encoder.json", "model.safetensors", "projector.safetensors"])
    )
    content = file.read_bytes()
    if file.suffix == ".json" and data.draw(st.booleans()):
        file.write_text(json.dumps(data.draw(spoiled_value(json.loads(content)))))
    else:
        file.write_bytes(data.draw(spoiled(content[:4000])) + content[4000:])
    try:
        accepted(load_encoder, folder)
    finally:
        file.write_bytes(content)
