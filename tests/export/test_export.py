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
from model_cases import build_model, build_static, encoder_module
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


def one_line(capsys):
    error = capsys.readouterr().err.strip()
    assert error.startswith("dystress export: error: ")
    assert "\n" not in error
    return error


def by_the_card(folder):
    """Embed the sentences with the code on a card."""
    card = (folder / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    code = code.replace('"path/to/this/folder"', repr(str(folder)))
    names = {"given": SENTENCES}
    exec(re.sub(r"^sentences = .*$", "sentences = given", code, flags=re.MULTILINE), names)
    return torch.as_tensor(names["embeddings"])


@pytest.mark.parametrize(
    ("family", "pooler", "to"),
    [
        ("bert", "cls", "hf"),
        ("roberta", "avg", "native"),
        pytest.param("bert", "avg_top2", "onnx", marks=pytest.mark.slow),
        pytest.param("modernbert", "cls", "onnx", marks=pytest.mark.slow),
    ],
)
def test_code_on_the_card_gives_the_embeddings(family, pooler, to, tmp_path):
    model = build_model(family, pooler, head=to == "hf", normalize=True)
    source = tmp_path / "out"
    save_model(model, source)
    write_card(source, RunRecord(), model)
    with (source / "README.md").open("a") as card:
        card.write("My own text.\n")
    write_results(source, {"STS-B": {"spearman": 70.5}}, weights="w")
    assert main([str(source), "--to", to]) == 0
    copy = tmp_path / f"out-{to}"
    card = ModelCard.load(copy / "README.md")
    assert ("My own text." in card.text) == (to == "native")
    if to != "native":
        assert card.data.eval_results[0].metric_value == 70.5
    expected = torch.as_tensor(model.encode(SENTENCES))
    torch.testing.assert_close(by_the_card(copy), expected, rtol=0, atol=1e-5)
    for file in copy.rglob("*.*"):
        content = file.read_bytes()
        for path in (str(tmp_path), sys.prefix, str(Path.home())):
            assert path.encode() not in content
    assert (to != "hf") == (copy / "modules.json").exists()
    assert (to == "onnx") == (not list(copy.rglob("*.safetensors")))
    if to == "onnx":
        assert (copy / "special_tokens_map.json").exists()  # which fastembed reads


def test_native_copy_has_no_file_of_the_run(model, tmp_path):
    copy = tmp_path / "copy"
    assert main([str(model), "--to", "native", "--output", str(copy)]) == 0
    names = set(os.listdir(copy))
    assert {"model.safetensors", "modules.json", "README.md"} <= names
    assert not {"run.json", "metrics.jsonl"} & names
    assert "| seed | 5 |" in (copy / "README.md").read_text()
    assert (copy / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    assert os.listdir(tmp_path) == ["copy"]


@pytest.mark.parametrize("fault", [1e-3, float("nan")])
def test_copy_that_differs_is_removed(fault, model, tmp_path, capsys, monkeypatch):
    write = copies._write_hf

    def write_another(trained, folder):
        write(trained, folder)
        weights = load_file(folder / "model.safetensors")
        weights["encoder.layer.2.output.LayerNorm.bias"] += fault
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    monkeypatch.setattr(copies, "_write_hf", write_another)
    assert main([str(model), "--to", "hf", "--output", str(tmp_path / "copy")]) == 2
    assert "--to: " in one_line(capsys)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("config.json", "{", "cannot load"),
        ("modules.json", '[{"type": "x.Normalize", "path": "2"}]', "'x.Normalize'"),
        ("run.json", "[1]", "run.json"),
    ],
)
def test_damaged_model_is_rejected(file, content, said, model, tmp_path, capsys):
    source = shutil.copytree(model, tmp_path / "model")
    (source / file).write_text(content)
    assert main([str(source), "--to", "hf", "--output", str(tmp_path / "copy")]) == 2
    assert said in one_line(capsys)
    assert os.listdir(tmp_path) == ["model"]


@pytest.mark.parametrize("layout", ["native", "hf"])
def test_a_failed_upload_can_be_repeated(layout, model, tmp_path, capsys):
    flags = [f"--to={layout}", f"--output={tmp_path / 'copy'}", "--push_to_hub=someone/model"]
    with hub_server() as (address, files, faults):
        faults["commit"] = 500
        with with_hub(address, tmp_path / "home", HF_TOKEN="hf_secret"):
            assert main([str(model), *flags]) == 2
            error = capsys.readouterr().err
            del faults["commit"]
            assert main([str(model), *flags]) == 0
    assert re.fullmatch(r"[^\n]*--push_to_hub: [^\n]*The model is in [^\n]*\n", error)
    assert "hf_secret" not in error
    assert "model.safetensors" in files["models/someone/model"]


@pytest.mark.parametrize(
    ("repository", "faults"),
    [("another/model", {}), ("someone/model", {"role": "read"}), ("some one", {})],
)
def test_nothing_is_made_for_a_repository_that_may_not_be_written(
    repository, faults, model, tmp_path, capsys
):
    flags = ["--to=hf", f"--output={tmp_path / 'copy'}", f"--push_to_hub={repository}"]
    with hub_server() as (address, _, known):
        known |= faults
        with with_hub(address, tmp_path / "home", HF_TOKEN="hf_secret"):
            assert main([str(model), *flags]) == 2
    assert "--push_to_hub" in one_line(capsys)
    assert "made" not in known
    assert not (tmp_path / "copy").exists()


def test_nothing_is_made_on_the_hub_for_a_copy_that_cannot_be_written(model, tmp_path, capsys):
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "mine").touch()
    flags = ["--to=hf", f"--output={tmp_path / 'copy'}", "--push_to_hub=someone/model"]
    with (
        hub_server() as (address, _, known),
        with_hub(address, tmp_path / "home", HF_TOKEN="hf_secret"),
    ):
        assert main([str(model), *flags]) == 2
    assert "--output" in one_line(capsys)
    assert "made" not in known


def test_upload(model, tmp_path, capsys):
    copy = tmp_path / "copy"
    flags = ["--to", "hf", "--output", str(copy), "--push_to_hub", "someone/model"]
    with (
        hub_server() as (address, files, faults),
        with_hub(address, tmp_path / "home", HF_TOKEN="hf_secret"),
    ):
        code = main([str(model), *flags])
    said = capsys.readouterr()
    assert "hf_secret" not in said.out + said.err
    local = {str(f.relative_to(copy)): f.read_bytes() for f in copy.rglob("*") if f.is_file()}
    assert code == 0, said.err
    assert f"{address}/someone/model" in said.out
    assert faults["made"]["organization"] == "someone"
    assert faults["token"] == "Bearer hf_secret"
    assert files["models/someone/model"] == local
    assert 'from_pretrained("someone/model")' in local["README.md"].decode()


def truncated_static():
    model = build_static(small=True)
    model[0].tokenizer.enable_truncation(3)
    return model


def pooled(mode, *others, **settings):
    modules = [encoder_module(), Pooling(16, mode), *others]
    return SentenceTransformer(modules=modules, device="cpu", **settings)


ONNX = {
    "cls-mean": lambda: pooled(("cls", "mean")),
    "sqrt-dense": lambda: pooled("mean_sqrt_len_tokens", Dense(16, 24), truncate_dim=9),
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
def test_onnx_copy_needs_nothing_but_its_files(kind, tmp_path):
    """Embed as docs/export.md does, and as the ONNX backend of sentence-transformers does."""
    model = ONNX[kind]()
    save_model(model, tmp_path / "out")
    assert main([str(tmp_path / "out"), "--to", "onnx"]) == 0
    copy = tmp_path / "out-onnx"
    tokens = Tokenizer.from_file(str(copy / "tokenizer.json")).encode_batch(SENTENCES)
    inputs = {
        "input_ids": np.array([each.ids for each in tokens]),
        "attention_mask": np.array([each.attention_mask for each in tokens]),
    }
    states, vectors = InferenceSession(copy / "onnx" / "model.onnx").run(None, inputs)
    expected = model.encode(SENTENCES)
    np.testing.assert_allclose(vectors, expected, rtol=0, atol=1e-5)
    if kind == "static":
        return
    features = {
        "token_embeddings": torch.from_numpy(states),
        "attention_mask": torch.from_numpy(inputs["attention_mask"]),
    }
    for entry in json.loads((copy / "modules.json").read_text())[1:]:
        module = import_from_string(entry["type"]).load(str(copy), subfolder=entry["path"])
        features = module(features)
    np.testing.assert_allclose(features["sentence_embedding"], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "build", [build_model, build_static, lambda: build_model("bert", "avg", head=True)]
)
def test_hf_refuses_all_but_a_head_on_the_first_token(build, tmp_path, capsys):
    save_model(build(), tmp_path / "out")
    capsys.readouterr()
    assert main([str(tmp_path / "out"), "--to", "hf"]) == 2
    assert "--to: " in one_line(capsys)
    assert os.listdir(tmp_path) == ["out"]


def test_onnx_refuses_a_pooling_without_the_prompt(tmp_path, capsys):
    model = build_model()
    model[1].include_prompt = False
    save_model(model, tmp_path / "out")
    capsys.readouterr()
    assert main([str(tmp_path / "out"), "--to", "onnx"]) == 2
    assert "--to: " in one_line(capsys)
    assert os.listdir(tmp_path) == ["out"]
