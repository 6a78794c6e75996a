"""Dropout on a CPU: rates, scale, independence of neighbours, the generator."""

import pytest
import torch

from dystress_text.encoders.packed import dropout


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.9])
def test_rate_and_scale(rate, dtype):
    torch.manual_seed(0)
    n = 400_003  # no multiple of the four entries that a random number decides
    out = dropout(torch.ones(n, dtype=dtype), rate)
    assert out.dtype == dtype
    assert torch.equal(out.unique(), torch.tensor([0, 1 / (1 - rate)], dtype=dtype)) or dtype in (
        torch.float32,
        torch.float64,
    )
    torch.testing.assert_close(out.max().double().item(), 1 / (1 - rate), rtol=5e-3, atol=0)
    dropped = (out == 0).double().mean().item()
    assert abs(dropped - rate) < 5 * (rate * (1 - rate) / n) ** 0.5 + 1 / 65_536


def test_the_mean_stays_in_fp64():
    torch.manual_seed(0)
    n = 4_000_000
    mean = dropout(torch.ones(n, dtype=torch.float64), 0.1).mean().item()
    assert abs(mean - 1) < 5 * (0.1 / 0.9 / n) ** 0.5


def test_entries_that_share_a_random_number_are_independent():
    torch.manual_seed(0)
    dropped = (dropout(torch.ones(4 * 250_000), 0.1) == 0).double().view(-1, 4)
    assert (dropped.mean(0) - 0.1).abs().max() < 0.003  # each of the four lanes, the one with the sign bit too
    assert (torch.corrcoef(dropped.T) - torch.eye(4)).abs().max() < 0.01


def test_the_ends():
    x = torch.randn(5, 3)
    assert torch.equal(dropout(x, 0.0), x)
    assert torch.equal(dropout(x, 1.0), torch.zeros(5, 3))
    assert dropout(torch.empty(0, 4), 0.5).shape == (0, 4)


def test_the_seed_decides_and_the_gradient_has_the_same_mask():
    x = torch.randn(30, 7, requires_grad=True)
    torch.manual_seed(3)
    first = dropout(x, 0.4)
    torch.manual_seed(3)
    assert torch.equal(first, dropout(x, 0.4))
    assert not torch.equal(first, dropout(x, 0.4))
    (gradient,) = torch.autograd.grad(first.sum(), x)
    torch.testing.assert_close(gradient * x, first)
