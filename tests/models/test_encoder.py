"""Poolers, dropout views, the head, and loading."""

import pytest
import torch
from conftest import build_tokenizer, build_transformer, make_sentences
from model_cases import (
    POSITIONS,
    build_model,
    encode_alone,
    encoder_module,
    packed_batch,
    random_head,
    save_encoder,
)
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer, BertModel

from dystress_text.errors import ParameterError, UserError
from dystress_text.models.embedder import Embedder, can_pack, check_views, encode
from dystress_text.models.loading import load_encoder, position_limit, save_model
from dystress_text.models.poolers import (
    FIRST,
    POOLERS,
    embeddings_by_pooler,
    pooler_of,
    pooling_modules,
)

FAMILIES = ("bert", "roberta", "distilbert", "mpnet", "modernbert")


def refused(error, *said):
    """Check that an error is one line with certain names in it."""
    assert "\n" not in str(error.value)
    assert all(name in str(error.value) for name in said)


def test_poolers_against_loops():
    torch.manual_seed(0)
    states = [torch.randn(2, 4, 16) for _ in range(4)]  # the embedding layer and three more
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])

    def mean(layers, row):
        tokens = [t for t in range(4) if mask[row, t]]
        of_tokens = [sum(states[k][row, t] for k in layers) / len(layers) for t in tokens]
        return sum(of_tokens) / len(tokens)

    def by_modules(name):
        module = encoder_module()
        features = {
            "token_embeddings": states[-1],
            "all_layer_embeddings": states,
            "attention_mask": mask,
        }
        for each in pooling_modules(name, module):
            features = each(features)
        return features["sentence_embedding"]

    for name, layers in {"avg": [3], "avg_top2": [2, 3], "avg_first_last": [1, 3]}.items():
        expected = torch.stack([mean(layers, row) for row in range(2)])
        torch.testing.assert_close(by_modules(name), expected)
    for name in FIRST:
        assert torch.equal(by_modules(name), states[3][:, 0])
    assert torch.equal(by_modules("last"), states[3][torch.arange(2), [3, 1]])


@pytest.mark.parametrize("pooler", POOLERS)
def test_pooler_is_recognised_by_its_modules(pooler):
    same_modules = {"cls", "cls_before_pooler"}
    found = pooler_of(build_model("bert", pooler, head=True, normalize=True))
    assert found == ("cls" if pooler in same_modules else pooler)


def test_limit_of_positions_or_tokenizer(tmp_path):
    assert {position_limit(build_transformer(family)) for family in FAMILIES} == {POSITIONS}
    assert {encoder_module(family).max_seq_length for family in FAMILIES} == {POSITIONS}
    save_encoder(tmp_path)
    tokenizer = build_tokenizer()
    tokenizer.model_max_length = 12
    tokenizer.save_pretrained(tmp_path)
    assert load_encoder(str(tmp_path)).module.max_seq_length == 12


@pytest.mark.parametrize("family", ["bert", "distilbert", "llama"])
def test_one_pass_equals_a_model_for_each_pooler(family):
    sentences = make_sentences(9)
    prompts = {"prompts": {"own": "red house "}, "default_prompt_name": "own"}
    model = build_model(family, "avg", **prompts)
    found = embeddings_by_pooler(model, sentences, POOLERS)
    assert not model[0].model.config.output_hidden_states
    for pooler in POOLERS:
        expected = encode_alone(build_model(family, pooler, **prompts), sentences)
        torch.testing.assert_close(found[pooler], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_all_trainable_parameters_get_a_gradient(family):
    """What DistributedDataParallel needs: no trainable parameter outside the graph."""
    model = build_model(family, "cls")
    embedder = Embedder(model, random_head()).train()
    batch = packed_batch(model, make_sentences(4))
    embedder(*batch, packed=can_pack(model)).square().sum().backward()
    without = [n for n, p in embedder.named_parameters() if p.requires_grad and p.grad is None]
    assert without == []


def test_missing_or_foreign_tokenizer_is_rejected(tmp_path, tokenizer):
    config = build_transformer("bert").config
    config.vocab_size = len(tokenizer) - 1
    BertModel(config).save_pretrained(tmp_path)
    with pytest.raises(UserError) as caught:
        load_encoder(str(tmp_path))
    refused(caught, "tokenizer")
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UserError) as caught:
        load_encoder(str(tmp_path))
    refused(caught, "tokenizer", str(len(tokenizer) - 1))


@pytest.mark.parametrize("family", ["bert", "distilbert", "modernbert"])
def test_dropout_by_option(family, tmp_path):
    save_encoder(tmp_path, family)

    def views(rate):
        module = load_encoder(str(tmp_path), rate).module
        modules = [module, *pooling_modules("avg", module)]
        check_views(Embedder(SentenceTransformer(modules=modules, device="cpu")))

    views(0.2)
    with pytest.raises(ParameterError) as error:
        views(0.0)
    refused(error, "dropout")


@pytest.mark.parametrize(
    ("family", "side"), [("llama", "left"), ("gpt2", "left"), ("gpt2", "right")]
)
def test_last_token_does_not_depend_on_padding(family, side, tmp_path):
    save_encoder(tmp_path / "decoder", family)
    tokenizer = build_tokenizer()
    tokenizer.padding_side = tokenizer.init_kwargs["padding_side"] = side
    tokenizer.save_pretrained(tmp_path / "decoder")
    module = load_encoder(str(tmp_path / "decoder")).module
    model = SentenceTransformer(modules=[module, *pooling_modules("last", module)], device="cpu")
    sentences = make_sentences(9)
    with torch.no_grad():
        ids = [torch.tensor([tokenizer(sentence)["input_ids"]]) for sentence in sentences]
        alone = torch.cat([module.model.eval()(one).last_hidden_state[:, -1] for one in ids])
    torch.testing.assert_close(encode(model, sentences), alone, rtol=0, atol=1e-6)
    save_model(model, tmp_path / "saved")
    saved = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    torch.testing.assert_close(torch.tensor(saved.encode(sentences)), alone, rtol=0, atol=1e-6)
    assert AutoTokenizer.from_pretrained(tmp_path / "saved").padding_side == "right"
