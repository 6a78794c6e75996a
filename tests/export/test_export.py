"""Copies of a model for other tools: equal embeddings, hostile folders, and the upload."""

import json
import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import make_sentences
from hub_server import hub_server, with_hub
from huggingface_hub import ModelCard
from model_cases import build_model, build_static, close, encoder_module
from onnxruntime import InferenceSession
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Pooling
from sentence_transformers.util import import_from_string
from sweep_runs import write_results
from tokenizers import Tokenizer

from dystress_text.export import copies
from dystress_text.export.card import write_card
from dystress_text.models.loading import save_model
from dystress_text.programs.export import main
from dystress_text.training.run_record import RunRecord

LONG = " ".join(["cat"] * 100)  # longer than the 40 positions
SENTENCES = [*make_sentences(7), LONG]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """Write the folder of a run: model, log and record."""
    folder = tmp_path_factory.mktemp("export") / "out"
    save_model(build_model("bert", "cls", head=True), folder)
    record = {"settings": {"seed": 5, "data_dir": "/home/someone"}}
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "metrics.jsonl").write_text("{}\n")
    return folder


@pytest.fixture
def copy(tmp_path):
    return tmp_path / "copy"


@pytest.fixture
def export(model, copy, capsys):
    """Return a function that exports a folder and returns the code and the line on stderr."""

    def run(to, *options, source=model):
        capsys.readouterr()
        code = main([str(source), f"--to={to}", f"--output={copy}", *options])
        error = capsys.readouterr().err
        if code:
            assert re.fullmatch(r"dystress export: error: [^\n]*\n", error)
            assert "hf_secret" not in error
        return code, error

    return run


@pytest.fixture
def hub(tmp_path):
    """Start a hub for which the environment has a token; return the server's state."""
    with (
        hub_server() as server,
        with_hub(server[0], tmp_path / "home", HF_TOKEN="hf_secret"),
    ):
        yield server


def by_the_card(folder):
    """Embed the sentences with the code on a card."""
    card = (folder / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    code = code.replace('"path/to/this/folder"', repr(str(folder)))
    names = {"given": SENTENCES}
    exec(re.sub(r"^sentences = .*$", "sentences = given", code, flags=re.MULTILINE), names)
    return names["embeddings"]


@pytest.mark.parametrize(
    ("family", "pooler", "to"),
    [
        ("bert", "cls", "hf"),
        ("roberta", "avg", "native"),
        pytest.param("bert", "avg_top2", "onnx", marks=pytest.mark.slow),
        pytest.param("modernbert", "cls", "onnx", marks=pytest.mark.slow),
    ],
)
def test_code_on_the_card_gives_the_embeddings(family, pooler, to, export, copy, tmp_path):
    model = build_model(family, pooler, head=to == "hf", normalize=True)
    source = tmp_path / "out"
    save_model(model, source)
    write_card(source, RunRecord(), model)
    with (source / "README.md").open("a") as card:
        card.write("My own text.\n")
    write_results(source, {"STS-B": {"spearman": 70.5}}, weights="w")
    assert export(to, source=source)[0] == 0
    card = ModelCard.load(copy / "README.md")
    assert ("My own text." in card.text) == (to == "native")
    if to != "native":
        assert card.data.eval_results[0].metric_value == 70.5
    close(by_the_card(copy), model.encode(SENTENCES), 1e-5)
    for file in copy.rglob("*.*"):
        content = file.read_bytes()
        for path in (str(tmp_path), sys.prefix, str(Path.home())):
            assert path.encode() not in content
    assert (to != "hf") == (copy / "modules.json").exists()
    assert (to == "onnx") == (not list(copy.rglob("*.safetensors")))


def test_native_copy_has_no_file_of_the_run(model, export, copy):
    assert export("native")[0] == 0
    names = set(os.listdir(copy))
    assert {"model.safetensors", "modules.json", "README.md"} <= names
    assert not {"run.json", "metrics.jsonl"} & names
    assert "| seed | 5 |" in (copy / "README.md").read_text()
    assert (copy / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    assert os.listdir(copy.parent) == ["copy"]


@pytest.mark.parametrize("fault", [1e-3, float("nan")])
def test_copy_that_differs_is_removed(fault, export, copy, monkeypatch):
    write = copies._write_hf

    def write_another(trained, folder):
        write(trained, folder)
        weights = load_file(folder / "model.safetensors")
        weights["encoder.layer.2.output.LayerNorm.bias"] += fault
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    monkeypatch.setattr(copies, "_write_hf", write_another)
    assert "--to: " in export("hf")[1]
    assert os.listdir(copy.parent) == []


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("config.json", "{", "cannot load"),
        ("modules.json", '[{"type": "x.Normalize", "path": "2"}]', "'x.Normalize'"),
        ("run.json", "[1]", "run.json"),
    ],
)
def test_damaged_model_is_rejected(file, content, said, model, export, copy):
    source = shutil.copytree(model, copy.parent / "model")
    (source / file).write_text(content)
    assert said in export("hf", source=source)[1]
    assert os.listdir(copy.parent) == ["model"]


def cls_without_head():
    return build_model("bert", "cls")


def head_on_the_mean():
    return build_model("bert", "avg", head=True)


def pooling_without_the_prompt():
    model = build_model()
    model[1].include_prompt = False
    return model


@pytest.mark.parametrize(
    ("build", "to"),
    [
        (cls_without_head, "hf"),
        (build_static, "hf"),
        (head_on_the_mean, "hf"),
        (pooling_without_the_prompt, "onnx"),
    ],
)
def test_layouts_refuse_models_that_they_cannot_hold(build, to, export, copy):
    source = copy.parent / "out"
    save_model(build(), source)
    assert "--to: " in export(to, source=source)[1]
    assert os.listdir(copy.parent) == ["out"]


@pytest.mark.parametrize("layout", ["native", "hf"])
def test_a_failed_upload_can_be_repeated(layout, export, hub, copy):
    _, files, faults = hub
    faults["commit"] = 500
    code, error = export(layout, "--push_to_hub=someone/model")
    assert code == 2
    assert re.search(r"--push_to_hub: .*The model is in ", error)
    del faults["commit"]
    assert export(layout, "--push_to_hub=someone/model")[0] == 0
    local = {str(f.relative_to(copy)): f.read_bytes() for f in copy.rglob("*") if f.is_file()}
    assert files["models/someone/model"] == local
    assert '("someone/model")' in local["README.md"].decode()
    assert faults["made"]["organization"] == "someone"
    assert faults["token"] == "Bearer hf_secret"


@pytest.mark.parametrize(
    ("repository", "faults", "parameter"),
    [
        ("another/model", {}, "--push_to_hub"),
        ("someone/model", {"role": "read"}, "--push_to_hub"),
        ("some one", {}, "--push_to_hub"),
        ("someone/model", {}, "--output"),  # which exists
    ],
)
def test_nothing_is_made_if_repository_or_copy_cannot_be_written(
    repository, faults, parameter, export, hub, copy
):
    if parameter == "--output":
        (copy / "mine").mkdir(parents=True)
    hub[2].update(faults)
    assert parameter in export("hf", f"--push_to_hub={repository}")[1]
    assert "made" not in hub[2]
    assert not (copy / "modules.json").exists()


def truncated_static():
    model = build_static(small=True)
    model[0].tokenizer.enable_truncation(3)
    return model


def pooled(mode, *others, **settings):
    modules = [encoder_module(), Pooling(16, mode), *others]
    return SentenceTransformer(modules=modules, device="cpu", **settings)


def first_layer(model):
    """Leave out the other layers of a model, which take long to export."""
    transformer = model.transformers_model
    transformer.encoder.layer = transformer.encoder.layer[:1]
    transformer.config.num_hidden_layers = 1
    return model


ONNX = {
    "cls-mean": lambda: pooled(("cls", "mean")),
    "sqrt-dense": lambda: first_layer(
        pooled("mean_sqrt_len_tokens", Dense(16, 24), truncate_dim=9)
    ),
    "first-last": lambda: build_model("bert", "avg_first_last", normalize=True),
    "static": truncated_static,
}


@pytest.mark.parametrize(
    "kind",
    [
        "sqrt-dense",
        "static",
        pytest.param("cls-mean", marks=pytest.mark.slow),
        pytest.param("first-last", marks=pytest.mark.slow),
    ],
)
def test_onnx_copy_needs_nothing_but_its_files(kind, export, copy):
    """Embed as docs/export.md does, and as the ONNX backend of sentence-transformers does."""
    model = ONNX[kind]()
    source = copy.parent / "out"
    save_model(model, source)
    assert export("onnx", source=source)[0] == 0
    assert (copy / "special_tokens_map.json").exists()  # which fastembed reads
    tokens = Tokenizer.from_file(str(copy / "tokenizer.json")).encode_batch(SENTENCES)
    inputs = {
        "input_ids": np.array([each.ids for each in tokens]),
        "attention_mask": np.array([each.attention_mask for each in tokens]),
    }
    states, vectors = InferenceSession(copy / "onnx" / "model.onnx").run(None, inputs)
    expected = model.encode(SENTENCES)
    close(vectors, expected, 1e-5)
    if kind == "static":
        return
    features = {
        "token_embeddings": torch.from_numpy(states),
        "attention_mask": torch.from_numpy(inputs["attention_mask"]),
    }
    for entry in json.loads((copy / "modules.json").read_text())[1:]:
        module = import_from_string(entry["type"]).load(str(copy), subfolder=entry["path"])
        features = module(features)
    close(features["sentence_embedding"], expected, 1e-5)
