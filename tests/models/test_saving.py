"""Saved models give sentence-transformers the same embeddings, with a head and without."""

import json

import numpy as np
import pytest
import torch
from model_cases import TEXTS, build_model, build_static, close
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer

from dystress_text.errors import UserError
from dystress_text.finetuning.initial_model import check_saving, load_initial_model
from dystress_text.finetuning.settings import TextSettings
from dystress_text.models.encoding import encode
from dystress_text.models.hybrid import new_hybrid
from dystress_text.models.loading import load_sentence_transformer, save_model

MODULES = (
    "Dense",
    "Normalize",
    "Pooling",
    "StaticEmbedding",
    "Transformer",
    "WeightedLayerPooling",
)


def read(folder):
    """Return a folder's embeddings by sentence-transformers alone."""
    return SentenceTransformer(str(folder), device="cpu").encode(TEXTS)


@pytest.mark.parametrize(
    ("family", "pooler"),
    [("bert", "cls"), ("roberta", "avg_top2"), ("modernbert", "avg"), ("llama", "last")],
)
def test_saved_model_equals_encode(family, pooler, tmp_path):
    model = build_model(family, pooler)
    before = torch.get_rng_state()
    save_model(model, tmp_path)
    assert torch.equal(before, torch.get_rng_state())
    close(read(tmp_path), encode(model, TEXTS))
    saved = load_sentence_transformer(str(tmp_path))
    close(encode(saved, TEXTS), read(tmp_path))
    assert saved.max_seq_length == 40


def test_saving_replaces_an_earlier_model(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    save_model(build_model("bert", "avg_top2", head=True), tmp_path)
    model = build_model("roberta", "cls", normalize=True)
    save_model(model, tmp_path)
    close(read(tmp_path), model.encode(TEXTS))
    assert (tmp_path / "mine.txt").read_text() == "mine"


@pytest.mark.parametrize("build", [build_static, build_model])
def test_prompts_and_similarity_are_saved(build, tmp_path):
    model = build()
    model.prompts = {"query": "the cat saw ", "document": ""}
    model.default_prompt_name = "query"
    model.similarity_fn_name = "dot"
    model.encode(TEXTS)
    save_model(model, tmp_path)
    tokenizer = json.loads(next(tmp_path.rglob("tokenizer.json")).read_text())
    assert tokenizer["truncation"] is None
    assert tokenizer["padding"] is None
    saved = load_sentence_transformer(str(tmp_path))
    assert saved.prompts == model.prompts
    assert saved.default_prompt_name == "query"
    assert saved.similarity_fn_name == "dot"


def test_kept_head_is_saved(tmp_path):
    model = build_model("bert", "cls", head=True)
    bare = SentenceTransformer(modules=list(model)[:-1], device="cpu")
    weight, bias = (p.detach().double().numpy() for p in model[-1].parameters())
    expected = np.tanh(bare.encode(TEXTS).astype(np.float64) @ weight.T + bias)
    close(encode(model, TEXTS), expected, 1e-5)
    save_model(model, tmp_path)
    close(read(tmp_path), expected, 1e-5)


def layers_and_head():
    return build_model("bert", "avg_first_last", head=True, normalize=True)


def hybrid():
    return new_hybrid(build_static(small=True), dense=build_model())


@pytest.mark.parametrize("build", [layers_and_head, build_static, hybrid])
def test_files_name_classes_as_sentence_transformers_5_and_transformers_4(build, tmp_path):
    save_model(build(), tmp_path)
    types = set()
    for file in tmp_path.rglob("modules.json"):
        types |= {module["type"] for module in json.loads(file.read_text())}
    known = {f"sentence_transformers.models.{name}" for name in MODULES}
    assert types <= known | {"hybrid_module.HybridEmbedding"}
    for file in tmp_path.rglob("tokenizer_config.json"):
        assert json.loads(file.read_text())["tokenizer_class"] == "PreTrainedTokenizerFast"


def test_special_tokens_are_saved_as_transformers_4_reads_them(tmp_path):
    model = build_model()
    model.tokenizer.add_special_tokens({"additional_special_tokens": ["<query>"]})
    save_model(model, tmp_path)
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert settings["additional_special_tokens"] == ["<query>"]
    assert not isinstance(settings.get("extra_special_tokens"), list)
    assert "<query>" in AutoTokenizer.from_pretrained(tmp_path).all_special_tokens


def test_truncation_of_a_static_model_is_its_own(tmp_path):
    model = build_static(small=True)
    model[0].tokenizer.enable_truncation(3)
    expected = model.encode(TEXTS)
    save_model(model, tmp_path)
    close(read(tmp_path), expected)


@pytest.mark.parametrize("error", [NotImplementedError("not\nsaved"), OSError(28, "disk full")])
def test_model_that_cannot_be_saved_is_rejected(error, tiny_bert, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise error

    initial = load_initial_model(TextSettings(str(tiny_bert), pooler_type="avg"))
    monkeypatch.setattr(initial.model[0].model, "save_pretrained", refuse)
    with pytest.raises(UserError, match=r"\A[^\n]+\Z"):
        check_saving(initial, 32, tmp_path / "scratch")
    assert list(tmp_path.iterdir()) == []
