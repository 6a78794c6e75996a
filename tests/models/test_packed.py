"""The packed forward pass against transformers' own, and its dropout."""

import pytest
import torch
from conftest import make_sentences, set_dropout
from model_cases import build_model, packed_batch

from dystress_text.models.model_with_heads import ModelWithHeads
from dystress_text.models.packed import dropout
from dystress_text.models.poolers import POOLERS


def make_batch(model, n=9):
    ids, lengths = packed_batch(model, make_sentences(n))
    assert lengths.min() < lengths.max()
    return ids, lengths, int(lengths.max())


def embed(embedder, batch, packed):
    """Return embeddings and the gradients of a weighted sum of them."""
    embedder.zero_grad()
    vectors = embedder(*batch, packed)
    weights = torch.linspace(-1, 1, vectors.numel(), dtype=vectors.dtype).view_as(vectors)
    (vectors * weights).sum().backward()
    named = embedder.named_parameters()
    return vectors, {name: p.grad for name, p in named if p.grad is not None}


@pytest.mark.parametrize("pooler", POOLERS)
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_embeddings_and_gradients_equal_transformers(family, pooler):
    embedder = ModelWithHeads(build_model(family, pooler)).double().train()
    set_dropout(embedder, 0.0)
    batch = make_batch(embedder.model)
    plain, expected = embed(embedder, batch, packed=False)
    packed, gradients = embed(embedder, batch, packed=True)
    torch.testing.assert_close(packed, plain, rtol=1e-10, atol=1e-12)
    assert gradients.keys() == expected.keys()
    scale = max(gradient.norm() for gradient in expected.values())
    for name, gradient in gradients.items():
        assert (gradient - expected[name]).norm() <= 1e-10 * scale, name
    assert torch.equal(embedder.eval()(*batch), embedder(*batch))


@pytest.mark.parametrize(("family", "pooler"), [("bert", "cls"), ("roberta", "avg")])
def test_dropout_sites_equal_transformers(family, pooler):
    """Compare the spread of 2,000 views with one dropout on at a time."""
    embedder = ModelWithHeads(build_model(family, pooler)).train()
    transformer = embedder.model[0].model
    ids, (length, _), _ = make_batch(embedder.model, 2)
    longest = int(length) + 2  # two tokens of padding, which attention must not see
    batch = (ids[:length].repeat(2000), length.repeat(2000), longest)
    _, layer, last = transformer.encoder.layer
    sites = {
        "embeddings": transformer.embeddings.dropout,
        "attention": layer.attention.self,
        "attention output": layer.attention.output.dropout,
        "output": layer.output.dropout,
        "last attention": last.attention.self,
        "last output": last.output.dropout,
    }
    for name, site in sites.items():
        set_dropout(embedder, 0.0)
        set_dropout(site, 0.3)
        torch.manual_seed(0)
        with torch.no_grad():
            plain = embedder(*batch, packed=False).std(0)
            packed = embedder(*batch, packed=True).std(0)
        assert plain.max() > 1e-4, name
        assert torch.allclose(packed, plain, rtol=0.15, atol=1e-5), name


def test_bf16_error_is_that_of_transformers():
    embedder = ModelWithHeads(build_model("bert", "avg")).train()
    set_dropout(embedder, 0.0)
    batch = make_batch(embedder.model, 40)
    with torch.no_grad():
        exact = embedder(*batch, packed=False)
        with torch.autocast("cpu", torch.bfloat16):
            plain = embedder(*batch, packed=False)
            packed = embedder(*batch, packed=True)
    assert packed.dtype == torch.float32
    assert 0.67 < (packed - exact).norm() / (plain - exact).norm() < 1.5


@pytest.mark.parametrize(
    ("rate", "dtype"), [(0.01, torch.float64), (0.1, torch.float32), (0.5, torch.bfloat16)]
)
def test_dropout_rate_scale_and_independence(rate, dtype):
    n = 1_000_003  # no multiple of the four entries that a random number decides
    ones = torch.ones(n, dtype=dtype)
    torch.manual_seed(3)
    out = dropout(ones, rate)
    assert out.dtype == dtype
    torch.testing.assert_close(out.max().double().item(), 1 / (1 - rate), rtol=5e-3, atol=0)
    dropped = (out == 0).double()
    error = (rate * (1 - rate) / n) ** 0.5
    assert abs(dropped.mean() - rate) < 5 * error + 1 / 65_536
    lanes = dropped[: n - 3].view(-1, 4)
    assert (lanes.mean(0) - rate).abs().max() < 0.003  # the last one has the sign bit
    assert (torch.corrcoef(lanes.T) - torch.eye(4)).abs().max() < 0.01
    assert not torch.equal(out, dropout(ones, rate))
    torch.manual_seed(3)
    assert torch.equal(out, dropout(ones, rate))
    assert torch.equal(dropout(out, 0.0), out)
