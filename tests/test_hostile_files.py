"""Model folders with code or pickles: nothing in them is run, and one error says why."""

import io
import json
import pickle

import pytest
import torch
from fuzz_cases import Harm, accepted
from model_cases import build_model

from dystress_text.errors import UserError
from dystress_text.evaluation.text_encoder import load_model
from dystress_text.finetuning.initial_model import load_initial_model
from dystress_text.finetuning.settings import TextSettings
from dystress_text.models.loading import load_encoder, load_sentence_transformer, save_model

CODE = "import os\nos.mkdir({canary!r})\nclass Model:\n    pass\nConfig = Tokenizer = Model\n"
MODULES = (
    {"type": "os.system"},
    {"type": "evil.Module"},
    {"type": "sentence_transformers.os.system"},
    {"type": "torch.nn.Linear"},
    {"path": "../outside"},
    {"path": "/etc"},
)


@pytest.fixture
def folder(tmp_path):
    """A model in sentence-transformers' format, which is a Hugging Face folder too."""
    save_model(build_model("bert", "avg", head=True, normalize=True), tmp_path / "model")
    return tmp_path / "model"


def loaders(folder):
    name = str(folder)
    return [
        lambda: load_encoder(name),
        lambda: load_model(name, None)[0](["a cat", "a dog ran"]),
        lambda: load_initial_model(TextSettings(model_name_or_path=name)).model,
        lambda: load_sentence_transformer(name),
    ]


def change(file, **entries):
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.filterwarnings("ignore")
def test_code_is_not_run_without_asking(known, folder, tmp_path, monkeypatch):
    """``yes | dystress train`` would agree to any question."""
    canary = tmp_path / "canary"
    (folder / "modeling_evil.py").write_text(CODE.format(canary=str(canary)))
    auto = {"AutoConfig": "modeling_evil.Config", "AutoModel": "modeling_evil.Model"}
    change(folder / "config.json", auto_map=auto, **({} if known else {"model_type": "evil"}))
    tokenizer = {"AutoTokenizer": ["modeling_evil.Tokenizer", None]}
    change(folder / "tokenizer_config.json", auto_map=tokenizer)
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\ny\ny\n"))
    for load in loaders(folder):
        assert (accepted(load) is not None) == known
    assert not canary.exists()


@pytest.mark.parametrize("entry", MODULES, ids=lambda entry: next(iter(entry.values())))
def test_unknown_modules_are_refused(entry, folder, tmp_path, monkeypatch):
    canary = tmp_path / "canary"
    (folder / "evil.py").write_text(CODE.format(canary=str(canary)).replace("Model", "Module"))
    monkeypatch.chdir(folder)
    modules = json.loads((folder / "modules.json").read_text())
    modules[1] |= entry
    (folder / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(UserError):
        load_model(str(folder), None)
    assert not canary.exists()


@pytest.mark.parametrize("how", ["torch", "pickle", "pickle of the head", "damaged head"])
def test_pickled_and_damaged_weights_are_refused(how, folder, tmp_path):
    canary = tmp_path / "canary"
    place = folder / "2_Dense" if "head" in how else folder
    weights = place / "model.safetensors"
    if how == "damaged head":
        weights.write_bytes(weights.read_bytes()[:40])
    else:
        weights.unlink()
        torch.save({"linear.weight": Harm(canary)}, place / "pytorch_model.bin")
    if how == "pickle":
        (place / "pytorch_model.bin").write_bytes(pickle.dumps(Harm(canary)))
    for load in loaders(folder)["head" in how :]:
        with pytest.raises(UserError) as caught:
            load()
        assert "\n" not in str(caught.value)
    assert not canary.exists()
