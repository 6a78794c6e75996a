"""Sentences of evaluations while training: tokenised once, batched by tokens, encoded where the
encoder lies.
"""

import numpy as np
import pytest
import torch
from conftest import build_tokenizer, build_transformer, make_sentences
from sentence_transformers import SentenceTransformer

from dystress_text.encoders import encoder as encoders
from dystress_text.encoders.encoder import SentenceEncoder, TokenizedOnce, by_tokens
from dystress_text.encoders.loading import load_sentence_transformer

SENTENCES = [
    *make_sentences(150, seed=3),
    "cat",
    " ".join(["dog"] * 100),
]  # the last one is beyond the 40 positions


def test_batches_by_tokens_hold_each_sentence_once_and_keep_the_bound():
    lengths = [*np.random.default_rng(0).integers(1, 60, 500).tolist(), 900]
    batches = by_tokens(lengths, most=256)
    assert sorted(i for batch in batches for i in batch) == list(range(501))
    assert batches[-1] == [500]
    assert all(len(batch) * lengths[batch[-1]] <= 256 for batch in batches[:-1])


@pytest.mark.parametrize("pooler", ["cls", "avg_first_last"])
def test_on_a_cpu_the_vectors_are_bit_for_bit_those_of_encode(pooler):
    model = SentenceEncoder(build_transformer("roberta"), pooler, True, keep_head=True)
    tokenized = TokenizedOnce(build_tokenizer(), 40)
    assert torch.equal(
        model.encode_again(SENTENCES, tokenized), model.encode(SENTENCES, build_tokenizer())
    )
    assert model.training


def test_evaluation_while_training_is_in_fp32_whatever_the_run_is_in():
    """As SimCSE's."""
    model, tokenized = (
        SentenceEncoder(build_transformer("bert"), "avg"),
        TokenizedOnce(build_tokenizer(), 40),
    )
    expected = model.encode_again(SENTENCES, tokenized)
    with torch.autocast("cpu", torch.bfloat16):
        found = model.encode_again(SENTENCES, tokenized)
    assert found.dtype == torch.float32
    assert torch.equal(found, expected)


def test_batches_by_tokens_give_the_same_vectors(monkeypatch):
    """As on an accelerator."""
    model, tokenized = (
        SentenceEncoder(build_transformer("bert"), "avg"),
        TokenizedOnce(build_tokenizer(), 40),
    )
    expected = model.encode(SENTENCES, build_tokenizer(), batch_size=1)
    lengths = [len(ids) for ids in tokenized(SENTENCES)]
    monkeypatch.setattr(encoders, "by_sentences", lambda *_: by_tokens(lengths, 320))
    torch.testing.assert_close(
        model.encode_again(SENTENCES, tokenized), expected, rtol=0, atol=1e-6
    )


@pytest.mark.parametrize(
    ("family", "pooler", "head"),
    [("llama", "last", False), ("gpt2", "avg_top2", False), ("bert", "avg", True), ("roberta", "cls", False),
     ("modernbert", "last", True)],
)  # fmt: skip
def test_a_text_without_tokens_has_the_vector_of_sentence_transformers(
    family, pooler, head, tmp_path
):
    """Beside another text, where that library gives one; alone, where it does not, the same."""
    tokenizer = build_tokenizer("$A")
    encoder = SentenceEncoder(build_transformer(family), pooler, head, keep_head=head)
    encoder.save(tmp_path, tokenizer)
    empty, texts = ["", " ", "\x01\x02"], ["", "a cat", " ", "\x01\x02", " ".join(["dog"] * 9)]
    expected = torch.tensor(SentenceTransformer(str(tmp_path), device="cpu").encode(texts))
    assert torch.equal(expected[0], expected[2])
    tokenized = TokenizedOnce(tokenizer, 40)
    for vectors in (
        encoder.encode(texts, tokenizer), encoder.encode(texts, tokenizer, batch_size=1),
        encoder.encode_again(texts, tokenized), torch.tensor(load_sentence_transformer(str(tmp_path)).encode(texts)),
    ):  # fmt: skip
        torch.testing.assert_close(vectors, expected, rtol=0, atol=1e-5)
    for vectors in (
        encoder.encode(empty, tokenizer),
        load_sentence_transformer(str(tmp_path), "cpu").encode(empty),
    ):
        torch.testing.assert_close(torch.as_tensor(vectors), expected[[0, 0, 0]], rtol=0, atol=1e-5)
    if pooler != "cls":
        zeros = encoder.head.bias.detach().tanh() if head else torch.zeros(16)
        torch.testing.assert_close(expected[0], zeros, rtol=0, atol=1e-6)
        assert not encoder.encode_by_pooler([""], tokenizer, [pooler])[pooler].any()
