"""Temperatures that are trained: their values, bounds and gradients."""

import math

import pytest
import spec_formulas as spec
import torch

from dystress_text import core
from dystress_text.core import ConstantTemperature, CosineTemperature, InfoNCELoss, LearnableTemperature

GRID = torch.linspace(-1, 1, 41, dtype=torch.float64)


@pytest.mark.parametrize(
    "profile",
    [core.CosineTemperature(0.03, 0.05), core.ShiftedCosineTemperature(), core.LinearTemperature(0.1, 0.3)],
)
def test_it_starts_as_the_profile(profile):
    learned = LearnableTemperature(profile)
    torch.testing.assert_close(learned(GRID), profile(GRID), rtol=1e-6, atol=0)
    assert learned.end_points() == pytest.approx({"tau_min": profile.tau_min, "tau_max": profile.tau_max}, rel=1e-5)


def test_a_constant_has_one_number():
    learned = LearnableTemperature(ConstantTemperature(0.05))
    torch.testing.assert_close(learned(GRID), torch.full_like(GRID, 0.05), rtol=1e-6, atol=0)
    assert learned.free.shape == (1,)
    assert learned.end_points() == {"tau": 0.05}


@pytest.mark.parametrize("far", [-50.0, -3.0, 0.0, 3.0, 50.0])
def test_it_stays_within_its_bounds(far):
    low, high = 0.02, 0.3
    learned = LearnableTemperature(CosineTemperature(0.05, 0.1), low, high)
    for pair in ([far, far], [far, -far]):
        learned.free.data = torch.tensor(pair, dtype=torch.float64)
        ends = [1 / (1 + math.exp(-x)) for x in pair]
        tau_min = low + (high - low) * ends[0]
        tau_max = tau_min + (high - tau_min) * ends[1]
        tau = learned(GRID)
        expected = [spec.cosine_tau(s, tau_min, tau_max) for s in GRID.tolist()]
        torch.testing.assert_close(tau, torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-12)
        assert low - 1e-12 <= float(tau.detach().min())
        assert float(tau.detach().max()) <= high + 1e-12


@pytest.mark.parametrize("blockwise", [False, True])
@pytest.mark.parametrize("detach", [False, True])
def test_its_gradient_is_numeric_of_the_loop(detach, blockwise):
    """The flag keeps the similarities out of the temperature's gradient, never its parameters."""
    z1, z2 = torch.randn(2, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    learned = LearnableTemperature(CosineTemperature(0.1, 0.2), 0.05, 0.5).double()
    loss = InfoNCELoss(learned, detach_temperature=detach, blockwise=blockwise)
    (gradient,) = torch.autograd.grad(loss(z1, z2), learned.free)
    rows = spec.simcse_rows(z1.tolist(), z2.tolist())

    def by_hand(vectors):
        a, b = (1 / (1 + math.exp(-x)) for x in vectors[0])
        tau_min = 0.05 + 0.45 * a
        tau_max = tau_min + (0.5 - tau_min) * b
        return spec.info_nce(spec.divide(rows, spec.apply(lambda s: spec.cosine_tau(s, tau_min, tau_max), rows)))

    expected = spec.numeric_gradient(by_hand, [learned.free.tolist()])[0]
    torch.testing.assert_close(gradient, torch.tensor(expected, dtype=torch.float64), rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize(
    ("temperature", "low", "high", "message"),
    [
        (ConstantTemperature(0.05), 0.0, 1.0, "the bounds must be positive numbers"),
        (ConstantTemperature(0.05), 0.2, 0.1, "the lower one first, got 0.2 and 0.1"),
        (ConstantTemperature(0.05), 0.05, 1.0, "0.05 must lie between the bounds"),
        (CosineTemperature(0.05, 0.1), 0.01, 0.1, "0.05 and 0.1 must lie between the bounds"),
        (CosineTemperature(0.05, 0.05), 0.01, 0.1, "0.05 and 0.05 must lie between the bounds 0.01 and 0.1, the lower"),
        (core.ScheduledTemperature(), 0.01, 1.0, "ScheduledTemperature has nothing to learn"),
    ],
)
def test_what_cannot_be_learned_is_refused(temperature, low, high, message):
    with pytest.raises(ValueError, match=message):
        LearnableTemperature(temperature, low, high)


def test_it_says_where_it_is_and_is_saved_with_the_loss():
    loss = InfoNCELoss(LearnableTemperature(core.ShiftedCosineTemperature()))
    assert "tau_min=0.05, tau_max=0.07, shift=-0.4, scale=0.7, low=0.01, high=1" in repr(loss.temperature)
    assert "temperature.free" in loss.state_dict()


def test_profiles_with_the_same_end_points_are_told_apart():
    names = {repr(LearnableTemperature(profile(0.05, 0.07))) for profile in (CosineTemperature, core.LinearTemperature)}
    assert len(names) == 2
