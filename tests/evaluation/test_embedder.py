"""Models under evaluation: loading, embeddings before normalisation, and models that are no use."""

import numpy as np
import pytest
import torch
from conftest import make_sentences
from model_cases import build_model, model_of
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize
from transformers.utils import logging

from dystress_text.errors import UserError
from dystress_text.evaluation.embedder import TextEncoder, load_model
from dystress_text.io.paths import EMBEDDED
from dystress_text.models.embedder import Embedder
from dystress_text.models.loading import load_encoder, save_model
from dystress_text.training.accelerator import single_process_device


@pytest.fixture
def saved(tmp_path):
    """A sentence-transformers folder."""
    save_model(build_model("bert", "avg"), tmp_path / "saved")
    return tmp_path / "saved"


@pytest.mark.parametrize(
    ("value", "said"), [(float("nan"), "NaN"), (1.0, "same vector for every sentence")]
)
def test_embeddings_without_meaning_are_refused(value, said):
    embed = TextEncoder(model_of(lambda texts: torch.full((len(texts), 3), value)))
    with pytest.raises(UserError, match=f"^model: .*{said}"):
        embed(["a", "b"])


def test_normalisation_at_the_end_is_left_out_and_prompts_and_similarity_stay():
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


def test_both_kinds_of_model_give_the_same_vectors_and_bf16_is_close(saved, tiny_bert):
    sentences = make_sentences(30)
    one, card = load_model(str(saved), None)
    other, other_card = load_model(str(tiny_bert), "avg")
    torch.testing.assert_close(one(sentences), other(sentences), rtol=0, atol=1e-6)
    assert (card["max_seq_length"], card["pooler_type"], other_card["pooler_type"]) == (
        40,
        None,
        "avg",
    )
    for model, pooler in ((saved, None), (tiny_bert, "avg")):
        rough = load_model(str(model), pooler, "bf16")[0]
        assert 0 < (one(sentences) - rough(sentences).float()).abs().max() < 0.1


def test_loading_and_saving_are_quiet_and_lost_weights_are_said(saved, tmp_path, capfd):
    logging.set_verbosity_warning()  # a program that ran in this process has turned all off
    logging.enable_progress_bar()
    Embedder(build_model("bert", "avg")).save(tmp_path / "again")
    capfd.readouterr()
    load_encoder(str(saved))
    weights = load_file(saved / "model.safetensors")
    name = "encoder.layer.1.output.dense.weight"
    lost = {key: tensor for key, tensor in weights.items() if key != name}
    lost["odd.weight"] = lost.pop("pooler.dense.weight")
    save_file(
        weights | {"odd.weight": lost["odd.weight"].clone()},
        saved / "model.safetensors",
        {"format": "pt"},
    )
    load_encoder(str(saved))
    load_model(str(saved), None)
    assert capfd.readouterr() == ("", "")
    save_file(lost, saved / "model.safetensors", {"format": "pt"})
    for load in (load_encoder, load_model):
        with pytest.raises(UserError, match=f"{name}$"):
            load(str(saved), None)
    assert capfd.readouterr() == ("", "")
    assert logging.is_progress_bar_enabled()  # as before


def test_a_gpu_is_left_alone_where_accelerate_shall_use_the_cpu(saved, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert single_process_device().type == "cuda"
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    assert load_model(str(saved), None)[1]["device"] == "cpu"


def test_a_model_that_cuts_sentences_is_said(saved):
    model = SentenceTransformer(str(saved))
    model.max_seq_length = 8
    model.save(str(saved))
    with pytest.warns(UserWarning, match="cuts sentences at 8 tokens, its encoder reads 40"):
        assert load_model(str(saved), None)[1]["max_seq_length"] == 8


def test_the_checksum_of_weights_is_the_models(tiny_bert):
    """The embedded model's file has no pooler, whose weights are drawn."""
    models = [EMBEDDED / "bert-mini-wiki", EMBEDDED / "bert-mini-wiki", tiny_bert]
    one, same, other = (load_model(str(model), "avg")[1]["weights"] for model in models)
    assert one == same != other
