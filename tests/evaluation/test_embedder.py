"""Models under evaluation: loading, and embeddings before normalisation."""

import numpy as np
import pytest
import torch
from conftest import make_sentences
from model_cases import build_model, model_of
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize

from dystress_text.errors import UserError
from dystress_text.evaluation.embedder import TextEncoder, load_model
from dystress_text.io.paths import EMBEDDED
from dystress_text.models.loading import save_model
from dystress_text.training.accelerator import single_process_device


@pytest.fixture
def saved(tmp_path):
    """A sentence-transformers folder."""
    save_model(build_model("bert", "avg"), tmp_path / "saved")
    return tmp_path / "saved"


def test_embeddings_that_are_not_finite_are_refused():
    embed = TextEncoder(model_of(lambda texts: torch.full((len(texts), 3), torch.nan)))
    with pytest.raises(UserError, match=r"^model: "):
        embed(["a", "b"])


def test_final_normalisation_is_left_out():
    settings = {"prompts": {"own": "red house "}, "default_prompt_name": "own"}
    model = build_model("bert", "avg", head=True, normalize=True, **settings)
    texts = make_sentences(9)
    bare = SentenceTransformer(modules=list(model)[:-1], device="cpu", **settings)
    np.testing.assert_allclose(TextEncoder(model)(texts), bare.encode(texts), rtol=0, atol=1e-5)
    assert isinstance(model[-1], Normalize)  # the model itself stays as it is


def test_both_kinds_of_model_give_the_same_vectors(saved, tiny_bert):
    sentences = make_sentences(30)
    one, metadata = load_model(str(saved), None)
    other, other_metadata = load_model(str(tiny_bert), "avg")
    torch.testing.assert_close(one(sentences), other(sentences), rtol=0, atol=1e-6)
    assert metadata["max_seq_length"] == 40
    assert metadata["pooler_type"] is None
    assert other_metadata["pooler_type"] == "avg"


def test_missing_weights_are_refused(saved, capfd):
    weights = load_file(saved / "model.safetensors")
    name = "encoder.layer.1.output.dense.weight"
    del weights[name]
    save_file(weights, saved / "model.safetensors", {"format": "pt"})
    capfd.readouterr()
    with pytest.raises(UserError, match=name):
        load_model(str(saved), None)
    assert capfd.readouterr() == ("", "")


def test_accelerate_may_ask_for_the_cpu(saved, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert single_process_device().type == "cuda"
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert load_model(str(saved), None)[1]["device"] == "cpu"


def test_checksums_tell_weights_apart(tiny_bert):
    """The embedded model's file has no pooler, whose weights are drawn."""
    models = [EMBEDDED / "bert-mini-wiki", EMBEDDED / "bert-mini-wiki", tiny_bert]
    one, same, other = (load_model(str(model), "avg")[1]["weights"] for model in models)
    assert one == same != other
