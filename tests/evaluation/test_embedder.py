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
from dystress_text.models.loading import load_encoder, save_model
from dystress_text.training.accelerator import single_process_device


@pytest.fixture
def saved(tmp_path):
    """A sentence-transformers folder."""
    save_model(build_model("bert", "avg"), tmp_path / "saved")
    return tmp_path / "saved"


@pytest.mark.parametrize("value", [float("nan"), 1.0])
def test_useless_embeddings_are_refused(value):
    embed = TextEncoder(model_of(lambda texts: torch.full((len(texts), 3), value)))
    with pytest.raises(UserError, match=r"^model: "):
        embed(["a", "b"])


def test_final_normalisation_is_left_out():
    """SentEval's classifiers are fitted on embeddings before it."""
    settings = {
        "prompts": {"query": "the cat saw ", "own": "red house "},
        "default_prompt_name": "own",
    }
    model = build_model(
        "bert", "avg", head=True, normalize=True, **settings, similarity_fn_name="dot"
    )
    texts = make_sentences(9)
    embed = TextEncoder.of(model)
    bare = SentenceTransformer(modules=list(model)[:-1], device="cpu", **settings)
    np.testing.assert_allclose(embed(texts), bare.encode(texts), rtol=0, atol=1e-5)
    np.testing.assert_allclose(embed.query(texts), bare.encode_query(texts), rtol=0, atol=1e-5)
    np.testing.assert_allclose(
        embed.document(texts), bare.encode_document(texts), rtol=0, atol=1e-5
    )
    assert isinstance(model[-1], Normalize)  # the model itself stays as it is
    assert embed.similarity == "cosine"  # the dot product of unit vectors


def test_both_kinds_of_model_give_the_same_vectors(saved, tiny_bert):
    sentences = make_sentences(30)
    one, card = load_model(str(saved), None)
    other, other_card = load_model(str(tiny_bert), "avg")
    torch.testing.assert_close(one(sentences), other(sentences), rtol=0, atol=1e-6)
    assert (card["max_seq_length"], card["pooler_type"]) == (40, None)
    assert other_card["pooler_type"] == "avg"
    for model, pooler in ((saved, None), (tiny_bert, "avg")):
        rough = load_model(str(model), pooler, "bf16")[0]
        assert 0 < (one(sentences) - rough(sentences).float()).abs().max() < 0.1


def test_missing_weights_are_refused(saved, capfd):
    weights = load_file(saved / "model.safetensors")
    name = "encoder.layer.1.output.dense.weight"
    kept = {key: tensor for key, tensor in weights.items() if key != name}
    save_file(kept, saved / "model.safetensors", {"format": "pt"})
    capfd.readouterr()
    for load in (load_encoder, load_model):
        with pytest.raises(UserError, match=name):
            load(str(saved), None)
    assert capfd.readouterr() == ("", "")


def test_accelerate_may_ask_for_the_cpu(saved, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert single_process_device().type == "cuda"
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert load_model(str(saved), None)[1]["device"] == "cpu"


def test_short_limits_are_warned_of(saved):
    model = SentenceTransformer(str(saved))
    model.max_seq_length = 8
    model.save(str(saved))
    with pytest.warns(UserWarning, match="8 tokens.* 40"):
        assert load_model(str(saved), None)[1]["max_seq_length"] == 8


def test_checksums_tell_weights_apart(tiny_bert):
    """The embedded model's file has no pooler, whose weights are drawn."""
    models = [EMBEDDED / "bert-mini-wiki", EMBEDDED / "bert-mini-wiki", tiny_bert]
    one, same, other = (load_model(str(model), "avg")[1]["weights"] for model in models)
    assert one == same != other
