"""Temperatures that are trained: their values, bounds and gradients."""

import math

import pytest
import spec_formulas as spec
import torch
from core_cases import lists, views

from dystress_text import core
from dystress_text.core import ConstantTemperature, CosineTemperature, InfoNCELoss, LearnableTemperature

GRID = torch.linspace(-1, 1, 41, dtype=torch.float64)


@pytest.mark.parametrize(
    "start", [ConstantTemperature(0.05), core.ShiftedCosineTemperature(), core.LinearTemperature(0.1, 0.3)]
)
def test_it_starts_as_it_is_told_and_says_so(start):
    learned = LearnableTemperature(start)
    torch.testing.assert_close(learned(GRID), start(GRID), rtol=1e-6, atol=0)
    expected = {"start": type(start).__name__, **start.values(), "low": 0.01, "high": 1.0}
    assert learned.values() == expected
    assert "temperature.free" in InfoNCELoss(learned).state_dict()


@pytest.mark.parametrize("far", [-50.0, 0.0, 3.0, 50.0])
def test_it_stays_within_its_bounds(far):
    low, high = 0.02, 0.3
    learned = LearnableTemperature(CosineTemperature(0.05, 0.1), low, high)
    for pair in ([far, far], [far, -far]):
        learned.free.data = torch.tensor(pair, dtype=torch.float64)
        ends = [1 / (1 + math.exp(-x)) for x in pair]
        tau_min = low + (high - low) * ends[0]
        tau_max = tau_min + (high - tau_min) * ends[1]
        expected = [spec.cosine_tau(s, tau_min, tau_max) for s in GRID.tolist()]
        torch.testing.assert_close(learned(GRID), torch.tensor(expected).double(), rtol=1e-6, atol=1e-12)
        assert learned.values()["tau_min"] == pytest.approx(tau_min, abs=1e-6)
        assert learned.values()["tau_max"] == pytest.approx(tau_max, abs=1e-6)


@pytest.mark.parametrize("blockwise", [False, True])
@pytest.mark.parametrize("detach", [False, True])
def test_its_gradient_is_numeric_of_the_loop(detach, blockwise):
    """The flag keeps the similarities out of the temperature's gradient, never its parameters."""
    z = views(5, 4)
    learned = LearnableTemperature(CosineTemperature(0.1, 0.2), 0.05, 0.5).double()
    loss = InfoNCELoss(learned, detach_temperature=detach, blockwise=blockwise)
    (gradient,) = torch.autograd.grad(loss(*z), learned.free)
    rows = spec.simcse_rows(*lists(z))

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
        (ConstantTemperature(0.05), 0.0, 1.0, "^low < 0.05 < high"),
        (ConstantTemperature(0.05), 0.2, 0.1, "got 0.2 and 0.1"),
        (CosineTemperature(0.05, 0.1), 0.01, 0.1, "^low < 0.05 < 0.1 < high"),
        (CosineTemperature(0.05, 0.05), 0.01, 0.1, "^low < 0.05 < 0.05 < high"),
        (core.ScheduledTemperature(), 0.01, 1.0, "^temperature ScheduledTemperature.* has nothing to learn"),
    ],
)
def test_what_cannot_be_learned_is_refused(temperature, low, high, message):
    with pytest.raises(ValueError, match=message):
        LearnableTemperature(temperature, low, high)
