"""Parquet files of images and saved image encoders that nobody thought of: read, or one line of ours."""

import io
import json
import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fuzz_cases import accepted, deep, inputs, spoiled, spoiled_value
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from dystress_text.errors import DataError, UserError
from vision.data.sources import find_images
from vision.pretraining.settings import VisionSettings
from vision.resnet import build_encoder, load_encoder, save_encoder


def parquet(labels, metadata=None):
    png = io.BytesIO()
    Image.new("RGB", (4, 4)).save(png, "PNG")
    table = pa.table({"img": [{"bytes": png.getvalue(), "path": None}] * len(labels), "label": labels})
    sink = io.BytesIO()
    pq.write_table(table.replace_schema_metadata(metadata), sink)
    return sink.getvalue()


def found(folder, content):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "train-0.parquet").write_bytes(content)
    return find_images(str(folder), "train")


NAMES = {"info": {"features": {"label": {"names": ["a", "b"]}}}}


@inputs(300)
@given(spoiled(parquet([0, 1, 1], {"huggingface": json.dumps(NAMES)})))
def test_parquet_files(tmp_path_factory, content):
    source = accepted(found, tmp_path_factory.getbasetemp() / "parquet", content)
    assert source is None or source.labels is None or max(source.labels) < len(source.classes)


@inputs(200)
@given(spoiled_value(NAMES))
def test_what_a_parquet_file_says_of_its_classes(tmp_path_factory, said):
    content = parquet([0, 1, 1], {"huggingface": json.dumps(said)})
    accepted(found, tmp_path_factory.getbasetemp() / "named", content)


@pytest.mark.parametrize("said", [deep(), "{", "\0", '{"info": {"features": []}}', "[]", "null"])
def test_a_record_of_another_form(tmp_path, said):
    with pytest.raises(DataError, match="damaged or of another layout"):
        found(tmp_path / "set", parquet([0, 1], {"huggingface": said}))


@pytest.mark.parametrize("labels", [[None, 1], ["a", "b"], [-1, 0], [0.5, 1.0]])
def test_labels_that_are_none(tmp_path, labels):
    with pytest.raises(DataError, match="without a class"):
        found(tmp_path / "set", parquet(labels))


@inputs(60)
@given(st.data())
def test_saved_encoders(tmp_path_factory, data):
    folder = tmp_path_factory.getbasetemp() / "encoder"
    if not folder.exists():
        save_encoder(build_encoder("resnet10_narrow", "cifar", "cifar", 8), folder)
        shutil.copytree(folder, folder.with_name("whole"))
    name = data.draw(st.sampled_from(["encoder.json", "model.safetensors", "projector.safetensors"]))
    content = folder.with_name("whole").joinpath(name).read_bytes()
    if name == "encoder.json" and data.draw(st.booleans()):
        changed = json.dumps(data.draw(spoiled_value(json.loads(content)))).encode()
    else:
        changed = data.draw(spoiled(content[:4000])) + content[4000:]
    (folder / name).write_bytes(changed)
    accepted(load_encoder, folder)
    (folder / name).write_bytes(content)


def test_an_encoder_of_any_width_takes_no_memory(tmp_path):
    save_encoder(build_encoder("resnet10_narrow", "cifar", "cifar", 8), tmp_path)
    description = json.loads((tmp_path / "encoder.json").read_text())
    (tmp_path / "encoder.json").write_text(json.dumps({**description, "out_dim": 10**9}))
    with pytest.raises(UserError, match="out_dim"):
        load_encoder(tmp_path)


OPTIONS, NUMBERS = ("out_dim", "image_size", "queue_size", "min_scale", "key_momentum", "jitter"), (-1, 10**12)


@pytest.mark.parametrize(
    ("option", "value"),
    [(option, value) for option in OPTIONS for value in (float("nan"), float("inf"), *NUMBERS)][:-1],
)
def test_numbers_of_any_size(option, value):
    """All but the last pair, as jitter may be as strong as one likes."""
    with pytest.raises(UserError, match=f"{option}"):
        VisionSettings(**{option: value})
