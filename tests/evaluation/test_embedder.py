"""Encoders under evaluation: each sentence once, and models that are no use."""

import pytest
import torch
from conftest import make_sentences
from dystress_text.encoders.loading import load_encoder
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from transformers.utils import logging

from dystress_text.errors import UserError
from dystress_text.evaluation.embedder import EncodedOnce, load_model, refusing_useless
from dystress_text.files.places import EMBEDDED
from dystress_text.training.accelerator import device_alone


@pytest.fixture
def saved(tiny_bert, tmp_path):
    """A sentence-transformers folder."""
    encoder, tokenizer = load_encoder(str(tiny_bert), "avg")
    encoder.save(tmp_path / "saved", tokenizer)
    return tmp_path / "saved"


def test_each_distinct_sentence_is_encoded_once_and_new_ones_by_themselves():
    calls = []

    def encode(sentences):
        calls.append(list(sentences))
        return torch.tensor([[len(s), ord(s[0])] for s in sentences], dtype=torch.float32)

    embed = EncodedOnce(encode)
    assert embed(["b", "aa", "b"]).tolist() == [[1, 98], [2, 97], [1, 98]]
    assert embed(["aa"]).tolist() == [[2, 97]]
    assert embed(["c", "b", "dd"]).tolist() == [[1, 99], [1, 98], [2, 100]]
    assert calls == [["b", "aa"], ["c", "dd"]]


@pytest.mark.parametrize(
    ("value", "words"), [(float("nan"), "NaN"), (1.0, "same vector for every sentence")]
)
def test_vectors_without_meaning_are_refused(value, words):
    with pytest.raises(UserError, match=words):
        refusing_useless(lambda sentences: torch.full((len(sentences), 3), value))(["a", "b"])


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
    encoder, tokenizer = load_encoder(str(saved), "avg")
    encoder.save(tmp_path / "again", tokenizer)
    weights = load_file(saved / "model.safetensors")
    name = "encoder.layer.1.output.dense.weight"
    lost = {key: tensor for key, tensor in weights.items() if key != name}
    lost["odd.weight"] = lost.pop("pooler.dense.weight")
    save_file(
        weights | {"odd.weight": lost["odd.weight"].clone()},
        saved / "model.safetensors",
        {"format": "pt"},
    )
    load_encoder(str(saved), "avg")
    load_model(str(saved), None)
    assert capfd.readouterr() == ("", "")
    save_file(lost, saved / "model.safetensors", {"format": "pt"})
    for load in (load_encoder, load_model):
        with pytest.raises(
            UserError, match=f"lacks weights of its encoder, 1 in all, such as {name}$"
        ):
            load(str(saved), None if load is load_model else "avg")
    assert capfd.readouterr() == ("", "")
    assert logging.is_progress_bar_enabled()  # as before


def test_a_gpu_is_left_alone_where_accelerate_shall_use_the_cpu(saved, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert device_alone().type == "cuda"
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
