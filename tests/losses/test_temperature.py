"""Temperatures against the formulas of the specification, and what they refuse or warn about."""

import copy
import math
import re
import warnings

import pytest
import torch
from loss_cases import OBJECTIVES, PROFILES, TEMPERATURES, assert_same, views
from scipy.integrate import solve_ivp
from spec_formulas import cosine_tau, shifted_tau, simcse_rows

from dystress_text import losses

GRID = torch.linspace(-1, 1, 401, dtype=torch.float64)


@pytest.mark.parametrize("name", TEMPERATURES)
def test_temperature_is_the_formula_in_any_shape_and_dtype(name):
    temperature, formula = TEMPERATURES[name]
    expected = torch.stack([formula(s) for s in GRID])
    limit = 1e-5 if name == "TeMo" else 1e-12  # at s = -1 its root is kept from 0
    torch.testing.assert_close(temperature(GRID), expected, rtol=limit, atol=0)
    for dtype in (torch.float32, torch.bfloat16):
        similarity = torch.tensor([[-0.9, -0.25, 0.0], [0.25, 0.5, 1.0]], dtype=dtype)
        right = (
            torch.stack([formula(s) for s in similarity.double().flatten()]).view(2, 3).to(dtype)
        )
        torch.testing.assert_close(
            temperature(similarity), right, rtol=8 * torch.finfo(dtype).eps, atol=0
        )


@pytest.mark.parametrize("profile", PROFILES)
def test_equal_ends_are_exactly_the_constant_temperature(profile):
    assert torch.equal(
        profile(0.07, 0.07)(GRID.float()), losses.ConstantTemperature(0.07)(GRID.float())
    )


def test_even_ode_is_exact_near_zero():
    for ratio in (1e-8, 1e-5, 0.9e-3, 1.1e-3):  # on both sides of where the series ends
        excess = ratio / 2 - ratio**2 / 12 + ratio**3 / 24
        expected = excess / (1 / (0.1 * math.log1p(10)) - 1)
        found = losses.EvenODETemperature(0.1, 0.2).shape(
            torch.tensor(-0.1 * ratio, dtype=torch.float64)
        )
        assert float(found) == pytest.approx(expected, rel=1e-7, abs=0)


@pytest.mark.parametrize("time", [0, 30, 200, 730.5])
def test_schedule_swings_with_time_whatever_the_similarity(time):
    expected = 0.1 + 0.9 / 2 * (1 + math.cos(math.pi * time / 200))
    epochs = losses.ScheduledTemperature(0.1, 1.0)  # Kukleva et al.: half a period is 200 epochs
    epochs.advance(epoch=time, run_fraction=0.123)
    run = losses.ScheduledTemperature(0.1, 1.0, half_period=0.5, unit="run")
    run.advance(epoch=17, run_fraction=time / 400)
    for tau in (epochs(GRID), run(GRID)):
        assert tau.tolist() == pytest.approx([expected] * len(GRID), rel=1e-12)


@pytest.mark.parametrize("mean_positive", [0.301, 0.8, 1.0])
def test_alignment_adaptive_follows_the_mean_positive_similarity(mean_positive):
    temperature = losses.AlignmentAdaptiveTemperature(0.05, 2.0, 0.8)
    assert float(temperature(GRID)[0]) == pytest.approx(0.05, rel=1e-12)  # before the first batch
    temperature.observe(torch.tensor(mean_positive, dtype=torch.float64, requires_grad=True))
    tau = temperature(GRID)
    assert tau.tolist() == pytest.approx(
        [0.05 * (1 + 2 * (mean_positive - 0.8))] * len(GRID), rel=1e-9
    )
    assert not tau.requires_grad


@pytest.mark.parametrize("mean_positive", [0.3, -1.0, math.nan])
def test_alignment_adaptive_refuses_to_reach_zero_and_says_the_values(mean_positive):
    temperature = losses.AlignmentAdaptiveTemperature(0.05, 2.0, 0.8)
    said = r"A = .* is not above a_0 - 1/alpha = 0\.3000 \(tau_0=0\.05.*; lower alpha or a_0$"
    with pytest.raises(losses.TemperatureError, match=said):
        temperature.observe(torch.tensor(mean_positive, dtype=torch.float64))
    assert float(temperature.mean_positive) == 0.8  # it leaves no trace


def test_state_that_varies_with_the_run_is_saved_and_restored():
    schedule, adaptive = (
        losses.ScheduledTemperature(0.1, 1.0),
        losses.AlignmentAdaptiveTemperature(0.05, 2.0, 0.8),
    )
    fresh = copy.deepcopy((schedule, adaptive))
    schedule.advance(epoch=70, run_fraction=0.1)
    adaptive.observe(torch.tensor(0.65))
    for old, new in zip((schedule, adaptive), fresh, strict=True):
        assert not torch.equal(new(GRID), old(GRID))
        new.load_state_dict(old.state_dict())
        assert torch.equal(new(GRID), old(GRID))
    assert not losses.CosineTemperature(0.1, 0.2).state_dict()


@pytest.mark.parametrize(
    "start", [losses.ConstantTemperature(0.05), losses.ShiftedCosineTemperature(0.05, 0.07, -0.4)]
)
def test_a_learned_one_starts_as_it_is_told_and_says_so(start):
    learned = losses.LearnableTemperature(start)
    torch.testing.assert_close(learned(GRID), start(GRID), rtol=1e-6, atol=0)
    assert learned.fixed(**learned.learned()) == start
    assert "reweighting.temperature.free" in losses.InfoNCELoss(learned).state_dict()


@pytest.mark.parametrize("far", [-50.0, 0.0, 3.0, 50.0])
def test_a_learned_one_stays_within_its_bounds(far):
    low, high = 0.02, 0.3
    learned = losses.LearnableTemperature(losses.CosineTemperature(0.05, 0.1), low, high)
    for pair in ([far, far], [far, -far]):
        learned.free.data = torch.tensor(pair, dtype=torch.float64)
        ends = [1 / (1 + math.exp(-x)) for x in pair]
        tau_min = low + (high - low) * ends[0]
        tau_max = tau_min + (high - tau_min) * ends[1]
        torch.testing.assert_close(
            learned(GRID), cosine_tau(GRID, tau_min, tau_max), rtol=1e-6, atol=1e-12
        )
        values = learned.learned()
        assert (values["tau_min"], values["tau_max"]) == pytest.approx((tau_min, tau_max), abs=1e-6)


@pytest.mark.parametrize("blockwise", [False, True])
@pytest.mark.parametrize("detach", [False, True])
def test_the_gradient_of_a_learned_one_is_that_of_the_loop(detach, blockwise):
    """The flag keeps the similarities out of the temperature's gradient, never its parameters."""
    z = views(5, 4)
    learned = losses.LearnableTemperature(losses.CosineTemperature(0.1, 0.2), 0.05, 0.5).double()
    loss = losses.InfoNCELoss(learned, detach_temperature=detach, blockwise=blockwise)
    found = torch.autograd.grad(loss(*z), [learned.free, *z])
    free = learned.free.detach().requires_grad_()
    tau_min = 0.05 + 0.45 / (1 + torch.exp(-free[0]))
    tau_max = tau_min + (0.5 - tau_min) / (1 + torch.exp(-free[1]))
    rows = simcse_rows(*z)
    value = OBJECTIVES["InfoNCE"].loss(rows, lambda s: cosine_tau(s, tau_min, tau_max), detach)
    assert_same(found, torch.autograd.grad(value, [free, *z]))


@pytest.mark.parametrize(
    ("delta_k", "c", "start", "end"), [(2.0, -1.5, 0.05, 1.0), (2.0, -1.5, -0.3, -0.7)]
)
def test_ode_family_solves_its_equation(delta_k, c, start, end):
    def slope(s, tau):  # Eq. eqnnewdeltdels
        return tau / s * (1 - tau * delta_k * math.exp(-s / float(tau[0])))

    first = start / math.log(delta_k * start - c)
    places = torch.linspace(start, end, 9, dtype=torch.float64)
    path = solve_ivp(
        slope, (start, end), [first], t_eval=places.numpy(), rtol=1e-11, atol=1e-13, method="DOP853"
    )
    torch.testing.assert_close(
        losses.ode_temperature(places, delta_k, c), torch.from_numpy(path.y[0]), rtol=1e-7, atol=0
    )


def test_ode_family_is_nan_where_it_is_no_temperature():
    grid = torch.tensor([-0.5, 0.0, 0.1, 0.25, 0.5, 0.75, 1.0], dtype=torch.float64)
    found = losses.ode_temperature(
        grid, 2.0, 0.3
    )  # the argument is positive from 0.15 on, the logarithm from 0.65 on
    assert found.isnan().tolist() == [True] * 5 + [False] * 2


PROFILE = {"tau_min": 0.1, "tau_max": 0.2}
REFUSED = [
    *(
        (cls, {"tau_min": 0.3, "tau_max": 0.2}, "tau_min ")
        for cls in (*PROFILES, losses.ScheduledTemperature)
    ),
    (losses.CosineTemperature, {"tau_min": 0.0, "tau_max": 0.1}, "tau_min "),
    (losses.CosineTemperature, {"tau_min": 0.1, "tau_max": math.nan}, "tau_max "),
    (losses.ConstantTemperature, {"tau": True}, "tau "),
    (losses.ShiftedCosineTemperature, {**PROFILE, "shift": 1.1}, "shift "),
    (losses.ShiftedCosineTemperature, {**PROFILE, "shift": -0.4, "scale": 0.0}, "scale "),
    (losses.ScheduledTemperature, {**PROFILE, "unit": "step"}, "unit "),
    (
        losses.LearnableTemperature,
        {"temperature": 0.05, "low": 0.2, "high": 0.1},
        "low < 0.05 < high must .*got 0.2 and 0.1",
    ),
    (
        losses.LearnableTemperature,
        {"temperature": losses.CosineTemperature(0.05, 0.05)},
        "low < 0.05 < 0.05 < high",
    ),
    (
        losses.DebiasedReweighting,
        {"temperature": 0.5, "tau_plus": 1.0},
        r"tau_plus must lie in \[0, 1\)",
    ),
]


@pytest.mark.parametrize(("build", "parameters", "message"), REFUSED)
def test_what_is_refused_is_named_first(build, parameters, message):
    with pytest.raises(ValueError, match=rf"^{message}"):
        build(**parameters)


@pytest.mark.parametrize(
    ("shift", "printed"), [(None, 4.504), (0.0, 1.54), (-0.2, 1.75), (0.4, 2.04), (-0.6, 2.48)]
)
def test_warns_above_the_critical_ratio_and_names_it_and_where_the_logit_falls(shift, printed):
    """1 + 1 / max(s g' - g), below which the logit rises everywhere; for shift <= 0 the worst s is
    -shift - 3k/2.
    """
    k = (1 + abs(shift or 0)) / 2
    worst = (
        math.pi / 4 - 1 / 2
        if shift is None
        else (3 * k / 2 - abs(shift)) * math.pi / (2 * k) - 1 / 2
    )
    critical = 1 + 1 / worst
    assert critical == pytest.approx(printed, abs=0.006)

    def build(high):
        return (
            losses.CosineTemperature(0.1, high)
            if shift is None
            else losses.ShiftedCosineTemperature(0.1, high, shift)
        )

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build(0.1 * critical * 0.998)
    high = 0.12 * critical
    with pytest.warns(
        UserWarning, match=f"the logit s / tau.*tau_max / tau_min < {critical:.3f}"
    ) as caught:
        temperature = build(high)
    tau = torch.stack(
        [
            cosine_tau(s, 0.1, high) if shift is None else shifted_tau(s, 0.1, high, shift, k)
            for s in GRID
        ]
    )
    torch.testing.assert_close(temperature(GRID), tau, rtol=1e-12, atol=0)
    places = GRID[1:][(GRID / tau).diff() < 0]
    (message,) = [str(warning.message) for warning in caught]
    low, upper = map(float, re.search(r"between s = (\S+) and (\S+);", message).groups())
    assert (low, upper) == pytest.approx((float(places[0]), float(places[-1])), abs=0.012)


def test_a_shape_below_zero_is_refused():
    negative = type(
        "Negative", (losses.ProfileTemperature,), {"shape": lambda self, s: -2 * s.abs()}
    )
    with pytest.raises(
        ValueError, match=r"shape of Negative\(.*\) gives temperatures that are not positive"
    ):
        negative(0.1, 0.35)
