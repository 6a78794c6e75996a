"""The paper's gradients, with similarities as leaves, held to their closed forms."""

import pytest
import torch
from core_cases import TEMPERATURES

from dystress_text.core import ConstantTemperature, DCLLoss, InfoNCELoss, MACLLoss

POSITIVE, ITSELF = torch.tensor([1, 4, 0, 5]), torch.tensor([0, 2, 3, 4])  # columns of four anchors
LEFT_OUT = pytest.mark.parametrize("left_out", [None, ITSELF], ids=["all columns", "self left out"])


def leaf_similarities():
    similarity = 1.9 * torch.rand(4, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64) - 0.95
    return similarity.requires_grad_()


def at(columns, like):
    """True in one column of each row."""
    return torch.nn.functional.one_hot(columns, like.shape[1]).bool()


def gradient_of(loss, similarity, positive=POSITIVE, left_out=None):
    """Of the sum of the rows' losses, by the similarities (rows, columns)."""
    logits = loss.temperature.logits(similarity, loss.tau(similarity))[0]
    no_negative = at(positive, similarity) | (False if left_out is None else at(left_out, similarity))
    negatives = logits.masked_fill(no_negative, -torch.inf).logsumexp(dim=1)
    own = positive.unsqueeze(1)
    rows = loss.row_loss(logits.gather(1, own).squeeze(1), negatives, similarity.gather(1, own).squeeze(1))
    return torch.autograd.grad(rows.sum(), similarity)[0]


def probabilities(similarity, tau, left_out=None):
    """p_ij of each row, 0 in a column that is left out."""
    exps = (similarity.detach() / tau).exp()
    exps = exps if left_out is None else exps.masked_fill(at(left_out, similarity), 0)
    return exps / exps.sum(dim=1, keepdim=True)


@pytest.mark.parametrize("profile", TEMPERATURES)
@pytest.mark.parametrize("detach", [True, False], ids=["detached", "in the graph"])
@LEFT_OUT
def test_info_nce_has_the_gradients_of_the_paper(profile, detach, left_out):
    temperature, formula = TEMPERATURES[profile]
    s = leaf_similarities()
    tau = torch.stack([formula(x) for x in s.flatten()]).view_as(s)
    (slope,) = torch.autograd.grad(tau.sum(), s)
    s, tau = s.detach(), tau.detach()
    factor = 1 / tau if detach else (tau - s * slope) / tau**2  # Eqs. delLdelCa and delLdelCb
    p = probabilities(s, tau, left_out)
    expected = torch.where(at(POSITIVE, s), -factor * (1 - p), factor * p)
    loss = InfoNCELoss(temperature, detach_temperature=detach)
    torch.testing.assert_close(gradient_of(loss, leaf_similarities(), left_out=left_out), expected)


def test_gradient_in_the_vectors_is_that_of_the_paper():
    """Eq. difflczj2: anchors z_i against their positive z_i+ and all other z_j, with s_ij = z_i . z_j."""
    n, dim, tau = 5, 4, 0.3
    draws = torch.randn(2, n, dim, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    z, twins = torch.nn.functional.normalize(draws, dim=-1)
    z.requires_grad_()
    similarity = torch.cat([z @ z.T, (z * twins).sum(dim=1, keepdim=True)], dim=1)  # (n, n + 1), the positive last
    by_similarity = gradient_of(InfoNCELoss(tau), similarity, torch.full((n,), n), torch.arange(n))
    gradient = torch.autograd.grad(similarity, z, by_similarity)[0]
    p = probabilities(similarity, tau, torch.arange(n))  # of j as the positive of anchor i; j = n is its true one
    away = (p[:, :n] + p[:, :n].T) @ z.detach() / tau
    torch.testing.assert_close(gradient, away - twins / tau * (1 - p[:, n:]))


@LEFT_OUT
def test_decoupled_and_reweighted_rows_have_their_closed_forms(left_out):
    """Without the positive in the denominator, p_j / (1 - P) is left of p_j; the MACL weight cancels 1 - P."""
    tau, similarity = 0.2, leaf_similarities()
    p = probabilities(similarity, tau, left_out)
    rest = 1 - p.gather(1, POSITIVE.unsqueeze(1))
    expected = torch.where(at(POSITIVE, similarity), -1 / tau, p / rest / tau)
    for loss in (DCLLoss(tau), MACLLoss(temperature=ConstantTemperature(tau))):
        torch.testing.assert_close(gradient_of(loss, similarity, left_out=left_out), expected)
