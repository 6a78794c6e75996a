"""Encoders under evaluation: each sentence once, the cache, the card, and models that are no use."""

import json
import shutil

import pytest
import torch
from conftest import make_sentences

from dystress_text.encoders.encoder import load_encoder
from dystress_text.errors import UserError
from dystress_text.evaluation.embedder import EncodedOnce, load_model, refusing_useless


@pytest.fixture
def saved(tiny_bert, tmp_path):
    """A sentence-transformers folder."""
    encoder, tokenizer = load_encoder(str(tiny_bert), "avg")
    encoder.save(tmp_path / "saved", tokenizer)
    return tmp_path / "saved"


class Counting:
    """Gives each sentence its length and remembers what it was asked."""

    def __init__(self):
        self.asked = []

    def __call__(self, sentences):
        self.asked += sentences
        return torch.tensor([[float(len(s)), 1.0] for s in sentences])


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


def test_the_cache_outlives_the_run(tmp_path):
    file = tmp_path / "cache" / "x.safetensors"
    first, second = Counting(), Counting()
    embed = EncodedOnce(first, file)
    vectors = embed(["a", "bb"])
    embed.save()
    again = EncodedOnce(second, file)
    assert torch.equal(again(["bb", "a"]), vectors.flip(0))
    assert again(["dddd"]).tolist() == [[4, 1]]
    assert second.asked == ["dddd"]
    again.save()
    assert EncodedOnce(Counting(), file)(["a", "bb", "dddd"]).tolist() == [[1, 1], [2, 1], [4, 1]]


@pytest.mark.parametrize("content", [b"", b"\x08\x00\x00\x00\x00\x00\x00\x00{}", b"not a cache" * 20])
def test_a_damaged_cache_is_a_warning(tmp_path, content):
    file = tmp_path / "x.safetensors"
    file.write_bytes(content)
    with pytest.warns(UserWarning, match="is damaged"):
        embed = EncodedOnce(Counting(), file)
    assert embed(["a"]).tolist() == [[1, 1]]


@pytest.mark.parametrize(("value", "words"), [(float("nan"), "NaN"), (1.0, "same vector for every sentence")])
def test_vectors_without_meaning_are_refused(value, words):
    with pytest.raises(UserError, match=words):
        refusing_useless(lambda sentences: torch.full((len(sentences), 3), value))(["a", "b"])


def test_both_kinds_of_model_give_the_same_vectors(saved, tiny_bert):
    sentences = make_sentences(30)
    one, card = load_model(str(saved), None)
    other, other_card = load_model(str(tiny_bert), "avg")
    torch.testing.assert_close(one(sentences), other(sentences), rtol=0, atol=1e-6)
    assert (card.max_seq_length, card.pooler_type, other_card.pooler_type) == (40, None, "avg")


def test_bf16_is_close_and_another_model_for_the_cache(saved, tiny_bert):
    sentences = make_sentences(10)
    for model, pooler in ((saved, None), (tiny_bert, "avg")):
        exact, card = load_model(str(model), pooler)
        rough, rough_card = load_model(str(model), pooler, "bf16")
        difference = (exact(sentences) - rough(sentences).float()).abs().max()
        assert 0 < difference < 0.1
        assert card.sha256 != rough_card.sha256


def test_the_checksum_is_of_the_content(saved, tmp_path):
    card = load_model(str(saved), None)[1]
    copy = tmp_path / "copy"
    shutil.copytree(saved, copy)
    assert load_model(str(copy), None)[1].sha256 == card.sha256
    config = json.loads((copy / "tokenizer_config.json").read_text())
    (copy / "tokenizer_config.json").write_text(json.dumps({**config, "model_max_length": 8}))
    with pytest.warns(UserWarning, match="cuts sentences at 8 tokens, its encoder reads 40"):
        assert load_model(str(copy), None)[1].sha256 != card.sha256


def test_unloadable_models_are_one_line(tmp_path, saved):
    weights = saved / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    none = tmp_path / "none"
    for model, pooler, words in [(none, None, "--pooler_type"), (none, "avg", "cannot load"), (saved, None, "cannot")]:
        with pytest.raises(UserError, match=words) as caught:
            load_model(str(model), pooler)
        assert "\n" not in str(caught.value)
