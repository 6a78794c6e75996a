"""Saved models give sentence-transformers the same embeddings, with a head and without."""

import json

import numpy as np
import pytest
import torch
from model_cases import TEXTS, build_model, build_static, random_head
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize
from transformers import AutoModel, AutoTokenizer

from dystress_text.config.settings import TextSettings
from dystress_text.errors import UserError
from dystress_text.finetuning.initial_model import check_saving, load_initial_model
from dystress_text.models.embedder import Embedder, encode
from dystress_text.models.loading import load_sentence_transformer, save_model
from dystress_text.programs.export import main as export


def by_hand(model):
    """A head in fp64, on sentence-transformers' embeddings without it."""
    modules = list(model)
    kept = [module for module in modules if not isinstance(module, Dense | Normalize)]
    (head,) = (module for module in modules if isinstance(module, Dense))
    bare = SentenceTransformer(modules=kept, device="cpu").encode(TEXTS).astype(np.float64)
    weight, bias = (parameter.detach().double().numpy() for parameter in head.parameters())
    vectors = np.tanh(bare @ weight.T + bias)
    if isinstance(modules[-1], Normalize):
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors


def close(vectors, expected, atol=1e-5):
    np.testing.assert_allclose(np.asarray(vectors), expected, rtol=0, atol=atol)


def read(folder):
    """Embeddings of a folder by sentence-transformers alone."""
    return SentenceTransformer(str(folder), device="cpu").encode(TEXTS)


@pytest.mark.parametrize(
    ("family", "pooler"),
    [("bert", "cls"), ("roberta", "avg_top2"), ("distilbert", "avg_first_last"), ("modernbert", "avg"),
     ("llama", "last")],
)  # fmt: skip
def test_saved_model_equals_encode(family, pooler, tmp_path):
    embedder = Embedder(build_model(family, pooler), random_head())
    before = torch.get_rng_state()
    embedder.save(tmp_path)
    assert torch.equal(before, torch.get_rng_state())
    close(read(tmp_path), encode(embedder.model, TEXTS), 1e-6)
    close(encode(load_sentence_transformer(str(tmp_path)), TEXTS), read(tmp_path), 1e-6)
    assert SentenceTransformer(str(tmp_path), device="cpu").max_seq_length == 40
    assert not list(tmp_path.glob("*_Dense"))  # a head of training alone is not saved
    assert len({file.stat().st_mode for file in tmp_path.rglob("*") if file.is_file()}) == 1


def test_saving_replaces_an_earlier_model(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    Embedder(build_model("bert", "avg_top2", head=True)).save(tmp_path)
    model = build_model("roberta", "cls", normalize=True)
    Embedder(model).save(tmp_path)
    close(read(tmp_path), model.encode(TEXTS), 1e-6)
    assert (tmp_path / "mine.txt").read_text() == "mine"


def test_prompts_and_similarity_are_saved(tmp_path):
    settings = {
        "prompts": {"query": "the cat saw ", "document": ""}, "default_prompt_name": "query",
        "similarity_fn_name": "dot",
    }  # fmt: skip
    for name, model in {"bert": build_model(**settings), "static": build_static()}.items():
        model.encode(TEXTS)
        save_model(model, tmp_path / name)
        tokenizer = json.loads(next((tmp_path / name).rglob("tokenizer.json")).read_text())
        assert (tokenizer["truncation"], tokenizer["padding"]) == (None, None)
    saved = load_sentence_transformer(str(tmp_path / "bert"))
    assert saved.prompts == settings["prompts"]
    assert saved.default_prompt_name == "query"
    assert saved.similarity_fn_name == "dot"


@pytest.mark.parametrize(
    ("family", "pooler", "normalize"),
    [("bert", "cls", False), ("roberta", "cls", True), ("mpnet", "avg_top2", False)],
)
def test_kept_head_is_saved_and_exported(family, pooler, normalize, tmp_path, capsys):
    model = build_model(family, pooler, head=True, normalize=normalize)
    expected = by_hand(model)
    close(encode(model, TEXTS), expected)
    Embedder(model).save(tmp_path / "out")
    close(read(tmp_path / "out"), expected)
    close(encode(load_sentence_transformer(str(tmp_path / "out")), TEXTS), expected)
    if pooler == "cls":  # transformers alone has a place for it, in the pooler
        assert export([str(tmp_path / "out"), "--to", "hf"]) == 0
        copy = tmp_path / "out-hf"
        tokenizer = AutoTokenizer.from_pretrained(copy)
        batch = tokenizer(TEXTS, padding=True, truncation=True, return_tensors="pt")
        with torch.no_grad():
            vectors = AutoModel.from_pretrained(copy).eval()(**batch).pooler_output
        close(torch.nn.functional.normalize(vectors) if normalize else vectors, expected)
    else:
        capsys.readouterr()
        assert export([str(tmp_path / "out"), "--to", "hf"]) == 2
        (error,) = capsys.readouterr().err.splitlines()
        assert "--to: " in error


@pytest.mark.parametrize("error", [NotImplementedError("not\nsaved"), OSError(28, "disk full")])
def test_model_that_cannot_be_saved_is_rejected(error, tiny_bert, tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise error

    initial = load_initial_model(TextSettings(str(tiny_bert), pooler_type="avg"))
    monkeypatch.setattr(initial.model[0].model, "save_pretrained", refuse)
    with pytest.raises(UserError, match=r"\A[^\n]+\Z"):
        check_saving(initial, tmp_path / "scratch")
    assert list(tmp_path.iterdir()) == []
