"""The packed forward pass against transformers' own, and its dropout."""

import pytest
import torch
from conftest import make_sentences, set_dropout
from model_cases import build_model, packed_batch
from torch.testing import assert_close

from dystress_text.models.model_with_heads import ModelWithHeads
from dystress_text.models.packed import dropout
from dystress_text.models.poolers import POOLERS


def build(family, pooler):
    return ModelWithHeads(build_model(family, pooler)).train()


@pytest.mark.parametrize("pooler", POOLERS)
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_embeddings_and_gradients_equal_transformers(family, pooler):
    trained = build(family, pooler).double()
    set_dropout(trained, 0.0)
    batch = packed_batch(trained.model, make_sentences(9))
    results = []
    for packed in (False, True):
        trained.zero_grad()
        embeddings = trained(*batch, packed=packed)
        weights = torch.linspace(-1, 1, embeddings.numel(), dtype=torch.float64)
        (embeddings.flatten() * weights).sum().backward()
        named = trained.named_parameters()
        gradients = {name: p.grad for name, p in named if p.grad is not None}
        results.append((embeddings, gradients))
    (plain, expected), (embeddings, gradients) = results
    assert_close(embeddings, plain, rtol=1e-10, atol=1e-12)
    scale = max(gradient.norm() for gradient in expected.values())
    assert_close(gradients, expected, rtol=0, atol=1e-10 * float(scale))
    assert torch.equal(trained.eval()(*batch), trained(*batch))


@pytest.mark.parametrize(("family", "pooler"), [("bert", "cls"), ("roberta", "avg")])
def test_dropout_sites_equal_transformers(family, pooler):
    """Compare the spread of 1,000 views with one dropout on at a time."""
    trained = build(family, pooler)
    transformer = trained.model[0].model
    ids, lengths = packed_batch(trained.model, make_sentences(1))
    longest = int(lengths) + 2  # two tokens of padding, which attention must not see
    batch = (ids.repeat(1000), lengths.repeat(1000), longest)
    _, layer, last = transformer.encoder.layer
    for site in (
        transformer.embeddings.dropout,
        layer.attention.self,
        layer.attention.output.dropout,
        layer.output.dropout,
        last.attention.self,
        last.output.dropout,
    ):
        set_dropout(trained, 0.0)
        set_dropout(site, 0.3)
        torch.manual_seed(0)
        with torch.no_grad():
            plain = trained(*batch, packed=False).std(0)
            packed = trained(*batch, packed=True).std(0)
        assert plain.max() > 1e-4
        assert_close(packed, plain, rtol=0.15, atol=1e-5)


def test_bf16_error_is_that_of_transformers():
    trained = build("bert", "avg")
    set_dropout(trained, 0.0)
    batch = packed_batch(trained.model, make_sentences(40))
    with torch.no_grad():
        exact = trained(*batch, packed=False)
        with torch.autocast("cpu", torch.bfloat16):
            plain = trained(*batch, packed=False)
            packed = trained(*batch, packed=True)
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
    assert float(out.max()) == pytest.approx(1 / (1 - rate), rel=5e-3)
    dropped = (out == 0).double()
    error = (rate * (1 - rate) / n) ** 0.5
    assert abs(dropped.mean() - rate) < 5 * error + 1 / 65_536
    lanes = dropped[:-3].view(-1, 4)
    assert (lanes.mean(0) - rate).abs().max() < 0.003  # the last one has the sign bit
    assert_close(torch.corrcoef(lanes.T), torch.eye(4).double(), rtol=0, atol=0.01)
    assert not torch.equal(out, dropout(ones, rate))
    torch.manual_seed(3)
    assert torch.equal(out, dropout(ones, rate))
    assert dropout(out, 1e-6) is out  # the rate is a multiple of 1/65,536
