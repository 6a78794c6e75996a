"""Poolers, dropout views, the head, and loading; what cannot be loaded ends in one line."""

import sys

import pytest
import torch
from conftest import build_tokenizer, build_transformer, make_sentences
from dystress_text.encoders.encoder import SentenceEncoder, check_views, length_limit
from dystress_text.encoders.loading import build_encoder, load_encoder, load_pretrained, load_saved
from dystress_text.encoders.pooling import POOLERS, pool
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer, BertModel

from dystress_text.errors import ParameterError, UserError

FAMILIES = ("bert", "roberta", "distilbert", "mpnet", "modernbert")


def batch(tokenizer, sentences):
    ids = [torch.tensor(of_sentence) for of_sentence in tokenizer(sentences)["input_ids"]]
    return torch.cat(ids), torch.tensor([len(of_sentence) for of_sentence in ids])


def test_poolers_against_loops():
    torch.manual_seed(0)
    states = [torch.randn(2, 4, 3) for _ in range(4)]  # the embedding layer and three more
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])

    def mean(layers, row):
        tokens = [t for t in range(4) if mask[row, t]]
        return sum(sum(states[k][row, t] for k in layers) / len(layers) for t in tokens) / len(
            tokens
        )

    for name, layers in {"avg": [3], "avg_top2": [2, 3], "avg_first_last": [1, 3]}.items():
        expected = torch.stack([mean(layers, row) for row in range(2)])
        torch.testing.assert_close(pool(states, mask, name), expected)
    for name in ("cls", "cls_before_pooler"):
        assert torch.equal(pool(states, mask, name), states[3][:, 0])
    for padded, places in ((mask, [3, 1]), (mask.flip(1), [3, 3])):  # on the right and on the left
        assert torch.equal(pool(states, padded, "last"), states[3][torch.arange(2), places])


@pytest.mark.parametrize(
    ("pooler", "given", "expected"),
    [
        ("cls", None, True),
        ("cls_before_pooler", None, False),
        ("avg", True, True),
        ("cls", False, False),
    ],
)
def test_the_head_follows_simcse_unless_told_and_is_for_training(
    pooler, given, expected, tokenizer
):
    encoder = SentenceEncoder(build_transformer("bert"), pooler, given)
    assert (encoder.head is not None) == expected
    bare = encoder.eval()(*batch(tokenizer, make_sentences(3)))
    encoder.transformer.eval()
    encoder.training = True
    found = encoder(*batch(tokenizer, make_sentences(3)))
    torch.testing.assert_close(found, torch.tanh(encoder.head(bare)) if expected else bare)


@pytest.mark.parametrize("given", [None, -1, 0, 10**30])
def test_the_limit_is_the_position_tables_or_the_tokenizers_or_none(given):
    """XLNet's configuration says -1, and tokenizers without a limit say 1e30."""
    tokenizer = build_tokenizer()
    tokenizer.model_max_length = given
    assert {length_limit(tokenizer, build_transformer(family)) for family in FAMILIES} == {40}
    transformer = build_transformer("xlnet")
    transformer.config.__dict__["max_position_embeddings"] = given
    assert length_limit(tokenizer, transformer) == sys.maxsize
    encoder = SentenceEncoder(transformer, "avg").eval()
    with torch.no_grad():
        expected = transformer(torch.tensor([[0, *[6] * 99, 2]]))[0].mean(1)
    torch.testing.assert_close(
        encoder.encode([" ".join(["cat"] * 99)], tokenizer), expected, rtol=0, atol=1e-5
    )
    tokenizer.model_max_length = 12
    assert length_limit(tokenizer, build_transformer("bert")) == 12


@pytest.mark.parametrize(
    ("family", "refused"), [("fnet", True), ("convbert", True), ("xlnet", False), ("ctrl", False)]
)
def test_an_encoder_whose_vectors_change_with_padding_is_refused(
    family, refused, tmp_path, tokenizer
):
    build_transformer(family).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    if refused:
        with pytest.raises(
            UserError, match=f"vector changes with the padding .* type '{family}' .*; take another"
        ):
            load_encoder(str(tmp_path), "avg")
        return
    encoder, _ = load_encoder(str(tmp_path), "avg")
    texts = [*make_sentences(3), " ".join(["cat"] * 30)]
    alone = torch.cat([encoder.encode([text], tokenizer) for text in texts])
    torch.testing.assert_close(encoder.encode(texts, tokenizer), alone, rtol=0, atol=1e-5)


def test_encode_leaves_mode_and_random_state_alone(tokenizer):
    encoder = SentenceEncoder(build_transformer("bert"), "cls").train()
    sentences = make_sentences(5)
    before = torch.get_rng_state()
    one = encoder.encode(sentences, tokenizer, batch_size=2)
    check_views(encoder, tokenizer)
    assert encoder.training
    assert torch.equal(before, torch.get_rng_state())
    every = encoder.encode_by_pooler(sentences, tokenizer, POOLERS)
    torch.testing.assert_close(every["cls"], one, rtol=0, atol=1e-6)
    other = SentenceEncoder(encoder.transformer, "avg_first_last").encode(sentences, tokenizer)
    torch.testing.assert_close(every["avg_first_last"], other, rtol=0, atol=1e-6)


@pytest.mark.parametrize("family", FAMILIES)
def test_all_trainable_parameters_get_a_gradient(family, tokenizer):
    """What DistributedDataParallel needs: no trainable parameter outside the graph."""
    encoder = SentenceEncoder(build_transformer(family), "cls")
    encoder.train()(*batch(tokenizer, make_sentences(4))).square().sum().backward()
    assert [n for n, p in encoder.named_parameters() if p.requires_grad and p.grad is None] == []


def test_what_cannot_be_loaded_is_one_line(tiny_bert):
    for name, said in (("no/such-model", "no folder 'no/such-model' here"), (".", "cannot load")):
        with pytest.raises(UserError, match=said) as caught:
            load_encoder(name)
        assert "\n" not in str(caught.value)
    with pytest.raises(ParameterError, match=r"pooler_type.*avg_first_last"):
        load_encoder(str(tiny_bert), "max")


def test_a_tokenizer_that_is_missing_or_another_encoders_is_refused(tmp_path, tokenizer):
    config = build_transformer("bert").config
    config.vocab_size = len(tokenizer) - 1
    BertModel(config).save_pretrained(tmp_path)
    with pytest.raises(UserError, match="has no tokenizer files"):
        load_encoder(str(tmp_path))
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(
        UserError, match=f"ids up to {len(tokenizer) - 1} for {len(tokenizer) - 1} token embeddings"
    ):
        load_encoder(str(tmp_path))


@pytest.mark.parametrize("family", ["bert", "distilbert", "modernbert"])
def test_dropout_by_option(family, tmp_path, tokenizer):
    build_transformer(family).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    check_views(build_encoder(load_pretrained(str(tmp_path), 0.2)), tokenizer)
    with pytest.raises(ParameterError, match="dropout: this encoder has none"):
        check_views(build_encoder(load_pretrained(str(tmp_path), 0.0)), tokenizer)


@pytest.mark.parametrize(
    ("family", "side"), [("llama", "left"), ("gpt2", "left"), ("gpt2", "right")]
)
def test_the_last_token_of_a_decoder_does_not_depend_on_padding(family, side, tmp_path):
    tokenizer = build_tokenizer()
    tokenizer.padding_side = tokenizer.init_kwargs["padding_side"] = side
    encoder = SentenceEncoder(build_transformer(family), "last")
    sentences = make_sentences(9)
    alone = torch.cat([encoder.encode([sentence], tokenizer) for sentence in sentences])
    torch.testing.assert_close(
        encoder.encode(sentences, tokenizer, batch_size=9), alone, rtol=0, atol=1e-6
    )
    encoder.save(tmp_path, tokenizer)
    model = SentenceTransformer(str(tmp_path), device="cpu")
    torch.testing.assert_close(torch.tensor(model.encode(sentences)), alone, rtol=0, atol=1e-6)
    model.tokenizer.padding_side = model.tokenizer.init_kwargs["padding_side"] = side
    model.tokenizer.save_pretrained(tmp_path)  # by another program
    encoder, tokenizer = load_saved(tmp_path)
    encoder.save(tmp_path, tokenizer)
    assert AutoTokenizer.from_pretrained(tmp_path).padding_side == "right"
    torch.testing.assert_close(encoder.encode(sentences, tokenizer), alone, rtol=0, atol=1e-6)


def test_a_decoder_needs_its_last_token_and_a_padding_token(tmp_path):
    build_transformer("llama").save_pretrained(tmp_path)
    tokenizer = build_tokenizer()
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="has no padding token: set pad_token"):
        load_encoder(str(tmp_path), "last")
    tokenizer.eos_token = "[SEP]"
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(
        ParameterError, match="cls is the first token, which in this decoder sees no other"
    ):
        load_encoder(str(tmp_path), "cls")
    encoder, tokenizer = load_encoder(str(tmp_path), "last")
    assert (tokenizer.pad_token, encoder.transformer.config.use_cache) == ("[SEP]", False)
    load_encoder(str(tmp_path), "avg")
