"""The paper's gradients, with similarities as leaves, held to their closed forms."""

import math

import pytest
import torch
from core_cases import TEMPERATURES
from dystress_text.core.rows import (
    Rows,
    decoupled_rows,
    info_nce_rows,
    reweighted_rows,
)
from spec_formulas import slope

from dystress_text.core import ConstantTemperature

FLAGS = pytest.mark.parametrize("detach", [True, False], ids=["detached", "in the graph"])
PROFILES = pytest.mark.parametrize("profile", TEMPERATURES)
POSITIVE, EXCLUDED = torch.tensor([1, 4, 0, 5]), torch.tensor([0, 2, 3, 4])  # columns of four anchors


def split_rows(logits, positive_column, excluded_column=None):
    """The positive's logit and the logsumexp of all others but the excluded one; logits (rows, columns)."""
    negatives = torch.ones_like(logits, dtype=torch.bool)
    for i in range(len(logits)):
        negatives[i, positive_column[i]] = False
        if excluded_column is not None:
            negatives[i, excluded_column[i]] = False
    positive = logits[torch.arange(len(logits)), positive_column]
    return Rows(positive, logits.masked_fill(~negatives, -torch.inf).logsumexp(dim=1))


def leaf_similarities():
    similarity = 1.9 * torch.rand(4, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64) - 0.95
    return similarity.requires_grad_()


def row_gradient(loss_of_rows, similarity, temperature, detach, excluded=None):
    rows = split_rows(temperature.logits(similarity, detach)[0], POSITIVE, excluded)
    return torch.autograd.grad(loss_of_rows(rows).sum(), similarity)[0]


def probabilities(similarity, tau, excluded=None):
    """p_ij of each row; None in place of an excluded column."""
    table = []
    for i, row in enumerate(similarity.tolist()):
        left_out = None if excluded is None else int(excluded[i])
        exps = [None if j == left_out else math.exp(s / tau(s)) for j, s in enumerate(row)]
        total = math.fsum(e for e in exps if e is not None)
        table.append([None if e is None else e / total for e in exps])
    return table


def assert_gradient(gradient, expected, rtol=1e-9):
    expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(gradient, expected, rtol=rtol, atol=rtol * float(expected.abs().max()))


@PROFILES
def test_slope_of_the_temperature(profile):
    temperature, tau = TEMPERATURES[profile]
    similarity = torch.tensor([-0.93, -0.61, -0.35, -0.11, 0.07, 0.23, 0.47, 0.88], dtype=torch.float64)
    similarity.requires_grad_()
    value = (temperature(similarity) + 0 * similarity).sum()  # the constant has no graph of its own
    expected = [slope(tau, s) for s in similarity.tolist()]
    assert_gradient(torch.autograd.grad(value, similarity)[0], expected, rtol=1e-8)


@PROFILES
@FLAGS
@pytest.mark.parametrize("excluded", [None, EXCLUDED], ids=["all columns", "self excluded"])
def test_info_nce_has_the_gradients_of_the_paper(profile, detach, excluded):
    temperature, tau = TEMPERATURES[profile]
    similarity = leaf_similarities()
    expected = []
    for i, row in enumerate(probabilities(similarity, tau, excluded)):
        expected.append([])
        for j, (s, p) in enumerate(zip(similarity[i].tolist(), row, strict=True)):
            t = tau(s)
            factor = 1 / t if detach else (t - s * slope(tau, s)) / t**2  # Eqs. delLdelCa and delLdelCb
            expected[i].append(0.0 if p is None else -factor * (1 - p) if j == POSITIVE[i] else factor * p)
    assert_gradient(row_gradient(info_nce_rows, similarity, temperature, detach, excluded), expected, rtol=1e-8)


@FLAGS
@pytest.mark.parametrize("tau", [0.05, 0.2, 1.0])
def test_constant_temperature_has_the_gradients_and_the_relative_penalty_of_the_paper(tau, detach):
    similarity = leaf_similarities()
    gradient = row_gradient(info_nce_rows, similarity, ConstantTemperature(tau), detach).tolist()
    for i, row in enumerate(similarity.tolist()):
        p = probabilities(similarity, lambda s: tau)[i]
        positive = int(POSITIVE[i])
        negatives = [k for k in range(6) if k != positive]
        total = math.fsum(math.exp(row[k] / tau) for k in negatives)
        at_positive = -math.fsum(p[k] for k in negatives) / tau  # Eq. dldcs1
        assert gradient[i][positive] == pytest.approx(at_positive, rel=1e-10)
        for j in negatives:
            assert gradient[i][j] == pytest.approx(p[j] / tau, rel=1e-10)  # Eq. dldcs2
            penalty = abs(gradient[i][j]) / abs(gradient[i][positive])
            assert penalty == pytest.approx(math.exp(row[j] / tau) / total, rel=1e-10)  # Eq. ubclpenalty


def test_gradient_in_the_vectors_is_that_of_the_paper():
    """Eq. difflczj2: anchors z_i against their positive z_i+ and all other z_j, with s_ij = z_i . z_j."""
    n, dim, tau = 5, 4, 0.3
    draws = torch.randn(2, n, dim, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    z, twins = torch.nn.functional.normalize(draws, dim=-1)
    z.requires_grad_()
    similarity = torch.cat([z @ z.T, (z * twins).sum(dim=1, keepdim=True)], dim=1)  # (n, n + 1), the positive last
    logits = ConstantTemperature(tau).logits(similarity)[0]
    rows = split_rows(logits, torch.full((n,), n), excluded_column=torch.arange(n))
    gradient = torch.autograd.grad(info_nce_rows(rows).sum(), z)[0]

    zs, ts, ss = z.tolist(), twins.tolist(), similarity.tolist()

    def p(i, j):  # the probability of j as the positive of anchor i; j = n is its true one
        return math.exp(ss[i][j] / tau) / math.fsum(math.exp(ss[i][k] / tau) for k in range(n + 1) if k != i)

    expected = [
        [
            -(
                ts[i][d] / tau * (1 - p(i, n))
                - math.fsum(zs[j][d] / tau * (p(i, j) + p(j, i)) for j in range(n) if j != i)
            )
            for d in range(dim)
        ]
        for i in range(n)
    ]
    assert_gradient(gradient, expected, rtol=1e-10)


@pytest.mark.parametrize("excluded", [None, EXCLUDED], ids=["all columns", "self excluded"])
def test_decoupled_and_reweighted_rows_have_their_closed_forms(excluded):
    """Without the positive in the denominator, p_j / (1 - P) is left of p_j; the MACL weight cancels 1 - P."""
    tau, similarity, weights = 0.2, leaf_similarities(), torch.tensor([0.5, 1.0, -0.3, 1.7], dtype=torch.float64)
    plain = []
    for i, row in enumerate(probabilities(similarity, lambda s: tau, excluded)):
        rest = 1 - row[POSITIVE[i]]
        plain.append([0 if p is None else -1 / tau if j == POSITIVE[i] else p / rest / tau for j, p in enumerate(row)])
    temperature = ConstantTemperature(tau)
    for loss_of_rows in (decoupled_rows, reweighted_rows):
        assert_gradient(row_gradient(loss_of_rows, similarity, temperature, True, excluded), plain)
    weighted = [
        [g * float(w) if j == POSITIVE[i] else g for j, g in enumerate(plain[i])] for i, w in enumerate(weights)
    ]
    gradient = row_gradient(lambda rows: decoupled_rows(rows, weights), similarity, temperature, True, excluded)
    assert_gradient(gradient, weighted)
