"""The paper's gradients, with similarities as leaves, held to their closed forms."""

import pytest
import torch
from core_cases import DETACH, TEMPERATURES

from dystress_text.core import InfoNCELoss


def gradient_of(loss, s):
    """Of the sum of the rows' losses, by the similarities (rows, columns); the positive's column is the first."""
    logits = loss.temperature.logits(s, loss.tau(s))[0]
    rows = loss.row_loss(logits[:, 0], logits[:, 1:].logsumexp(dim=1), s[:, 0])
    return torch.autograd.grad(rows.sum(), s)[0]


@pytest.mark.parametrize("profile", TEMPERATURES)
@DETACH
def test_info_nce_has_the_gradients_of_the_paper(profile, detach):
    temperature, formula = TEMPERATURES[profile]
    s = 1.9 * torch.rand(4, 6, generator=torch.Generator().manual_seed(3), dtype=torch.float64) - 0.95
    s.requires_grad_()
    tau = torch.stack([formula(x) for x in s.flatten()]).view_as(s)
    (slope,) = torch.autograd.grad(tau.sum(), s)
    found = gradient_of(InfoNCELoss(temperature, detach_temperature=detach), s)
    s, tau = s.detach(), tau.detach()
    factor = 1 / tau if detach else (tau - s * slope) / tau**2  # Eqs. delLdelCa and delLdelCb
    p = (s / tau).softmax(dim=1)
    p[:, 0] -= 1
    torch.testing.assert_close(found, factor * p)


def test_gradient_in_the_vectors_is_that_of_the_paper():
    """Eq. difflczj2: anchors z_i against their positive z_i+ and all other z_j, with s_ij = z_i . z_j."""
    n, dim, tau = 5, 4, 0.3
    draws = torch.randn(2, n, dim, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    z, twins = torch.nn.functional.normalize(draws, dim=-1)
    z.requires_grad_()
    others = (z @ z.T).masked_fill(torch.eye(n, dtype=torch.bool), -torch.inf)
    similarity = torch.cat([(z * twins).sum(dim=1, keepdim=True), others], dim=1)
    found = torch.autograd.grad(similarity, z, gradient_of(InfoNCELoss(tau), similarity))[0]
    p = (similarity.detach() / tau).softmax(dim=1)  # of the true positive, then of j as the positive of anchor i
    away = (p[:, 1:] + p[:, 1:].T) @ z.detach() / tau
    torch.testing.assert_close(found, away - twins / tau * (1 - p[:, :1]))
