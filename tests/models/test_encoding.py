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
    close,
    encode_alone,
    encoder_module,
    without_normalization,
)
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch.nn.functional import normalize

from dystress_text.models import encoding
from dystress_text.models.encoding import batches_by_tokens, can_pack, encode
from dystress_text.models.poolers import POOLERS, pooling_modules

SENTENCES = [*TEXTS, *make_sentences(30, seed=3), "", " ", TEXTS[0], "the [PAD] cat"]
PROMPTS = {
    "prompts": {"query": "the cat saw ", "passage": "big river ", "own": "red house "},
    "default_prompt_name": "own",
}


def same(found, expected):
    """Compare embeddings (n, dim), also as unit vectors."""
    expected = torch.as_tensor(expected)
    close(normalize(found, dim=1), normalize(expected, dim=1))
    close(found, expected, 1e-6 * max(1.0, float(expected.norm(dim=1).max())))


def build(kind, **settings):
    return build_static(8, **settings) if kind == "static" else build_model(kind, **settings)


def layers_of(model):
    return model[0].model.encoder.layer


@pytest.mark.parametrize("pooler", POOLERS)
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_packed_pass_equals_sentence_transformers(family, pooler):
    model = build_model(family, pooler, head=True, normalize=True, **PROMPTS)
    for layer in layers_of(model):
        layer.intermediate.dense.weight.data *= 30  # where GELU and tanh's approximation differ
    assert can_pack(model)
    same(encode(model, SENTENCES), model.encode(SENTENCES))
    bare = without_normalization(model)
    same(encode(bare, SENTENCES), bare.encode(SENTENCES))


def without_prompt():
    modules = [encoder_module(), Pooling(16, "mean", include_prompt=False)]
    return SentenceTransformer(modules=modules, device="cpu", **PROMPTS)


def first_token_of_averaged_layers():
    module = encoder_module()
    averaging, _ = pooling_modules("avg_first_last", module)
    return SentenceTransformer(modules=[module, averaging, Pooling(16, "cls")], device="cpu")


class Doubled(torch.nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


def other_layers_than_berts():
    model = build_model()
    for layer in layers_of(model):
        layer.intermediate.intermediate_act_fn = torch.nn.ReLU()
        layer.output.dense.__class__ = Doubled
    return model


def bert_as_a_decoder():
    model = build_model()
    before = model.encode(TEXTS)
    model[0].model.config.is_decoder = True
    assert abs(model.encode(TEXTS) - before).max() > 1e-3
    return model


@pytest.mark.parametrize(
    ("builder", "packs"),
    [
        (lambda: build_model("distilbert"), False),
        (lambda: build_model("mpnet", "cls"), False),
        (lambda: build_model("modernbert", "avg_top2"), False),
        (lambda: build_model("llama", "last"), False),
        (lambda: build_static(16), True),
        (lambda: build_static(16, normalize=True), True),
        (without_prompt, False),
        (first_token_of_averaged_layers, True),
        (other_layers_than_berts, True),
        (bert_as_a_decoder, False),
    ],
)
def test_other_models_equal_sentence_transformers(builder, packs):
    model = builder()
    texts = [*SENTENCES, "Ångström, naïve café!", "long " * 700]
    assert can_pack(model) == packs
    same(encode(model, texts), model.encode(texts))


@pytest.mark.parametrize("kind", ["bert", "distilbert", "static"])
def test_prompts_and_truncation(kind):
    model = build(kind)
    model.prompts = PROMPTS["prompts"]
    model.default_prompt_name = "own"
    model.truncate_dim = 5
    same(encode(model, SENTENCES, "query"), model.encode_query(SENTENCES))
    same(encode(model, SENTENCES, "document"), model.encode_document(SENTENCES))
    same(encode(model, SENTENCES), model.encode(SENTENCES))


@pytest.mark.parametrize("pooler", ["cls", "avg", "last"])
def test_tokenizer_without_special_tokens(pooler):
    """An empty text has no tokens: their mean is 0, and there is no first or last one."""
    model = build_model("bert", pooler, special="$A")
    texts = ["cat", "dog", "the cat"]
    same(encode(model, texts), encode_alone(model, texts))
    if pooler == "avg":
        texts += ["", " "]
        same(encode(model, texts), model.encode(texts))


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
            assert torch.equal(first, encode(model, SENTENCES, normalize=whole))
            assert not first.requires_grad
            assert torch.equal(first, expected) == whole
        assert modes(model) == modes_before
        assert torch.equal(before, torch.get_rng_state())


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


def prepared(model):
    """Prepare a model as accelerate does for training in bf16."""
    Accelerator(cpu=True, mixed_precision="bf16").prepare(model)
    assert "forward" in vars(model)


def with_hooks(model):
    """Add the hooks of accelerate, as ``device_map`` does."""
    add_hook_to_module(model[0].model, ModelHook())


def compiled(model):
    model[0].model = torch.compile(model[0].model, backend="eager")


@pytest.mark.parametrize(
    ("change", "tolerance"), [(prepared, 2e-2), (with_hooks, 1e-6), (compiled, 1e-6)]
)
def test_changed_models_are_encoded_in_evaluation_mode(change, tolerance):
    model = build("distilbert")
    expected = model.encode(TEXTS)
    change(model)
    model.train()
    close(encode(model, TEXTS), expected, tolerance)
    assert all(modes(model))


@pytest.mark.parametrize("kind", ["bert", "static"])
def test_batch_size_does_not_change_embeddings(kind, monkeypatch):
    model = build(kind)
    monkeypatch.setattr(encoding, "TEXTS_AT_ONCE", 7)
    monkeypatch.setattr(encoding, "TOKENS_ON_CPU", 25)
    same(encode(model, SENTENCES), model.encode(SENTENCES))


def test_batches_have_at_most_so_many_tokens_or_one_text():
    batches = batches_by_tokens([3, 2, 1, 2, 9, 1], 5)
    assert list(batches) == [(0, 2), (2, 4), (4, 5), (5, 6)]


def test_encoding_inside_autocast_is_fp32():
    model = build_model()
    expected = encode(model, TEXTS)
    with torch.autocast("cpu", torch.bfloat16):
        found = encode(model, TEXTS)
    assert torch.equal(found, expected)
