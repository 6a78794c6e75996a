"""Encoding: the embeddings are those of sentence-transformers' own ``encode``, batched by tokens."""

import pytest
import torch
from conftest import make_sentences
from model_cases import TEXTS, build_model, build_static, encode_alone, encoder_module
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling
from torch.nn.functional import normalize

from dystress_text.models import embedder
from dystress_text.models.embedder import (
    can_pack,
    encode,
    prompt_of,
    without_normalization,
)
from dystress_text.models.poolers import POOLERS

SENTENCES = [*TEXTS, *make_sentences(30, seed=3), "", " ", TEXTS[0]]
PROMPTS = {
    "prompts": {"query": "the cat saw ", "document": "", "own": "red house "},
    "default_prompt_name": "own",
}
PACKED = ("bert", "roberta", "xlm-roberta")
OTHERS = [("distilbert", "avg"), ("mpnet", "cls"), ("modernbert", "avg_top2"), ("llama", "last")]


def same(found, expected):
    """Compare embeddings (n, dim) on unit vectors."""
    expected = torch.as_tensor(expected)
    torch.testing.assert_close(
        normalize(found, dim=1), normalize(expected, dim=1), rtol=0, atol=1e-6
    )
    scale = float(expected.norm(dim=1).max())
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6 * max(1.0, scale))


@pytest.mark.parametrize("with_prompts", [False, True])
@pytest.mark.parametrize("with_head", [False, True])
@pytest.mark.parametrize("pooler", POOLERS)
@pytest.mark.parametrize("family", PACKED)
def test_packed_pass_equals_sentence_transformers(family, pooler, with_head, with_prompts):
    prompts = PROMPTS if with_prompts else {}
    model = build_model(family, pooler, with_head, normalize=True, **prompts)
    assert can_pack(model)
    same(encode(model, SENTENCES), model.encode(SENTENCES))
    bare = without_normalization(model)
    assert not isinstance(bare[-1], Normalize)
    same(encode(bare, SENTENCES), bare.encode(SENTENCES))


@pytest.mark.parametrize("normalizes", [False, True])
@pytest.mark.parametrize(("family", "pooler"), OTHERS)
def test_other_encoders_equal_sentence_transformers(family, pooler, normalizes):
    model = build_model(family, pooler, normalize=normalizes)
    assert not can_pack(model)
    same(encode(model, SENTENCES), model.encode(SENTENCES))


@pytest.mark.parametrize("normalizes", [False, True])
def test_static_models(normalizes):
    model = build_static(16, normalizes)
    texts = [*SENTENCES, "Ångström, naïve café!", "long " * 700]
    assert can_pack(model)
    same(encode(model, texts), model.encode(texts))


@pytest.mark.parametrize("kind", ["bert", "distilbert", "static"])
def test_prompts_of_queries_and_documents(kind):
    model = build_static(8) if kind == "static" else build_model(kind)
    model.prompts = {"query": "the cat saw ", "passage": "big river ", "own": "red house "}
    model.default_prompt_name = "own"
    assert prompt_of(model, "document") == "big river "
    same(encode(model, SENTENCES, "query"), model.encode_query(SENTENCES))
    same(encode(model, SENTENCES, "document"), model.encode_document(SENTENCES))
    same(encode(model, SENTENCES), model.encode(SENTENCES, prompt="red house "))


def test_pooling_without_the_prompt():
    module = encoder_module("bert")
    pooling = Pooling(16, "mean", include_prompt=False)
    model = SentenceTransformer(modules=[module, pooling], device="cpu", **PROMPTS)
    assert not can_pack(model)
    same(encode(model, SENTENCES[:9]), model.encode(SENTENCES[:9]))
    with_prompt = build_model("bert", "avg", **PROMPTS)
    assert not torch.allclose(encode(model, TEXTS), encode(with_prompt, TEXTS), atol=1e-3)


@pytest.mark.parametrize("pooler", ["cls", "avg", "last"])
@pytest.mark.parametrize("special", ["[CLS] $A [SEP]", "$A"])
def test_empty_and_short_texts(pooler, special):
    """Where a tokenizer adds no tokens, an empty text has none: next to others its mean is 0."""
    model = build_model("bert", pooler, special=special)
    texts = ["", "cat", " ", "dog", "the cat"]
    if special == "$A":
        texts = texts if pooler == "avg" else [text for text in texts if text.strip()]
    same(encode(model, texts), model.encode(texts))
    with_tokens = [text for text in texts if text.strip() or special != "$A"]
    same(encode(model, with_tokens), encode_alone(model, with_tokens))


@pytest.mark.parametrize("kind", ["bert", "distilbert", "static"])
def test_encoding_changes_no_state(kind):
    model = build_static(8) if kind == "static" else build_model(kind)
    for training in (True, False):
        model.train(training)
        before = torch.get_rng_state()
        first = encode(model, SENTENCES)
        assert model.training == training
        assert torch.equal(before, torch.get_rng_state())
        assert torch.equal(first, encode(model, SENTENCES))
        assert not first.requires_grad
        assert first.dtype == torch.float32


@pytest.mark.parametrize("kind", ["bert", "static"])
def test_batch_size_does_not_change_embeddings(kind, monkeypatch):
    model = build_static(8) if kind == "static" else build_model(kind, "avg_first_last")
    monkeypatch.setattr(embedder, "TEXTS_AT_ONCE", 7)
    monkeypatch.setattr(embedder, "TOKENS_ON_CPU", 25)
    same(encode(model, SENTENCES), model.encode(SENTENCES))


def test_encoding_inside_autocast_is_fp32():
    model = build_model("bert", "avg")
    expected = encode(model, TEXTS)
    with torch.autocast("cpu", torch.bfloat16):
        found = encode(model, TEXTS)
    assert torch.equal(found, expected)
