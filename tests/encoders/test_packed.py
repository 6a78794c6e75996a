"""The packed forward pass against transformers' own."""

import pytest
import torch
from conftest import SHARED, build_tokenizer, build_transformer, make_sentences
from trainer_cases import log_of, make_task, run

from dystress_text.encoders.encoder import SentenceEncoder, load_encoder
from dystress_text.encoders.packed import Packing, packed_states
from dystress_text.encoders.pooling import POOLERS
from dystress_text.simcse.corpus import TextFile, load_corpus
from dystress_text.simcse.objective import TEXT
from dystress_text.simcse.task import SimcseTask
from dystress_text.training.build_loss import build_objective
from dystress_text.training.settings import LossSettings

PACKABLE = ("bert", "roberta")


def make_batch(n=9, dtype=torch.int64):
    encoded = build_tokenizer()(make_sentences(n), padding=True, return_tensors="pt")
    ids, mask = encoded["input_ids"], encoded["attention_mask"]
    assert 0 < mask.sum() < mask.numel()
    return ids[mask.bool()], mask


def set_dropout(encoder, rate):
    for module in encoder.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = rate


@pytest.mark.parametrize(("pooler", "training"), zip(POOLERS, (True, False, True, False, True), strict=True))
@pytest.mark.parametrize("family", PACKABLE)
def test_vectors_and_gradients_equal_transformers(family, pooler, training):
    encoder = SentenceEncoder(build_transformer(family), pooler).double().train(training)
    set_dropout(encoder, 0.0)
    ids, mask = make_batch()
    results = []
    for packed in (False, True):
        encoder.zero_grad()
        vectors = encoder(ids, mask, packed)
        (vectors * torch.linspace(-1, 1, vectors.numel(), dtype=vectors.dtype).view_as(vectors)).sum().backward()
        gradients = {name: p.grad for name, p in encoder.named_parameters() if p.grad is not None}
        results.append((vectors, gradients))
    (plain, expected), (packed, gradients) = results
    torch.testing.assert_close(packed, plain, rtol=1e-10, atol=1e-12)
    assert gradients.keys() == expected.keys()
    scale = max(gradient.norm() for gradient in expected.values())
    for name, gradient in gradients.items():
        assert (gradient - expected[name]).norm() <= 1e-10 * scale, name


@pytest.mark.parametrize("family", PACKABLE)
def test_states_of_every_layer(family):
    transformer = build_transformer(family).double().eval()
    ids, mask = make_batch()
    packing = Packing.of_mask(mask, len(ids))
    assert torch.equal(packing.places, mask.flatten().nonzero().squeeze(1))
    padded = packing.padded_ids(ids, transformer.config.pad_token_id)
    expected = transformer(padded, attention_mask=mask, output_hidden_states=True).hidden_states
    states = packed_states(transformer, ids, packing)
    assert len(states) == len(expected)
    for state, reference in zip(states, expected, strict=True):
        torch.testing.assert_close(state, reference.flatten(0, 1)[packing.places], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("family", "pooler"), [("bert", "cls_before_pooler"), ("roberta", "avg")])
def test_dropout_is_where_transformers_has_it(family, pooler):
    """The spread of 2,000 views, and each dropout's share in it."""
    encoder = SentenceEncoder(build_transformer(family), pooler).train()
    ids, mask = make_batch(2)
    length = int(mask[0].sum())
    padding = torch.zeros(2000, 2, dtype=mask.dtype)  # which attention must not see, under dropout either
    ids, mask = ids[:length].repeat(2000), torch.cat([mask[:1, :length].repeat(2000, 1), padding], dim=1)
    layer = encoder.transformer.encoder.layer[1]
    last = encoder.transformer.encoder.layer[-1]
    sites = {
        "embeddings": encoder.transformer.embeddings.dropout,
        "attention": layer.attention.self.dropout,
        "attention output": layer.attention.output.dropout,
        "output": layer.output.dropout,
        "last attention": last.attention.self.dropout,
        "last attention output": last.attention.output.dropout,
        "last output": last.output.dropout,
    }
    for name, site in sites.items():
        set_dropout(encoder, 0.0)
        site.p = 0.3
        torch.manual_seed(0)
        with torch.no_grad():
            plain, packed = (encoder(ids, mask, packed).std(0) for packed in (False, True))
        assert plain.max() > 1e-4, name
        torch.testing.assert_close(packed, plain, rtol=0.15, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")


def test_bf16_is_as_near_to_fp32_as_transformers_is():
    encoder = SentenceEncoder(build_transformer("bert"), "avg").train()
    set_dropout(encoder, 0.0)
    ids, mask = make_batch(40)
    with torch.no_grad():
        exact = encoder(ids, mask)
        with torch.autocast("cpu", torch.bfloat16):
            plain, packed = encoder(ids, mask), encoder(ids, mask, True)
    assert packed.dtype == torch.float32
    assert (packed - exact).norm() < 1.5 * (plain - exact).norm()


@pytest.mark.parametrize("pooler", ["cls", "avg"])
def test_both_ways_learn_the_same(pooler, tmp_path, corpus):
    curves = []
    for packing in (True, False):
        task = make_task(corpus, pooler=pooler)
        task.packing = packing
        run(task, corpus, tmp_path / str(packing), max_steps=50, learning_rate=1e-4, logging_steps=1)
        curves.append(torch.tensor(log_of(tmp_path / str(packing), "loss")))
    assert len(curves[0]) == 50
    assert curves[0][-10:].mean() < curves[0][:10].mean()
    torch.testing.assert_close(*curves, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_both_ways_learn_the_same_on_real_sentences(tmp_path):
    folder, text = SHARED / "models/bert-mini-wiki", SHARED / "data/wiki1m_sample.txt.xz"
    if not (folder.is_dir() and text.is_file()):
        pytest.skip("no ../shared")
    curves = []
    for packing in (True, False):
        encoder, tokenizer = load_encoder(str(folder), "cls", dropout=0.0)
        sentences = load_corpus(TextFile(text), tokenizer, 32, 4000, progress=False)
        torch.manual_seed(0)
        torch.nn.init.normal_(encoder.head.weight, std=0.02)
        task = SimcseTask(encoder, tokenizer, sentences, build_objective(LossSettings(), TEXT), packing=packing)
        output = tmp_path / str(packing)
        run(task, sentences, output, max_steps=8, learning_rate=3e-5, train_batch_size=64, logging_steps=1)
        curves.append(torch.tensor(log_of(output, "loss")))
    torch.testing.assert_close(*curves, rtol=0, atol=1e-4)


def test_other_encoders_take_their_own_way(tokenizer, corpus):
    for family in ("distilbert", "mpnet", "modernbert"):
        encoder = SentenceEncoder(build_transformer(family), "cls").eval()
        assert not encoder.can_pack
        task = SimcseTask(encoder, tokenizer, corpus, build_objective(LossSettings(), TEXT))
        first, second = task.embed(encoder, task.load(torch.arange(5).numpy(), 0)).views
        torch.testing.assert_close(first, second)
