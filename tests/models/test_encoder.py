"""Poolers, dropout views, the head, and loading."""

import pytest
import torch
from conftest import build_tokenizer, build_transformer, make_sentences
from model_cases import (
    POSITIONS,
    build_model,
    close,
    encode_alone,
    encoder_module,
    packed_batch,
    random_head,
    save_encoder,
)
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer

from dystress_text.errors import ParameterError, UserError
from dystress_text.models.encoding import can_pack, encode
from dystress_text.models.loading import load_encoder, position_limit, save_model
from dystress_text.models.model_with_heads import ModelWithHeads, check_views
from dystress_text.models.poolers import (
    AVERAGED,
    FIRST,
    POOLERS,
    attends_to_the_left_only,
    embeddings_by_pooler,
    layer_weights,
    pooler_of,
    pooling_modules,
)

FAMILIES = ("bert", "roberta", "distilbert", "mpnet", "modernbert")
DECODERS = ("llama", "gpt2")


def with_pooler(module, pooler, **settings):
    modules = [module, *pooling_modules(pooler, module)]
    return SentenceTransformer(modules=modules, device="cpu", **settings)


@pytest.mark.parametrize("pooler", POOLERS)
def test_poolers_against_loops(pooler):
    torch.manual_seed(0)
    states = [torch.randn(2, 4, 16) for _ in range(4)]  # the embedding layer and three more
    lengths = [4, 2]
    features = {
        "token_embeddings": states[-1],
        "all_layer_embeddings": states,
        "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]),
    }
    rows = []
    for row, length in enumerate(lengths):
        layers = [states[i][row] for i in AVERAGED.get(pooler, [-1])]
        tokens = range(length)
        if pooler in FIRST:
            tokens = [0]
        if pooler == "last":
            tokens = [length - 1]
        total = sum(layer[i] for layer in layers for i in tokens)
        rows.append(total / (len(layers) * len(tokens)))
    for module in pooling_modules(pooler, encoder_module()):
        features = module(features)
    close(features["sentence_embedding"], torch.stack(rows))


def test_layers_of_a_deeper_encoder():
    assert layer_weights("avg_top2", 5).tolist() == [0, 0, 0, 0, 1, 1]
    assert layer_weights("avg_first_last", 5).tolist() == [0, 1, 0, 0, 0, 1]


@pytest.mark.parametrize("pooler", POOLERS)
def test_pooler_is_recognised_by_its_modules(pooler):
    found = pooler_of(build_model("bert", pooler, head=True, normalize=True))
    assert found == ("cls" if pooler in FIRST else pooler)


def test_limit_of_positions_or_tokenizer(tmp_path):
    for family in FAMILIES:
        assert position_limit(build_transformer(family)) == POSITIONS
    assert encoder_module().max_seq_length == POSITIONS
    save_encoder(tmp_path)
    tokenizer = build_tokenizer()
    tokenizer.model_max_length = 12
    tokenizer.save_pretrained(tmp_path)
    assert load_encoder(str(tmp_path)).module.max_seq_length == 12


@pytest.mark.parametrize("family", ["bert", "llama"])
def test_one_pass_equals_a_model_for_each_pooler(family):
    sentences = make_sentences(5)
    prompts = {"prompts": {"own": "red house "}, "default_prompt_name": "own"}
    model = build_model(family, "avg", **prompts)
    found = embeddings_by_pooler(model, sentences, POOLERS)
    assert not model[0].model.config.output_hidden_states
    for pooler in POOLERS:
        expected = encode_alone(with_pooler(model[0], pooler, **prompts), sentences)
        close(found[pooler], expected, 1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_all_trainable_parameters_get_a_gradient(family):
    """DistributedDataParallel needs each trainable parameter in the graph."""
    model = build_model(family, "cls")
    trained = ModelWithHeads(model, random_head()).train()
    batch = packed_batch(model, make_sentences(4))
    trained(*batch, packed=can_pack(model)).square().sum().backward()
    for name, parameter in trained.named_parameters():
        assert parameter.requires_grad == (parameter.grad is not None), name


def test_missing_tokenizer_is_rejected(tmp_path):
    build_transformer("bert").save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"\A[^\n]*tokenizer[^\n]*\Z"):
        load_encoder(str(tmp_path))


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_dropout_by_option(family, tmp_path):
    save_encoder(tmp_path, family)
    some, none = (load_encoder(str(tmp_path), rate).module for rate in (0.2, 0.0))
    check_views(ModelWithHeads(with_pooler(some, "avg")))
    with pytest.raises(ParameterError, match="dropout"):
        check_views(ModelWithHeads(with_pooler(none, "avg")))


@pytest.mark.parametrize("family", [*FAMILIES, *DECODERS])
def test_decoders_are_recognised(family):
    assert attends_to_the_left_only(build_transformer(family)) == (family in DECODERS)


@pytest.mark.parametrize(("family", "side"), [("llama", "left"), ("gpt2", "right")])
def test_last_token_does_not_depend_on_padding(family, side, tmp_path):
    save_encoder(tmp_path / "decoder", family)
    tokenizer = build_tokenizer()
    tokenizer.padding_side = side
    tokenizer.init_kwargs["padding_side"] = side
    tokenizer.save_pretrained(tmp_path / "decoder")
    module = load_encoder(str(tmp_path / "decoder")).module
    sentences = make_sentences(9)
    alone = []
    for sentence in sentences:
        ids = torch.tensor([tokenizer(sentence)["input_ids"]])
        alone.append(module.model.eval()(ids).last_hidden_state[0, -1].detach())
    expected = torch.stack(alone)
    model = with_pooler(module, "last")
    close(encode(model, sentences), expected)
    save_model(model, tmp_path / "saved")
    saved = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    close(saved.encode(sentences), expected)
    assert AutoTokenizer.from_pretrained(tmp_path / "saved").padding_side == "right"
