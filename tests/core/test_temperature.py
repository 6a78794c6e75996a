"""Temperatures against the formulas of the specification, and the facts that it says must hold."""

import copy
import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp
from spec_formulas import cosine_tau, even_ode_tau, exponential_tau, linear_tau, monotonic_tau, shifted_tau

from dystress_text.core import (
    AlignmentAdaptiveTemperature,
    ConstantTemperature,
    CosineTemperature,
    EvenODETemperature,
    ExponentialTemperature,
    LinearTemperature,
    MonotonicCosineTemperature,
    ScheduledTemperature,
    ShiftedCosineTemperature,
    TemperatureError,
    ode_temperature,
)

GRID = torch.linspace(-1, 1, 401, dtype=torch.float64)

FORMULAS = {
    "constant": (ConstantTemperature(0.05), lambda s: 0.05),
    "cosine": (CosineTemperature(0.07, 0.2), lambda s: cosine_tau(s, 0.07, 0.2)),
    "shifted -0.2": (ShiftedCosineTemperature(0.03, 0.05, -0.2), lambda s: shifted_tau(s, 0.03, 0.05, -0.2, 0.6)),
    "shifted -0.4": (ShiftedCosineTemperature(0.05, 0.07, -0.4), lambda s: shifted_tau(s, 0.05, 0.07, -0.4, 0.7)),
    "shifted -0.6": (ShiftedCosineTemperature(0.03, 0.05, -0.6), lambda s: shifted_tau(s, 0.03, 0.05, -0.6, 0.8)),
    "shifted 0": (ShiftedCosineTemperature(0.05, 0.07, 0.0), lambda s: shifted_tau(s, 0.05, 0.07, 0.0, 0.5)),
    "shifted 0.4": (ShiftedCosineTemperature(0.05, 0.07, 0.4), lambda s: shifted_tau(s, 0.05, 0.07, 0.4, 0.7)),
    "own scale": (ShiftedCosineTemperature(0.05, 0.06, -0.3, 0.5), lambda s: shifted_tau(s, 0.05, 0.06, -0.3, 0.5)),
    "linear": (LinearTemperature(0.07, 0.2), lambda s: linear_tau(s, 0.07, 0.2)),
    "exponential": (ExponentialTemperature(0.07, 0.2), lambda s: exponential_tau(s, 0.07, 0.2, 3.5)),
    "exponential 1.5": (ExponentialTemperature(0.1, 0.2, 1.5), lambda s: exponential_tau(s, 0.1, 0.2, 1.5)),
    "monotonic": (MonotonicCosineTemperature(0.07, 0.2), lambda s: monotonic_tau(s, 0.07, 0.2)),
    "even ODE": (EvenODETemperature(0.07, 0.2), lambda s: even_ode_tau(s, 0.07, 0.2)),
}
DIPS_AT_ZERO = [CosineTemperature, LinearTemperature, ExponentialTemperature, EvenODETemperature]
RANGES = st.tuples(st.floats(0.01, 1), st.floats(1.05, 4)).map(lambda r: (r[0], r[0] * r[1]))  # tau_min, tau_max


@pytest.mark.parametrize("name", FORMULAS)
def test_temperature_is_the_formula(name):
    temperature, formula = FORMULAS[name]
    expected = torch.tensor([formula(s) for s in GRID.tolist()], dtype=torch.float64)
    torch.testing.assert_close(temperature(GRID), expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", FORMULAS)
def test_shape_and_dtype_stay(name):
    temperature, formula = FORMULAS[name]
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        similarity = torch.tensor([[-0.9, -0.25, 0.0], [0.25, 0.5, 1.0]], dtype=dtype)
        tau = temperature(similarity)
        assert tau.shape == similarity.shape
        assert tau.dtype == dtype
        expected = [[formula(s) for s in row] for row in similarity.tolist()]
        torch.testing.assert_close(tau, torch.tensor(expected, dtype=dtype), rtol=8 * torch.finfo(dtype).eps, atol=0)


@pytest.mark.parametrize("profile", DIPS_AT_ZERO)
@given(RANGES)
@settings(max_examples=15, deadline=None)
def test_dips_fall_from_tau_max_to_tau_min_at_zero_and_rise_again(profile, bounds):
    low, high = bounds
    tau = profile(low, high)(GRID)
    middle = len(GRID) // 2
    for place, expected in ((0, high), (middle, low), (-1, high)):
        assert float(tau[place]) == pytest.approx(expected, rel=1e-12)
    assert bool((tau[: middle + 1].diff() < 0).all())
    assert bool((tau[middle:].diff() > 0).all())


@given(RANGES)
@settings(max_examples=15, deadline=None)
def test_monotonic_cosine_rises_from_tau_min_to_tau_max(bounds):
    low, high = bounds
    tau = MonotonicCosineTemperature(low, high)(GRID)
    assert float(tau[0]) == pytest.approx(low, rel=1e-12)
    assert float(tau[-1]) == pytest.approx(high, rel=1e-12)
    assert bool((tau.diff() > 0).all())


PAPER_SHIFTS = [  # shift, scale, where the minimum lies
    (-0.2, 0.6, -0.4),
    (-0.4, 0.7, -0.3),
    (-0.6, 0.8, -0.2),
    (0.0, 0.5, -0.5),
    (0.2, 0.6, 0.4),
    (0.4, 0.7, 0.3),
]


@pytest.mark.parametrize(("shift", "scale", "minimum"), PAPER_SHIFTS)
def test_shifted_cosine_has_its_minimum_plateau_and_end_points_in_place(shift, scale, minimum):
    temperature = ShiftedCosineTemperature(0.05, 0.07, shift)
    torch.testing.assert_close(temperature(GRID), ShiftedCosineTemperature(0.05, 0.07, shift, scale)(GRID))
    tau = temperature(GRID)
    assert float(GRID[tau.argmin()]) == pytest.approx(minimum)
    assert float(tau.min()) == pytest.approx(0.05, rel=1e-12)
    assert tau[[0, -1]].tolist() == pytest.approx([0.07, 0.07], rel=1e-12)
    plateau = tau[-shift + 1e-9 < GRID] if shift <= 0 else tau[-shift - 1e-9 > GRID]
    assert len(plateau) > 50
    assert torch.equal(plateau, torch.full_like(plateau, 0.07))


@pytest.mark.parametrize("shift", [-1.0, 1.0])
def test_shift_by_one_is_the_vanilla_cosine(shift):
    vanilla = CosineTemperature(0.07, 0.2)(GRID)
    torch.testing.assert_close(ShiftedCosineTemperature(0.07, 0.2, shift)(GRID), vanilla, rtol=1e-12, atol=0)
    torch.testing.assert_close(ShiftedCosineTemperature(0.07, 0.2, shift, 1.0)(GRID), vanilla, rtol=1e-12, atol=0)


@pytest.mark.parametrize("shift", [0.2, 0.4, 0.6])
def test_positive_shifts_mirror_negative_ones(shift):
    mirrored = ShiftedCosineTemperature(0.05, 0.07, -shift)(-GRID)
    torch.testing.assert_close(ShiftedCosineTemperature(0.05, 0.07, shift)(GRID), mirrored, rtol=1e-12, atol=0)


@pytest.mark.parametrize("ratio", [1e-12, 1e-9, 1e-6, 0.99e-3, 1.01e-3, 1e-2])  # |s| / tau_min
def test_even_ode_is_accurate_where_its_formula_cancels(ratio):
    # x / log(1 + x) is the mean of (1 + x)^u over u in [0, 1], so g / tau_min - 1 is the mean of (1 + x)^u - 1
    places = [(k + 0.5) / 2000 for k in range(2000)]
    excess = math.fsum(math.expm1(u * math.log1p(ratio)) for u in places) / len(places)
    expected = 0.1 * excess / (1 / math.log1p(1 / 0.1) - 0.1)  # (g - tau_min) / (g(1) - tau_min)
    shape = EvenODETemperature(0.1, 0.2).shape
    for s in (0.1 * ratio, -0.1 * ratio):
        assert float(shape(torch.tensor(s, dtype=torch.float64))) == pytest.approx(expected, rel=1e-7, abs=0)


@pytest.mark.parametrize("time", [0, 30, 100, 200, 250, 400, 730.5])
def test_schedule_swings_with_time_whatever_the_similarity(time):
    expected = 0.1 + 0.9 / 2 * (1 + math.cos(math.pi * time / 200))
    epochs = ScheduledTemperature(0.1, 1.0)  # Kukleva et al.: half a period is 200 epochs
    epochs.advance(epoch=time, run_fraction=0.123)
    assert epochs(GRID).tolist() == pytest.approx([expected] * len(GRID), rel=1e-12)
    run = ScheduledTemperature(0.1, 1.0, half_period=0.5, unit="run")
    run.advance(epoch=17, run_fraction=time / 400)
    assert run(GRID).tolist() == pytest.approx([expected] * len(GRID), rel=1e-12)


def test_schedule_starts_at_tau_max():
    assert float(ScheduledTemperature(0.1, 0.7)(GRID)[0]) == pytest.approx(0.7)


@pytest.mark.parametrize("mean_positive", [0.301, 0.5, 0.8, 0.95, 1.0])
def test_alignment_adaptive_follows_the_mean_positive_similarity(mean_positive):
    temperature = AlignmentAdaptiveTemperature(0.05, 2.0, 0.8)
    assert float(temperature(GRID)[0]) == pytest.approx(0.05, rel=1e-12)  # before the first batch
    temperature.observe(torch.tensor(mean_positive, dtype=torch.float64, requires_grad=True))
    tau = temperature(GRID)
    assert tau.tolist() == pytest.approx([0.05 * (1 + 2 * (mean_positive - 0.8))] * len(GRID), rel=1e-9)
    assert not tau.requires_grad


@pytest.mark.parametrize("mean_positive", [0.3, 0.25, -1.0])
def test_alignment_adaptive_refuses_to_reach_zero_and_says_the_values(mean_positive):
    temperature = AlignmentAdaptiveTemperature(0.05, 2.0, 0.8)
    with pytest.raises(TemperatureError) as error:
        temperature.observe(torch.tensor(mean_positive, dtype=torch.float64))
    tau = 0.05 * (1 + 2 * (mean_positive - 0.8))
    numbers = [float(n) for n in re.findall(r"-?\d+\.?\d*(?:e-?\d+)?", str(error.value))]
    for value in (mean_positive, 0.3, tau, 0.05, 2.0, 0.8):  # A, its limit, tau, the three parameters
        assert any(n == pytest.approx(value, rel=1e-3, abs=1e-9) for n in numbers), value


# ---- the ODE of the paper -------------------------------------------------------------------------------------------

ODE_CASES = [(2.0, -1.5, 0.05, 1.0), (2.0, -1.5, -0.3, -0.7), (0.5, -3.0, 0.1, 0.9), (5.0, -4.5, -0.72, -0.87)]


@pytest.mark.parametrize(("delta_k", "c", "start", "end"), ODE_CASES)
def test_ode_family_solves_its_equation(delta_k, c, start, end):
    def slope(s, tau):  # Eq. eqnnewdeltdels
        return tau / s * (1 - tau * delta_k * math.exp(-s / float(tau[0])))

    first = start / math.log(delta_k * start - c)
    places = torch.linspace(start, end, 9, dtype=torch.float64)
    path = solve_ivp(slope, (start, end), [first], t_eval=places.numpy(), rtol=1e-11, atol=1e-13, method="DOP853")
    assert path.success
    torch.testing.assert_close(ode_temperature(places, delta_k, c), torch.from_numpy(path.y[0]), rtol=1e-7, atol=0)


@pytest.mark.parametrize(("delta_k", "c"), [(2.0, -1.5), (2.0, 0.3), (0.5, -3.0), (1.0, -1.0), (1.0, 5.0)])
def test_ode_family_is_nan_where_it_is_no_temperature(delta_k, c):
    def formula(s):
        argument = delta_k * s - c
        if argument <= 0 or argument == 1:
            return math.nan
        tau = s / math.log(argument)
        return tau if tau > 0 else math.nan

    grid = torch.linspace(-1, 1, 65, dtype=torch.float64)  # exact in binary
    expected = torch.tensor([formula(s) for s in grid.tolist()], dtype=torch.float64)
    assert bool(expected.isnan().any())
    torch.testing.assert_close(ode_temperature(grid, delta_k, c), expected, rtol=1e-12, atol=0, equal_nan=True)


# ---- state ----------------------------------------------------------------------------------------------------------


def test_state_that_varies_with_the_run_is_saved_and_restored():
    schedule, adaptive = ScheduledTemperature(0.1, 1.0), AlignmentAdaptiveTemperature(0.05)
    fresh = copy.deepcopy((schedule, adaptive))
    schedule.advance(epoch=70, run_fraction=0.1)
    adaptive.observe(torch.tensor(0.65))
    for old, new in zip((schedule, adaptive), fresh, strict=True):
        assert not torch.equal(new(GRID), old(GRID))
        new.load_state_dict(old.state_dict())
        assert torch.equal(new(GRID), old(GRID))


def test_profiles_have_no_state():
    assert not CosineTemperature(0.1, 0.2).state_dict()
