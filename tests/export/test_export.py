"""Copies of a model for other tools: equal embeddings, hostile folders, and the upload."""

import json
import os
import re
import shutil

import pytest
import torch
import torch.nn.functional as F
from conftest import make_sentences
from hub_server import hub_server, with_hub
from huggingface_hub import ModelCard
from model_cases import build_model
from safetensors.torch import load_file, save_file

from dystress_text.export import copies as program
from dystress_text.export.card import write_card
from dystress_text.export.graph import _Graph
from dystress_text.models.loading import save_model
from dystress_text.programs.export import main
from dystress_text.training.run_record import RunRecord

INDEX = """model-index:
- name: mine
  results: [{task: {type: STS}, dataset: {type: a/b, name: c}, metrics: [{type: cosine_spearman, value: 70.5}]}]
"""
SENTENCES = [
    *make_sentences(7),
    " ".join(["cat"] * 100),
]  # the last one is longer than the 40 positions


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    """The folder of a run: model, log and record."""
    folder = tmp_path_factory.mktemp("export") / "out"
    save_model(build_model("bert", "cls"), folder)
    (folder / "run.json").write_text(
        json.dumps({"settings": {"seed": 5, "data_dir": "/home/someone"}})
    )
    (folder / "metrics.jsonl").write_text("{}\n")
    return folder


def one_line(capsys):
    error = capsys.readouterr().err.strip()
    assert error.startswith("dystress export: error: ")
    assert "\n" not in error
    return error


@pytest.mark.parametrize(
    ("family", "pooler", "to", "blocks"),
    [("bert", "cls", "hf", 3), ("roberta", "avg", "native", 4), ("bert", "avg_top2", "native", 4),
     ("distilbert", "avg_first_last", "hf", 3),
     pytest.param("bert", "avg_top2", "onnx", 3, marks=pytest.mark.slow),
     pytest.param("modernbert", "cls", "onnx", 3, marks=pytest.mark.slow)],
)  # fmt: skip
def test_code_on_the_cards_gives_the_embeddings(family, pooler, to, blocks, tmp_path):
    """On that of the model, and of the copy."""
    model = build_model(family, pooler)
    save_model(model, tmp_path / "out")
    write_card(tmp_path / "out", RunRecord(), model)
    card = tmp_path / "out" / "README.md"
    card.write_text(card.read_text().replace("tags:", f"{INDEX}tags:") + "My own text.\n")
    assert main([str(tmp_path / "out"), "--to", to]) == 0
    copied = ModelCard.load(tmp_path / f"out-{to}" / "README.md")
    assert ("My own text." in copied.text, copied.data.eval_results[0].metric_value) == (
        to == "native",
        70.5,
    )
    expected = torch.as_tensor(model.encode(SENTENCES))
    for folder in (tmp_path / "out", tmp_path / f"out-{to}"):
        for code in re.findall(
            r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL
        ):
            code = code.replace('"path/to/this/folder"', repr(str(folder)))
            found = {"given": SENTENCES}
            exec(re.sub(r"^sentences = .*$", "sentences = given", code, flags=re.MULTILINE), found)
            torch.testing.assert_close(
                torch.as_tensor(found["embeddings"]), expected, rtol=0, atol=1e-5
            )
            blocks -= 1
    assert blocks == 0
    assert (to != "hf") == (folder / "modules.json").exists()
    assert (to == "onnx") == (not list(folder.rglob("*.safetensors")))


def test_native_copy_has_no_file_of_the_run(model, tmp_path, capsys):
    copy = tmp_path / "copy"
    assert main([str(model), "--to", "native", "--output", str(copy)]) == 0
    assert {"model.safetensors", "modules.json", "README.md"} <= set(os.listdir(copy))
    assert not {"run.json", "metrics.jsonl"} & set(os.listdir(copy))
    assert "| seed | 5 |" in (copy / "README.md").read_text()
    assert (copy / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    assert len({file.stat().st_mode & 0o777 for file in copy.rglob("*") if file.is_file()}) == 1
    assert os.listdir(tmp_path) == ["copy"]


@pytest.mark.parametrize("fault", [1e-3, float("nan")])
def test_copy_that_differs_is_removed(fault, model, tmp_path, capsys, monkeypatch):
    write, embed = program._LAYOUTS["hf"]

    def write_another(trained, folder):
        write(trained, folder)
        weights = load_file(folder / "model.safetensors")
        weights["encoder.layer.2.output.LayerNorm.bias"] += fault
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    monkeypatch.setitem(program._LAYOUTS, "hf", (write_another, embed))
    assert main([str(model), "--to", "hf", "--output", str(tmp_path / "copy")]) == 2
    assert "--to: " in one_line(capsys)
    assert os.listdir(tmp_path) == []


def test_damaged_models_are_rejected(model, tmp_path, capsys):
    modules = json.loads((model / "modules.json").read_text())
    for file, content, said in (
        ("config.json", "{", "cannot load"),
        ("modules.json", "[{", "cannot load"),
        (
            "modules.json",
            json.dumps([*modules, {"type": "x.Normalize", "path": "2"}]),
            "'x.Normalize'",
        ),
        (
            "1_Pooling/config.json",
            json.dumps({"word_embedding_dimension": 16, "pooling_mode": "max"}),
            "--to: ",
        ),
        ("run.json", "[1]", "run.json"),
    ):
        shutil.copytree(model, tmp_path / "model")
        (tmp_path / "model" / file).write_text(content)
        assert (
            main([str(tmp_path / "model"), "--to", "hf", "--output", str(tmp_path / "copy")]) == 2
        )
        assert said in one_line(capsys)
        shutil.rmtree(tmp_path / "model")
        assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("status", [None, 500])
def test_upload(status, model, tmp_path, capsys):
    copy = tmp_path / "copy"
    with (
        hub_server() as (address, files, faults),
        with_hub(address, tmp_path / "home", HF_TOKEN="hf_secret"),
    ):
        faults["commit"] = status
        flags = ["--to", "hf", "--output", str(copy), "--push_to_hub", "someone/model"]
        code = main([str(model), *flags])
    said = capsys.readouterr()
    assert "hf_secret" not in said.out + said.err
    assert (copy / "model.safetensors").exists()
    if status:
        assert code == 2
        assert re.fullmatch(
            r"dystress export: error: --push_to_hub: .* The model is in .*\n", said.err
        )
        return
    assert (code, f"{address}/someone/model" in said.out) == (0, True), said.err
    made, uploaded = faults["made"], files["models/someone/model"]
    assert (made["organization"], made["name"]) == ("someone", "model")
    assert faults["token"] == "Bearer hf_secret"
    assert uploaded == {
        str(f.relative_to(copy)): f.read_bytes() for f in copy.rglob("*") if f.is_file()
    }
    card = uploaded["README.md"].decode()
    assert 'from_pretrained("someone/model")' in card
    assert ModelCard(card).data.library_name == "transformers"


@pytest.mark.parametrize(
    ("pooler", "head"), [("cls", False), ("cls", True), ("last", False), ("avg", True)]
)
def test_states_of_a_graph_equal_its_embedding(pooler, head):
    """So that a client which takes another token, or one of padding, is right; means are tried
    elsewhere.
    """
    model = build_model("bert", pooler, head, normalize=True).eval()
    ids, mask = (
        torch.tensor([[0, 5, 6, 2], [0, 7, 2, 1]]),
        torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]),
    )
    with torch.no_grad():
        states, vectors = _Graph(model)(ids, mask)
        features = {"input_ids": ids, "attention_mask": mask, "modality": "text"}
        expected = model(features)["sentence_embedding"]
    torch.testing.assert_close(vectors, expected)
    torch.testing.assert_close(F.normalize(states, dim=2), expected.unsqueeze(1).expand_as(states))
