"""Copies of a model for other tools: same vectors, readable layout, one line for every refusal, and the upload."""

import json
import os
import re
import shutil

import numpy as np
import pytest
import torch
from conftest import build_tokenizer, build_transformer, make_sentences
from hub_server import with_hub
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file
from upload_server import upload_server

from dystress_text.cli import extras
from dystress_text.encoders.encoder import SentenceEncoder, load_encoder
from dystress_text.export import copies as program
from dystress_text.export.__main__ import main

SENTENCES = [*make_sentences(7), " ".join(["cat"] * 100)]  # the last one is longer than the 40 positions


def saved(folder, family="bert", pooler="cls"):
    """A saved model and the vectors that every copy must give."""
    encoder, tokenizer = SentenceEncoder(build_transformer(family), pooler), build_tokenizer()
    encoder.save(folder, tokenizer)
    return encoder.encode(SENTENCES, tokenizer)


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """The folder of a run with a checkpoint, a log and a record beside the model."""
    folder = tmp_path_factory.mktemp("export") / "out"
    saved(folder)
    record = {"program": "dystress_text/train.py", "settings": {"seed": 5, "data_dir": "/home/someone"}, "steps": 9}
    record["random_pairs"] = {"sentences": 99, "pairs": 4851, "cosines": {"0.1": 0.5}}
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "metrics.jsonl").write_text("{}\n")
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / "task.safetensors").write_text("x")
    return folder


def one_line(capsys):
    error = capsys.readouterr().err.strip()
    assert error.startswith("dystress export: error: ")
    assert "\n" not in error
    return error


def test_the_copy_for_transformers_spells_its_pooling_out(tmp_path):
    expected = saved(tmp_path / "out", "roberta", "avg_first_last")
    assert main([str(tmp_path / "out"), "--to", "hf"]) == 0
    copy = tmp_path / "out-hf"
    (code,) = re.findall(r"```python\n(.*?)```", (copy / "README.md").read_text(), re.DOTALL)
    found = {"given": SENTENCES}
    code = code.replace('"path/to/this/folder"', repr(str(copy)))
    exec(re.sub(r"^sentences = .*$", "sentences = given", code, flags=re.MULTILINE), found)
    torch.testing.assert_close(found["embeddings"], expected, rtol=0, atol=1e-6)
    said = json.loads((copy / "config.json").read_text())["sentence_embedding"]
    assert (said["tokens"], said["mean_of_hidden_states"], said["normalize"]) == ("mean", [1, -1], False)
    assert not (copy / "modules.json").exists()


def test_the_native_copy_leaves_the_run_behind(model, tmp_path, capsys):
    assert main([str(model), "--to", "native", "--output", str(tmp_path / "copy")]) == 0
    assert "vectors within" in capsys.readouterr().out
    files = {file.name for file in (tmp_path / "copy").iterdir()}
    assert {"model.safetensors", "modules.json", "README.md"} <= files
    assert not files & {"run.json", "metrics.jsonl", "checkpoint"}
    card = (tmp_path / "copy" / "README.md").read_text()
    assert "| seed | 5 |" in card
    assert "| 1 in 10 | 0.500 |" in card
    assert (tmp_path / "copy" / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    modes = {file.stat().st_mode & 0o777 for file in (tmp_path / "copy").rglob("*") if file.is_file()}
    assert modes == {(tmp_path / "copy" / "README.md").stat().st_mode & 0o777}
    assert os.listdir(tmp_path) == ["copy"]


@pytest.mark.slow  # torch's exporter
@pytest.mark.parametrize(("family", "pooler"), [("bert", "avg_first_last"), ("modernbert", "cls")])
def test_the_onnx_graph_gives_the_models_vectors(family, pooler, tmp_path):
    import onnxruntime

    saved(tmp_path / "out", family, pooler)
    assert main([str(tmp_path / "out"), "--to", "onnx"]) == 0
    copy = tmp_path / "out-onnx"
    (code,) = re.findall(r"```python\n(.*?)```", (copy / "README.md").read_text(), re.DOTALL)
    exec(code.replace('"path/to/this/folder"', repr(str(copy))), {})
    session = onnxruntime.InferenceSession(str(copy / "model.onnx"), providers=["CPUExecutionProvider"])
    assert [entry.name for entry in session.get_inputs()] == ["input_ids", "attention_mask"]
    assert [entry.name for entry in session.get_outputs()] == ["sentence_embedding"]
    encoder, tokenizer = load_encoder(str(tmp_path / "out"), pooler, mlp_head=False)
    encoder.eval()
    generator = torch.Generator().manual_seed(0)
    for shape in ((1, 2), (1, 40), (33, 31)):
        ids = torch.randint(4, len(tokenizer), shape, generator=generator)
        mask = (torch.arange(shape[1]) < torch.randint(1, shape[1] + 1, (shape[0], 1), generator=generator)).long()
        found = session.run(None, {"input_ids": ids.numpy(), "attention_mask": mask.numpy()})[0]
        with torch.no_grad():
            np.testing.assert_allclose(found, encoder.forward_padded(ids, mask).numpy(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("fault", [1e-3, float("nan")])
def test_a_copy_whose_vectors_differ_is_not_left(fault, model, tmp_path, capsys, monkeypatch):
    write, embed = program._LAYOUTS["hf"]

    def write_another(encoder, tokenizer, folder):
        write(encoder, tokenizer, folder)
        weights = load_file(folder / "model.safetensors")
        weights["encoder.layer.2.output.LayerNorm.bias"] += fault
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    monkeypatch.setitem(program._LAYOUTS, "hf", (write_another, embed))
    assert main([str(model), "--to", "hf", "--output", str(tmp_path / "copy")]) == 2
    assert "vectors differ" in one_line(capsys)
    assert os.listdir(tmp_path) == []


def test_folders_that_are_no_model_of_ours(model, tmp_path, capsys):
    def refused(folder, *said):
        assert main([str(folder), "--to", "hf", "--output", str(tmp_path / "copy")]) == 2
        error = one_line(capsys)
        assert all(words in error for words in said), error
        assert not (tmp_path / "copy").exists()

    def changed(file, content):
        folder = tmp_path / f"{len(os.listdir(tmp_path))}"
        shutil.copytree(model, folder)
        (folder / file).write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return folder

    refused(tmp_path / "nowhere", "is not a model of dystress train")
    (tmp_path / "vision").mkdir()
    (tmp_path / "vision" / "projector.safetensors").touch()
    refused(tmp_path / "vision", "vision model")
    weights = (model / "model.safetensors").read_bytes()
    refused(changed("model.safetensors", weights[: len(weights) // 2]), "cannot load")
    refused(changed("modules.json", b"[{"), "is damaged")
    modules = json.loads((model / "modules.json").read_text())
    refused(changed("modules.json", [*modules, {"type": "x.Normalize", "path": "2"}]), "its modules are", "Normalize")
    modules[1]["path"] = "../1_Pooling"
    refused(changed("modules.json", modules), "outside the folder")
    refused(changed("1_Pooling/config.json", {"embedding_dimension": 16, "pooling_mode": "max"}), "pooling 'max'")
    refused(
        changed("config_sentence_transformers.json", {"default_prompt_name": "query"}), "default_prompt_name 'query'"
    )
    refused(changed("run.json", [1]), "run.json", "is damaged")


def test_an_output_that_is_occupied(model, tmp_path, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    for output in (tmp_path / "full", tmp_path / "full" / "mine.txt"):
        assert main([str(model), "--to", "hf", "--output", str(output)]) == 2
        assert "is not an empty folder; nothing was written" in one_line(capsys)
    assert os.listdir(tmp_path / "full") == ["mine.txt"]
    assert main([str(model), "--to", "hf", "--output", str(tmp_path / "full" / "mine.txt" / "below")]) == 2
    assert "--output: cannot write" in one_line(capsys)
    (tmp_path / "empty").mkdir()
    assert main([str(model), "--to", "hf", "--output", str(tmp_path / "empty")]) == 0


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--to", "coreml"], "--to: unknown layout 'coreml'; known are native, hf, onnx"),
        (["--to", "onnx"], "--to onnx needs onnxscript: pip install 'dystress-text[onnx]'"),
        (["--to", "hf", "--private"], "--private: goes with --push_to_hub"),
        (["--to", "hf", "--push_to_hub", "../x/y"], "--push_to_hub: OWNER/NAME"),
    ],
)
def test_options_that_are_none(flags, said, model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name == "onnxscript" else name)
    assert main([str(model), *flags, "--output", str(tmp_path / "copy")]) == 2
    assert said in one_line(capsys)
    assert not (tmp_path / "copy").exists()


@pytest.fixture
def push(model, tmp_path, monkeypatch, capsys):
    """Copy the model into a folder and upload it: the exit code and what was printed."""

    def run(address, copy, *flags, **environment):
        monkeypatch.delenv("HF_TOKEN", raising=False)
        with with_hub(address, tmp_path / "home", **environment):
            code = main([str(model), "--to", "hf", "--output", str(copy), "--push_to_hub", "someone/model", *flags])
        said = capsys.readouterr()
        assert "hf_secret" not in said.out + said.err
        return code, said

    return run


def test_a_copy_is_uploaded(push, tmp_path):
    copy = tmp_path / "copy"
    with upload_server() as (address, made, files, tokens):
        code, said = push(address, copy, "--private", HF_TOKEN="hf_secret")
    assert code == 0, said.err
    assert f"{address}/someone/model" in said.out
    assert (made[0]["organization"], made[0]["name"], made[0]["visibility"]) == ("someone", "model", "private")
    assert set(tokens) == {"Bearer hf_secret"}
    assert files == {str(f.relative_to(copy)): f.read_bytes() for f in copy.rglob("*") if f.is_file()}
    assert not any(b"hf_secret" in content for content in files.values())
    card = files["README.md"].decode()
    assert 'from_pretrained("someone/model")' in card
    assert ModelCard(card).data.library_name == "transformers"


def test_an_upload_that_fails_is_one_line(push, tmp_path):
    with upload_server(status=403) as (address, _, files, _):
        code, said = push(address, tmp_path / "copy", HF_TOKEN="hf_secret")
    assert code == 2
    assert re.fullmatch(r"dystress export: error: --push_to_hub: .*\n", said.err)
    assert "The copy is in" in said.err
    assert files == {}
    assert (tmp_path / "copy" / "model.safetensors").exists()
    code, said = push(address, tmp_path / "other")
    assert (code, "no token" in said.err) == (2, True)
    assert not (tmp_path / "other").exists()
