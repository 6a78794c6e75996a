"""``encode`` against that of sentence-transformers."""

import pytest
import torch
from accelerate import Accelerator
from accelerate.hooks import ModelHook, add_hook_to_module
from conftest import make_sentences
from model_cases import (
    TEXTS,
    build_model,
    build_static,
    encode_alone,
    encoder_module,
    without_normalization,
)
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch.nn.functional import normalize

from dystress_text.models import encoding
from dystress_text.models.encoding import can_pack, encode
from dystress_text.models.poolers import POOLERS, pooling_modules

SENTENCES = [*TEXTS, *make_sentences(30, seed=3), "", " ", TEXTS[0], "the [PAD] cat"]
PROMPTS = {
    "prompts": {"query": "the cat saw ", "passage": "big river ", "own": "red house "},
    "default_prompt_name": "own",
}


def same(found, expected):
    """Compare embeddings (n, dim), also as unit vectors."""
    expected = torch.as_tensor(expected)
    units = normalize(expected, dim=1)
    torch.testing.assert_close(normalize(found, dim=1), units, rtol=0, atol=1e-6)
    scale = max(1.0, float(expected.norm(dim=1).max()))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6 * scale)


def build(kind, **settings):
    return build_static(8, **settings) if kind == "static" else build_model(kind, **settings)


@pytest.mark.parametrize("pooler", POOLERS)
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_packed_pass_equals_sentence_transformers(family, pooler):
    model = build_model(family, pooler, head=True, normalize=True, **PROMPTS)
    for layer in model[0].model.encoder.layer:
        layer.intermediate.dense.weight.data *= 30  # where GELU and tanh's approximation differ
    assert can_pack(model)
    same(encode(model, SENTENCES), model.encode(SENTENCES))
    bare = without_normalization(model)
    same(encode(bare, SENTENCES), bare.encode(SENTENCES))


@pytest.mark.parametrize(
    ("family", "pooler"),
    [("distilbert", "avg"), ("mpnet", "cls"), ("modernbert", "avg_top2"), ("llama", "last")],
)
def test_other_encoders_equal_sentence_transformers(family, pooler):
    model = build_model(family, pooler)
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
    model = build(kind)
    model.prompts = PROMPTS["prompts"]
    model.default_prompt_name = "own"
    same(encode(model, SENTENCES, "query"), model.encode_query(SENTENCES))
    same(encode(model, SENTENCES, "document"), model.encode_document(SENTENCES))
    same(encode(model, SENTENCES), model.encode(SENTENCES))


def test_pooling_without_the_prompt():
    module = encoder_module("bert")
    pooling = Pooling(16, "mean", include_prompt=False)
    model = SentenceTransformer(modules=[module, pooling], device="cpu", **PROMPTS)
    assert not can_pack(model)
    same(encode(model, TEXTS), model.encode(TEXTS))


def test_first_token_of_averaged_layers():
    module = encoder_module("bert")
    averaging, _ = pooling_modules("avg_first_last", module)
    model = SentenceTransformer(modules=[module, averaging, Pooling(16, "cls")], device="cpu")
    assert can_pack(model)
    same(encode(model, TEXTS), model.encode(TEXTS))


class Doubled(torch.nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def test_other_layers_than_berts():
    model = build_model("bert", "avg")
    for layer in model[0].model.encoder.layer:
        layer.intermediate.intermediate_act_fn = torch.nn.ReLU()
        layer.output.dense.__class__ = Doubled
    assert can_pack(model)
    same(encode(model, TEXTS), model.encode(TEXTS))


def test_bert_as_a_decoder():
    model = build_model("bert", "avg")
    before = model.encode(TEXTS)
    model[0].model.config.is_decoder = True
    assert abs(model.encode(TEXTS) - before).max() > 1e-3
    assert not can_pack(model)
    same(encode(model, TEXTS), model.encode(TEXTS))


@pytest.mark.parametrize("pooler", ["cls", "avg", "last"])
def test_tokenizer_without_special_tokens(pooler):
    """An empty text has no tokens: their mean is 0, and there is no first or last one."""
    model = build_model("bert", pooler, special="$A")
    texts = ["cat", "dog", "the cat"]
    same(encode(model, texts), encode_alone(model, texts))
    if pooler == "avg":
        texts += ["", " "]
        same(encode(model, texts), model.encode(texts))


@pytest.mark.parametrize("kind", ["bert", "distilbert", "static"])
def test_embeddings_are_truncated(kind):
    model = build(kind)
    model.truncate_dim = 5
    assert encode(model, SENTENCES).shape[1] == 5
    same(encode(model, SENTENCES), model.encode(SENTENCES))


def modes(model):
    return [module.training for module in model.modules()]


@pytest.mark.parametrize("kind", ["bert", "distilbert", "static"])
def test_encoding_changes_no_state(kind):
    model = build(kind, normalize=True)
    expected = encode(model, SENTENCES)
    for training in (True, False):
        model.train(training)
        model[-1].train(not training)
        before = torch.get_rng_state()
        modes_before = modes(model)
        for whole in (True, False):
            first = encode(model, SENTENCES, normalize=whole)
            assert modes(model) == modes_before
            assert torch.equal(before, torch.get_rng_state())
            assert torch.equal(first, encode(model, SENTENCES, normalize=whole))
            assert not first.requires_grad
        assert torch.equal(encode(model, SENTENCES), expected)


@pytest.mark.parametrize("kind", ["bert", "distilbert"])
def test_modes_of_other_threads_do_not_matter(kind):
    """During the pass another thread may put the model into training mode, and sees no change."""
    model = build(kind, normalize=True)
    expected = encode(model, SENTENCES)
    model.train()
    seen = []

    def other_thread(*_):
        seen.extend(modes(model))
        model.train()

    model[-1].register_forward_pre_hook(other_thread)
    embeddings = next(iter(model[0].model.children()))  # after which dropout follows
    embeddings.register_forward_pre_hook(other_thread)
    assert torch.equal(encode(model, SENTENCES), expected)
    assert seen
    assert all(seen)


def test_models_that_accelerate_has_prepared_are_encoded_in_evaluation_mode():
    model = build("distilbert").train()
    prepared = Accelerator(cpu=True, mixed_precision="bf16").prepare(model)
    assert "forward" in vars(model)
    found = encode(prepared, SENTENCES)
    assert all(modes(model))
    expected = torch.as_tensor(prepared.encode(SENTENCES))  # in bf16, too
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)


def test_models_with_hooks_of_accelerate_are_encoded_in_evaluation_mode():
    """A model that ``device_map`` spreads over devices has them."""
    model = build("distilbert")
    expected = torch.as_tensor(model.encode(SENTENCES))
    add_hook_to_module(model[0].model, ModelHook())
    model.train()
    torch.testing.assert_close(encode(model, SENTENCES), expected, rtol=0, atol=1e-6)
    assert all(modes(model))


def test_compiled_parts_are_encoded_in_evaluation_mode():
    model = build("distilbert")
    expected = encode(model, SENTENCES)
    model[0].model = torch.compile(model[0].model, backend="eager")
    assert torch.equal(encode(model.train(), SENTENCES), expected)


@pytest.mark.parametrize("kind", ["bert", "static"])
def test_batch_size_does_not_change_embeddings(kind, monkeypatch):
    model = build(kind)
    monkeypatch.setattr(encoding, "TEXTS_AT_ONCE", 7)
    monkeypatch.setattr(encoding, "TOKENS_ON_CPU", 25)
    same(encode(model, SENTENCES), model.encode(SENTENCES))


def test_encoding_inside_autocast_is_fp32():
    model = build_model("bert", "avg")
    expected = encode(model, TEXTS)
    with torch.autocast("cpu", torch.bfloat16):
        found = encode(model, TEXTS)
    assert torch.equal(found, expected)
