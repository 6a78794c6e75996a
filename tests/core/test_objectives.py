"""Every objective against explicit loops over pairs in fp64, its numerical safety, and its errors."""

from functools import cache

import pytest
import spec_formulas as spec
import torch
from core_cases import OBJECTIVES, PROFILES, TEMPERATURES, logits_of

from dystress_text.core import (
    AlignmentAdaptiveTemperature,
    ConstantTemperature,
    DCLWLoss,
    InfoNCELoss,
    MACLLoss,
    NTXentLoss,
)

SIZES = [(2, 3), (3, 1), (5, 4), (9, 16)]


def macl(rows):
    return spec.weighted_info_nce(rows, spec.macl_weights(rows))


@cache
def similarities(kind, n, dim):
    return kind(*(z.tolist() for z in views(n, dim)))


def views(n, dim, count=2, dtype=torch.float64):
    """Correlated, unnormalised embeddings of very different lengths."""
    generator = torch.Generator().manual_seed(1000 * n + dim)
    base = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    drawn = [base + torch.randn(n, dim, generator=generator, dtype=torch.float64) for _ in range(count)]
    return [(z * torch.logspace(-2, 1, n, dtype=torch.float64).unsqueeze(1)).to(dtype) for z in drawn]


@pytest.mark.parametrize("temperature", ["constant", "shifted"])
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize(("n", "dim"), SIZES)
def test_objective_is_the_loop_over_pairs(n, dim, objective, temperature):
    case = OBJECTIVES[objective]
    module, tau = TEMPERATURES[temperature]
    z1, z2 = views(n, dim)
    logits = logits_of(similarities(case.rows, n, dim), tau)
    expected = case.loss(logits, case.weights(z1.tolist(), z2.tolist(), logits))
    for flag in (True, False):  # the flag changes gradients, never values
        value = case.build(module, detach_temperature=flag)(z1, z2)
        assert value.shape == ()
        assert float(value) == pytest.approx(expected, rel=1e-10, abs=1e-14)


def test_a_number_is_a_constant_temperature():
    z1, z2 = views(5, 4)
    for case in OBJECTIVES.values():
        assert torch.equal(case.build(0.3)(z1, z2), case.build(ConstantTemperature(0.3))(z1, z2))
        assert torch.equal(case.build(1)(z1, z2), case.build(ConstantTemperature(1.0))(z1, z2))


@pytest.mark.parametrize("sigma", [0.1, 0.5, 3.0])
def test_dclw_takes_sigma(sigma):
    z1, z2 = views(5, 4)
    rows = [(s / 0.2, [v / 0.2 for v in neg]) for s, neg in spec.simclr_rows(z1.tolist(), z2.tolist())]
    expected = spec.decoupled(rows, spec.dclw_weights(z1.tolist(), z2.tolist(), sigma))
    assert float(DCLWLoss(0.2, sigma=sigma)(z1, z2)) == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("both_views", [False, True])
@pytest.mark.parametrize("flag", [False, True])
def test_macl_takes_its_temperature_from_the_batch(both_views, flag):
    z1, z2 = views(6, 8)
    rows_of = spec.simclr_rows if both_views else spec.simcse_rows
    loss = MACLLoss(0.1, 0.8, 0.6, both_views=both_views, detach_temperature=flag)
    for x, y in ((z1, z2), (z1, z1 + 0.2 * z2), (z1, z2)):  # each batch has its own; nothing lingers
        tau = spec.adaptive_tau(x.tolist(), y.tolist(), 0.1, 0.8, 0.6)
        expected = macl([(s / tau, [v / tau for v in neg]) for s, neg in rows_of(x.tolist(), y.tolist())])
        assert float(loss(x, y)) == pytest.approx(expected, rel=1e-10)


def test_any_objective_takes_the_alignment_adaptive_temperature():
    z1, z2 = views(6, 8)
    tau = spec.adaptive_tau(z1.tolist(), z2.tolist(), 0.1, 0.8, 0.6)
    expected = spec.info_nce(
        [(s / tau, [v / tau for v in neg]) for s, neg in spec.simclr_rows(z1.tolist(), z2.tolist())]
    )
    loss = NTXentLoss(AlignmentAdaptiveTemperature(0.1, 0.8, 0.6))
    assert float(loss(z1, z2)) == pytest.approx(expected, rel=1e-10)
    assert any(name.startswith("temperature.") for name in loss.state_dict())  # saved with the loss


@pytest.mark.parametrize("tau", [0.05, 0.2, 1.0])
def test_info_nce_is_sentence_transformers_multiple_negatives_ranking_loss(tau):
    from sentence_transformers.losses import MultipleNegativesRankingLoss  # takes seconds to import

    theirs = MultipleNegativesRankingLoss(model=None, scale=1 / tau)
    batch = views(16, 12, count=3, dtype=torch.float32)
    for columns in (batch[:2], batch):  # without and with hard negatives
        expected = float(theirs.compute_loss_from_embeddings(columns, labels=None))
        assert float(InfoNCELoss(tau)(*columns)) == pytest.approx(expected, rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_ends_are_exactly_the_constant_temperature(profile, dtype):
    z1, z2 = (z.requires_grad_() for z in views(6, 5, dtype=dtype))
    losses = [NTXentLoss(temperature)(z1, z2) for temperature in (profile(0.07, 0.07), ConstantTemperature(0.07))]
    gradients = [torch.autograd.grad(loss, (z1, z2)) for loss in losses]
    assert torch.equal(*losses)
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
