"""The paper's gradients, with similarities as leaves, held to their closed forms."""

import math

import pytest
import torch
from core_cases import TEMPERATURES
from spec_formulas import slope

from dystress_text.core import ConstantTemperature, DCLLoss, InfoNCELoss, MACLLoss

DETACH = pytest.mark.parametrize("detach", [True, False], ids=["detached", "in the graph"])
POSITIVE, ITSELF = torch.tensor([1, 4, 0, 5]), torch.tensor([0, 2, 3, 4])  # columns of four anchors
LEFT_OUT = pytest.mark.parametrize("left_out", [None, ITSELF], ids=["all columns", "self left out"])


def leaf_similarities():
    similarity = 1.9 * torch.rand(4, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64) - 0.95
    return similarity.requires_grad_()


def gradient_of(loss, similarity, positive=POSITIVE, left_out=None):
    """Of the sum of the rows' losses, by the similarities (rows, columns)."""
    logits = loss.temperature.logits(similarity, loss.tau(similarity))[0]
    no_negative = torch.nn.functional.one_hot(positive, similarity.shape[1]).bool()
    if left_out is not None:
        no_negative |= torch.nn.functional.one_hot(left_out, similarity.shape[1]).bool()
    negatives = logits.masked_fill(no_negative, -torch.inf).logsumexp(dim=1)
    own = positive.unsqueeze(1)
    rows = loss.row_loss(logits.gather(1, own).squeeze(1), negatives, similarity.gather(1, own).squeeze(1))
    return torch.autograd.grad(rows.sum(), similarity)[0]


def probabilities(similarity, tau, left_out=None):
    """p_ij of each row; None in place of a column that is left out."""
    table = []
    for i, row in enumerate(similarity.tolist()):
        exps = [None if left_out is not None and j == left_out[i] else math.exp(s / tau(s)) for j, s in enumerate(row)]
        total = math.fsum(e for e in exps if e is not None)
        table.append([None if e is None else e / total for e in exps])
    return table


def assert_gradient(gradient, expected, rtol=1e-9):
    expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(gradient, expected, rtol=rtol, atol=rtol * float(expected.abs().max()))


@pytest.mark.parametrize("profile", TEMPERATURES)
@DETACH
@LEFT_OUT
def test_info_nce_has_the_gradients_of_the_paper(profile, detach, left_out):
    temperature, tau = TEMPERATURES[profile]
    similarity = leaf_similarities()
    expected = []
    for i, row in enumerate(probabilities(similarity, tau, left_out)):
        expected.append([])
        for j, (s, p) in enumerate(zip(similarity[i].tolist(), row, strict=True)):
            t = tau(s)
            factor = 1 / t if detach else (t - s * slope(tau, s)) / t**2  # Eqs. delLdelCa and delLdelCb
            expected[i].append(0.0 if p is None else -factor * (1 - p) if j == POSITIVE[i] else factor * p)
    loss = InfoNCELoss(temperature, detach_temperature=detach)
    assert_gradient(gradient_of(loss, similarity, left_out=left_out), expected, rtol=1e-8)


def test_gradient_in_the_vectors_is_that_of_the_paper():
    """Eq. difflczj2: anchors z_i against their positive z_i+ and all other z_j, with s_ij = z_i . z_j."""
    n, dim, tau = 5, 4, 0.3
    draws = torch.randn(2, n, dim, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    z, twins = torch.nn.functional.normalize(draws, dim=-1)
    z.requires_grad_()
    similarity = torch.cat([z @ z.T, (z * twins).sum(dim=1, keepdim=True)], dim=1)  # (n, n + 1), the positive last
    by_similarity = gradient_of(InfoNCELoss(tau), similarity, torch.full((n,), n), torch.arange(n))
    gradient = torch.autograd.grad(similarity, z, by_similarity)[0]
    zs, ts, ss = z.tolist(), twins.tolist(), similarity.tolist()

    def p(i, j):  # the probability of j as the positive of anchor i; j = n is its true one
        return math.exp(ss[i][j] / tau) / math.fsum(math.exp(ss[i][k] / tau) for k in range(n + 1) if k != i)

    def pull(i, d):
        away = math.fsum(zs[j][d] / tau * (p(i, j) + p(j, i)) for j in range(n) if j != i)
        return -(ts[i][d] / tau * (1 - p(i, n)) - away)

    assert_gradient(gradient, [[pull(i, d) for d in range(dim)] for i in range(n)], rtol=1e-10)


@LEFT_OUT
def test_decoupled_and_reweighted_rows_have_their_closed_forms(left_out):
    """Without the positive in the denominator, p_j / (1 - P) is left of p_j; the MACL weight cancels 1 - P."""
    tau, similarity, plain = 0.2, leaf_similarities(), []
    for i, row in enumerate(probabilities(similarity, lambda s: tau, left_out)):
        rest = 1 - row[POSITIVE[i]]
        plain.append([0 if p is None else -1 / tau if j == POSITIVE[i] else p / rest / tau for j, p in enumerate(row)])
    for loss in (DCLLoss(tau), MACLLoss(temperature=ConstantTemperature(tau))):
        assert_gradient(gradient_of(loss, similarity, left_out=left_out), plain)
