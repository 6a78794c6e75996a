"""Model folders that nobody thought of: they load, or one line of ours says why not; code in them
is never run.
"""

import io
import json
import pickle
import shutil

import pytest
import torch
from fuzz_cases import ODD_VALUES, Harm, accepted, deep, inputs, spoiled, spoiled_value
from hypothesis import given
from hypothesis import strategies as st
from model_cases import build_model

from dystress_text.config.settings import TextSettings
from dystress_text.errors import UserError
from dystress_text.evaluation.embedder import load_model
from dystress_text.finetuning.initial_model import load_initial_model
from dystress_text.models.loading import load_encoder, load_sentence_transformer, save_model

# numbers of a size that an honest machine can be asked for
ODD = tuple(
    value for value in ODD_VALUES if not (type(value) in (int, float) and abs(value) > 1000)
)
CODE = "import os\nos.mkdir({canary!r})\nclass Model:\n    pass\nConfig = Tokenizer = Model\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model in sentence-transformers' format, which is a Hugging Face folder too."""
    place = tmp_path_factory.mktemp("model")
    save_model(build_model("bert", "avg", head=True, normalize=True), place)
    return place


@pytest.fixture
def copied(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "model")
    return tmp_path / "model"


def loaders(place):
    return [
        lambda: load_encoder(str(place)),
        lambda: load_model(str(place), None)[0](["a cat", "a dog ran"]),
        lambda: load_initial_model(TextSettings(model_name_or_path=str(place))).model,
        lambda: load_sentence_transformer(str(place)),
    ]


def change(file, **entries):
    file.write_text(json.dumps(json.loads(file.read_text()) | entries))


@inputs(50)
@given(st.data())
@pytest.mark.filterwarnings("ignore")
def test_folders(folder, tmp_path_factory, data):
    place = tmp_path_factory.getbasetemp() / "spoiled-model"
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(folder, place)
    files = sorted(path for path in place.rglob("*") if path.is_file() and path.suffix != ".md")
    file = data.draw(st.sampled_from(files))
    if file.suffix == ".json" and data.draw(st.integers(0, 3)):
        file.write_text(data.draw(st.one_of(
            spoiled_value(json.loads(file.read_text()), ODD).map(json.dumps), st.sampled_from([deep(), "null", "{}"])
        )))  # fmt: skip
    else:
        file.write_bytes(data.draw(spoiled(file.read_bytes())))
    accepted(data.draw(st.sampled_from(loaders(place))))


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.filterwarnings("ignore")
def test_code_in_a_folder_is_not_run_and_nobody_is_asked(known, copied, tmp_path, monkeypatch):
    """``yes | python train.py --model_name_or_path FOLDER`` would say yes to running it."""
    canary = tmp_path / "canary"
    place = copied
    (copied / "modeling_evil.py").write_text(CODE.format(canary=str(canary)))
    auto = {"AutoConfig": "modeling_evil.Config", "AutoModel": "modeling_evil.Model"}
    change(copied / "config.json", auto_map=auto, **({} if known else {"model_type": "evil"}))
    change(
        copied / "tokenizer_config.json",
        auto_map={"AutoTokenizer": ["modeling_evil.Tokenizer", None]},
    )
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    monkeypatch.setattr("sys.stdin", io.StringIO("y\ny\ny\n"))
    for load in loaders(place):
        result = accepted(load)
        assert (result is not None) == known
    assert not canary.exists()


@pytest.mark.parametrize(
    "entry",
    [*({"type": kind} for kind in ("os.system", "evil.Module", "sentence_transformers.os.system", "torch.nn.Linear")),
     {"path": "../outside"}, {"path": "/etc"}],
    ids=lambda entry: next(iter(entry.values())),
)  # fmt: skip
def test_modules_of_another_kind_and_elsewhere(entry, copied, tmp_path, monkeypatch):
    canary = tmp_path / "canary"
    (copied / "evil.py").write_text(CODE.format(canary=str(canary)).replace("Model", "Module"))
    monkeypatch.chdir(copied)
    modules = json.loads((copied / "modules.json").read_text())
    (copied / "modules.json").write_text(json.dumps([modules[0], modules[1] | entry, *modules[2:]]))
    with pytest.raises(UserError, match="cannot load"):
        load_model(str(copied), None)
    assert not canary.exists()


@pytest.mark.parametrize("how", ["torch", "pickle", "pickle of the head", "damaged head"])
def test_weights_that_are_a_pickle_or_damaged(how, copied, tmp_path):
    canary, place = tmp_path / "canary", copied / ("2_Dense" if "head" in how else ".")
    weights = place / "model.safetensors"
    if how == "damaged head":
        weights.write_bytes(weights.read_bytes()[:40])
    else:
        weights.unlink()
        torch.save({"linear.weight": Harm(canary)}, place / "pytorch_model.bin")
    if how == "pickle":
        (place / "pytorch_model.bin").write_bytes(pickle.dumps(Harm(canary)))
    for load in loaders(copied)["head" in how :]:
        with pytest.raises(UserError, match="cannot load") as caught:
            load()
        assert "\n" not in str(caught.value)
    assert not canary.exists()
