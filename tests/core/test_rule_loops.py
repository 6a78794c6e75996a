"""The loops of the published rules against matrices, sentence-transformers and closed forms."""

import math

import pytest
import torch
from rule_loops import (
    Isogclr,
    adnce,
    debiased,
    focal,
    hardness,
    hcl,
    mean,
    rince,
    robust,
    robust_kl,
    siglip,
    simclr_rows,
    simcse_rows,
    temo,
)
from torch.nn.functional import cross_entropy, logsigmoid, normalize

COUNT = 5


def views(seed=0, alike=0.5):
    """Two views; the larger `alike`, the closer a view to the other view of its sample."""
    generator = torch.Generator().manual_seed(seed)
    z1, noise = (torch.randn(COUNT, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    return z1.requires_grad_(), (alike * z1.detach() + noise).requires_grad_()


def cosines(z1, z2):
    return normalize(z1, dim=-1) @ normalize(z2, dim=-1).T


def simcse_matrix(z1, z2):
    """Positives (N,) and negatives (N, N - 1)."""
    all_pairs = cosines(z1, z2)
    others = ~torch.eye(len(z1), dtype=torch.bool)
    return all_pairs.diagonal(), all_pairs[others].view(len(z1), -1)


def simclr_matrix(z1, z2):
    """Positives (2N,) and negatives (2N, 2N - 2)."""
    all_pairs = cosines(torch.cat([z1, z2]), torch.cat([z1, z2]))
    others = ~torch.eye(len(z1), dtype=torch.bool).repeat(2, 2)
    return torch.cat([cosines(z1, z2).diagonal()] * 2), all_pairs[others].view(2 * len(z1), -1)


ROWS = {"simcse": (simcse_rows, simcse_matrix), "simclr": (simclr_rows, simclr_matrix)}


def agree(loops, matrices, inputs):
    """The same value and the same gradients."""
    torch.testing.assert_close(loops, matrices, rtol=1e-12, atol=1e-14)
    gradients = [torch.autograd.grad(loss, inputs, retain_graph=True) for loss in (loops, matrices)]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)


def logits_nce(pos, negs):
    return cross_entropy(torch.cat([pos[:, None], negs], dim=1), torch.zeros(len(pos), dtype=torch.long))


def hcl_matrix(pos, negs, tau, tau_plus, beta):
    n = negs.shape[1]
    drawn = n * ((1 + beta) * negs / tau).logsumexp(1).exp() / (beta * negs / tau).logsumexp(1).exp()
    left = ((drawn - tau_plus * n * (pos / tau).exp()) / (1 - tau_plus)).clamp(min=n * math.exp(-1 / tau))
    return -(pos / tau - ((pos / tau).exp() + left).log()).mean()


def heights(similarities, mu, sigma):
    """Gaussian weights of the pairs of a row, with a mean of 1, that have no gradient."""
    return (-(((similarities.detach() - mu) / sigma) ** 2) / 2).softmax(1) * similarities.shape[1]


def adnce_matrix(pos, negs, tau, mu, sigma):
    return logits_nce(pos / tau, negs / tau + heights(negs, mu, sigma).log())


def adnce_sentence_matrix(pos, negs, tau, mu, sigma):
    pairs = torch.cat([pos[:, None], negs], dim=1)
    return ((pairs / tau + heights(pairs, mu, sigma).log()).logsumexp(1) - pos / tau).mean()


def rince_matrix(pos, negs, tau, q, lam):
    everything = (pos / tau).exp() + (negs / tau).exp().sum(1)
    return ((lam * everything) ** q / q - (q * pos / tau).exp() / q).mean()


def temo_matrix(pos, negs, tau_0, alpha):
    pairs = torch.cat([pos[:, None], negs], dim=1)
    logits = pairs / (tau_0 + alpha * torch.sqrt((pairs + 1) / 2))
    return cross_entropy(logits, torch.zeros(len(pos), dtype=torch.long))


CASES = {
    "debiased": (debiased, lambda p, s, tau, tau_plus: hcl_matrix(p, s, tau, tau_plus, 0.0), (0.5, 0.1)),
    "hcl": (hcl, hcl_matrix, (0.5, 0.1, 1.0)),
    "hcl without its bound": (hcl, hcl_matrix, (0.1, 0.0, 0.5)),
    "focal": (focal, lambda p, s, tau, m: logits_nce(p * p / tau, s * (s + m) / tau), (0.05, 0.3)),
    "adnce": (adnce, adnce_matrix, (0.07, 0.4, 1.0)),
    "adnce, narrow": (adnce, adnce_matrix, (0.3, 0.7, 0.5)),
    "adnce for sentences": (lambda *given: adnce(*given, with_positive=True), adnce_sentence_matrix, (0.07, 0.4, 1.0)),
    "rince": (rince, rince_matrix, (0.5, 0.1, 0.01)),
    "rince, q 0.6": (rince, rince_matrix, (0.2, 0.6, 0.01)),
    "temo": (temo, temo_matrix, (0.01, 0.04)),
}


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("case", CASES)
def test_loops_are_the_rule_as_matrices(case, rows):
    loop, matrix, parameters = CASES[case]
    as_rows, as_matrix = ROWS[rows]
    z1, z2 = views()
    agree(mean([loop(*row, *parameters) for row in as_rows(z1, z2)]), matrix(*as_matrix(z1, z2), *parameters), (z1, z2))


def test_bound_of_the_corrected_negatives():
    z1, z2 = views(alike=20)  # positives near 1
    tau, tau_plus = 0.05, 0.1
    rows = simcse_rows(z1, z2)
    agree(
        mean([debiased(*row, tau, tau_plus) for row in rows]),
        mean([torch.log1p(len(negs) * math.exp(-1 / tau) / (pos / tau).exp()) for pos, negs in rows]),
        (z1, z2),
    )


@pytest.mark.parametrize("strength", [0.0, 5.0, 9.0])
def test_hardness_is_sentence_transformers_in_batch_negatives(strength):
    from sentence_transformers.sentence_transformer.losses import (
        MultipleNegativesRankingLoss,
    )  # takes seconds to import

    z1, z2 = views()
    mode = "in_batch_negatives" if strength else None
    theirs = MultipleNegativesRankingLoss(model=None, scale=20, hardness_mode=mode, hardness_strength=strength)
    loops = mean([hardness(*row, 0.05, strength) for row in simcse_rows(z1, z2)])
    agree(loops, theirs.compute_loss_from_embeddings([z1, z2], labels=None), (z1, z2))


def test_rince_tends_to_info_nce():
    z1, z2 = views()
    rows = simcse_rows(z1, z2)
    limit = mean([rince(*row, 0.2, 1e-7, 0.01) for row in rows])
    pos, negs = simcse_matrix(z1, z2)
    torch.testing.assert_close(limit, logits_nce(pos / 0.2, negs / 0.2) + math.log(0.01), rtol=0, atol=1e-5)


def test_siglip_is_the_published_pseudocode():
    z1, z2 = views()
    t_prime, bias = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (math.log(10), -10.0))
    labels = 2 * torch.eye(COUNT, dtype=torch.float64) - 1
    published = -logsigmoid(labels * (cosines(z1, z2) * t_prime.exp() + bias)).sum() / COUNT
    loops = mean([siglip(*row, t_prime.exp(), bias) for row in simcse_rows(z1, z2)])
    agree(loops, published, (z1, z2, t_prime, bias))


@pytest.mark.parametrize("rho", [0.3, 1.2])
def test_robust_gradients(rho):
    """Of tau: rho - KL. Of a negative: its share, of the positive: -1, without 1 / tau."""
    z1, z2 = views()
    tau = torch.tensor(0.07, dtype=torch.float64, requires_grad=True)
    for pos, negs in simcse_rows(z1, z2):
        of_tau, of_pos, *of_negs = torch.autograd.grad(
            robust(pos, negs, tau, rho), (tau, pos, *negs), retain_graph=True
        )
        shares = (torch.stack(negs).detach() / tau.detach()).softmax(0)
        divergence = torch.distributions.Categorical(shares).entropy().neg() + math.log(len(negs))
        torch.testing.assert_close(robust_kl(negs, tau), divergence, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(of_tau, rho - divergence, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(torch.stack(of_negs), shares, rtol=1e-10, atol=1e-12)
        assert float(of_pos) == pytest.approx(-1, abs=1e-12)


@pytest.mark.parametrize("relative", [False, True])
def test_isogclr_without_an_average_is_the_robust_loss(relative):
    """gamma = 1: gradients and those of tau, which take two steps of momentum here."""
    state = Isogclr(rho=0.4, gamma=1.0, beta_u=0.5, eta=0.03, clip=math.inf, relative=relative)
    taus, momenta = [0.1] * COUNT, [0.0] * COUNT
    for step in range(3):
        z1, z2 = views(step)
        rows = simcse_rows(z1, z2)
        scalars = [torch.tensor(tau, dtype=torch.float64, requires_grad=True) for tau in taus]
        expected = mean([robust(*row, tau, 0.4) for row, tau in zip(rows, scalars, strict=True)])
        losses = mean(state.step(list(range(COUNT)), rows))
        gradients = [torch.autograd.grad(loss, (z1, z2), retain_graph=True) for loss in (losses, expected)]
        torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)
        of_tau = [COUNT * float(g) for g in torch.autograd.grad(expected, scalars)]
        momenta = [0.5 * u + 0.5 * g for u, g in zip(momenta, of_tau, strict=True)]
        taus = [min(max(tau - 0.03 * u, 0.05), 1.0) for tau, u in zip(taus, momenta, strict=True)]
        assert [state.tau[i] for i in range(COUNT)] == pytest.approx(taus, rel=1e-10)


def test_isogclr_of_two_views_as_matrices():
    """Their class for images, kept in tensors: both views of a sample share its average, momentum and tau."""
    rho, gamma, beta_u, eta, clip, count = 0.4, 0.8, 0.9, 0.03, 0.25, 2 * COUNT - 2
    state = Isogclr(rho=rho, gamma=gamma, beta_u=beta_u, eta=eta, clip=clip)
    average, momentum = torch.zeros(2, COUNT, dtype=torch.float64)
    tau = torch.full((COUNT,), 0.1, dtype=torch.float64)
    clipped = 0
    for step in range(4):
        z1, z2 = views(step)
        pos, negs = simclr_matrix(z1, z2)
        logits = negs.detach() / tau.repeat(2)[:, None]
        now = logits.exp().mean(1)
        new = now if step == 0 else (1 - gamma) * average.repeat(2) + gamma * now
        weights = logits.exp() / new[:, None] / count
        losses = (weights * negs).sum(1) - pos
        of_tau = (new.log() + rho - (weights * logits).sum(1)).view(2, COUNT).mean(0)
        average = new.view(2, COUNT).mean(0)
        momentum = (1 - beta_u) * momentum + beta_u * of_tau.clamp(-clip, clip)
        tau = (tau - eta * momentum).clamp(0.05, 1.0)
        clipped += int((of_tau.abs() > clip).sum())
        agree(mean(state.step([*range(COUNT), *range(COUNT)], simclr_rows(z1, z2))), losses.mean(), (z1, z2))
        assert [state.tau[i] for i in range(COUNT)] == pytest.approx(tau.tolist(), rel=1e-10)
        assert [state.average[i] for i in range(COUNT)] == pytest.approx(average.tolist(), rel=1e-10)
    assert 0 < clipped < 4 * COUNT
