"""What temperatures refuse or warn about when they are built, and the registry of temperatures by name."""

import math
import re
import warnings

import pytest
import torch
from core_cases import PROFILES
from spec_formulas import cosine_tau, info_nce, shifted_tau

from dystress_text.core import (
    AlignmentAdaptiveTemperature,
    ConstantTemperature,
    CosineTemperature,
    EvenODETemperature,
    ExponentialTemperature,
    InfoNCELoss,
    LinearTemperature,
    MonotonicCosineTemperature,
    OneSidedCosineTemperature,
    PiecewiseLinearTemperature,
    ProfileTemperature,
    RobustTemperature,
    SampleTemperature,
    ScheduledTemperature,
    ShiftedCosineTemperature,
    TeMoTemperature,
    make_temperature,
    register_temperature,
    registry,
)

GRID = torch.linspace(-1, 1, 401, dtype=torch.float64)

# ---- refused parameters ---------------------------------------------------------------------------------------------

BAD_RANGES = [
    ({"tau_min": 0.0, "tau_max": 0.2}, "tau_min"),
    ({"tau_min": -0.1, "tau_max": 0.2}, "tau_min"),
    ({"tau_min": math.nan, "tau_max": 0.2}, "tau_min"),
    ({"tau_min": 0.1, "tau_max": math.inf}, "tau_max"),
    ({"tau_min": 0.1, "tau_max": math.nan}, "tau_max"),
    ({"tau_min": 0.3, "tau_max": 0.2}, "tau_max"),
]
BAD_PARAMETERS = [
    (ConstantTemperature, {"tau": 0.0}, "tau"),
    (ConstantTemperature, {"tau": -0.05}, "tau"),
    (ConstantTemperature, {"tau": math.nan}, "tau"),
    (ConstantTemperature, {"tau": True}, "tau"),
    (ShiftedCosineTemperature, {"shift": 1.1}, "shift"),
    (ShiftedCosineTemperature, {"shift": -1.1}, "shift"),
    (ShiftedCosineTemperature, {"shift": math.nan}, "shift"),
    (ShiftedCosineTemperature, {"scale": 0.0}, "scale"),
    (ShiftedCosineTemperature, {"scale": -0.7}, "scale"),
    (ExponentialTemperature, {"sharpness": 0.0}, "sharpness"),
    (ExponentialTemperature, {"sharpness": -1.0}, "sharpness"),
    (ExponentialTemperature, {"sharpness": math.nan}, "sharpness"),
    (ScheduledTemperature, {"half_period": 0}, "half_period"),
    (ScheduledTemperature, {"half_period": -1}, "half_period"),
    (ScheduledTemperature, {"unit": "step"}, "unit"),
    (AlignmentAdaptiveTemperature, {"tau_0": 0.0}, "tau_0"),
    (AlignmentAdaptiveTemperature, {"tau_0": -0.05}, "tau_0"),
    (AlignmentAdaptiveTemperature, {"alpha": -0.1}, "alpha"),
    (AlignmentAdaptiveTemperature, {"a_0": 1.2}, "a_0"),
]


@pytest.mark.parametrize("cls", [*PROFILES, ScheduledTemperature])
def test_bad_ranges_are_refused_by_name(cls):
    for bounds, name in BAD_RANGES:
        with pytest.raises(ValueError, match=rf"\b{name}\b"):
            cls(**bounds)


@pytest.mark.parametrize(("cls", "parameters", "name"), BAD_PARAMETERS)
def test_bad_parameters_are_refused_by_name(cls, parameters, name):
    with pytest.raises(ValueError, match=rf"\b{name}\b"):
        cls(**parameters)


@pytest.mark.parametrize("shape", [lambda s: -2 * s.abs(), lambda s: s.sqrt()], ids=["negative", "NaN"])
def test_a_profile_that_is_not_positive_everywhere_is_refused(shape):
    with pytest.raises(ValueError, match="positive"):
        ProfileTemperature(0.1, 0.2, shape)


# ---- the logit s / tau(s) should rise -------------------------------------------------------------------------------


def shifted_critical(shift):
    """1 + 1 / max(s g' - g), below which the logit rises everywhere; for shift <= 0 the worst s is -shift - 3k/2."""
    k = (1 + abs(shift)) / 2
    return 1 + 1 / ((3 * k / 2 - abs(shift)) * math.pi / (2 * k) - 1 / 2)


CRITICAL = [  # shift (None for the cosine), the ratio as the specification gives it
    (None, 4.504),
    (0.0, 1.54),
    (-0.2, 1.75),
    (0.2, 1.75),
    (-0.4, 2.04),
    (0.4, 2.04),
    (-0.6, 2.48),
    (0.6, 2.48),
]


def profile(shift, low, high):
    return CosineTemperature(low, high) if shift is None else ShiftedCosineTemperature(low, high, shift)


def formula(shift, s, low, high):
    k = (1 + abs(shift or 0)) / 2
    return cosine_tau(s, low, high) if shift is None else shifted_tau(s, low, high, shift, k)


def falling_places(tau):
    """The places on a fine grid where the logit s / tau(s) falls."""
    grid = [-1 + k / 5000 for k in range(10001)]
    logits = [s / tau(s) for s in grid]
    return [(a + b) / 2 for a, b, x, y in zip(grid, grid[1:], logits, logits[1:], strict=False) if y < x]


@pytest.mark.parametrize(("shift", "printed"), CRITICAL)
def test_warns_once_above_the_critical_ratio_and_names_it(shift, printed):
    critical = 1 + 1 / (math.pi / 4 - 1 / 2) if shift is None else shifted_critical(shift)
    assert critical == pytest.approx(printed, abs=0.006)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        profile(shift, 0.1, 0.1 * critical * 1.002)
    assert len(caught) == 1
    numbers = [float(n) for n in re.findall(r"\d+\.\d+", str(caught[0].message))]
    assert any(n == pytest.approx(critical, abs=6e-4) for n in numbers)


@pytest.mark.parametrize(("shift", "printed"), CRITICAL)
def test_does_not_warn_below_the_critical_ratio(shift, printed):
    critical = 1 + 1 / (math.pi / 4 - 1 / 2) if shift is None else shifted_critical(shift)
    assert critical == pytest.approx(printed, abs=0.006)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        profile(shift, 0.1, 0.1 * critical * 0.998)


@pytest.mark.parametrize(("shift", "low", "high"), [(-0.4, 0.02, 0.05), (0.2, 0.1, 0.2), (None, 0.07, 0.5)])
def test_warning_names_where_the_logit_falls(shift, low, high):
    places = falling_places(lambda s: formula(shift, s, low, high))
    with pytest.warns(UserWarning, match="logit") as caught:
        profile(shift, low, high)
    numbers = [float(n) for n in re.findall(r"-?\d+\.\d+", str(caught[0].message))]
    for end in (places[0], places[-1]):
        assert any(n == pytest.approx(end, abs=0.006) for n in numbers), end


@pytest.mark.parametrize(
    "cls", [LinearTemperature, ExponentialTemperature, MonotonicCosineTemperature, EvenODETemperature]
)
def test_profiles_whose_logit_always_rises_never_warn(cls):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rising = cls(0.05, 2.0)
    assert bool(((GRID / rising(GRID)).diff() > 0).all())


def test_equal_ends_never_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert torch.equal(ShiftedCosineTemperature(0.05, 0.05)(GRID), torch.full_like(GRID, 0.05))


# ---- the registry ---------------------------------------------------------------------------------------------------

NAMED = {
    "constant": ({"tau": 0.07}, ConstantTemperature(0.07)),
    "cosine": ({"tau_min": 0.07, "tau_max": 0.2}, CosineTemperature(0.07, 0.2)),
    "shifted_cosine": ({"shift": -0.2, "tau_max": 0.06}, ShiftedCosineTemperature(0.05, 0.06, -0.2)),
    "linear": ({"tau_min": 0.07, "tau_max": 0.2}, LinearTemperature(0.07, 0.2)),
    "exponential": ({"sharpness": 2.0}, ExponentialTemperature(sharpness=2.0)),
    "monotonic_cosine": ({"tau_min": 0.07}, MonotonicCosineTemperature(0.07)),
    "one_sided_cosine": ({"tau_min": 0.1, "tau_max": 0.12, "shift": 0.4}, OneSidedCosineTemperature(0.1, 0.12, 0.4)),
    "even_ode": ({"tau_min": 0.07}, EvenODETemperature(0.07)),
    "scheduled": ({"half_period": 0.5, "unit": "run"}, ScheduledTemperature(half_period=0.5, unit="run")),
    "alignment_adaptive": ({"tau_0": 0.06}, AlignmentAdaptiveTemperature(0.06)),
    "piecewise_linear": ({"knots": ["0:0.1", "0.5:0.2"]}, PiecewiseLinearTemperature([(0, 0.1), (0.5, 0.2)])),
    "temo": ({"alpha": 0.05}, TeMoTemperature(alpha=0.05)),
    "robust": ({"tau": 0.1}, RobustTemperature(tau=0.1)),
    "isogclr": ({"tau": 0.2}, SampleTemperature(0.2)),
}


@pytest.mark.parametrize("name", NAMED)
def test_every_temperature_is_made_by_its_name(name):
    parameters, expected = NAMED[name]
    made = make_temperature(name, **parameters)
    assert type(made) is type(expected)
    assert torch.equal(made(GRID), expected(GRID))


def test_registry_holds_these_and_no_others():
    ours = {name for name, cls in registry.TEMPERATURES.items() if cls.__module__.startswith("dystress_text")}
    assert ours == set(NAMED)


@pytest.mark.parametrize(
    ("name", "parameters", "words"),
    [
        ("cosin", {}, "cosin.*cosine"),
        ("cosine", {"shift": 0.1}, "tau_min.*shift"),
        ("cosine", {"tau_min": 0.0}, "tau_min"),
    ],
)
def test_registry_says_what_is_wrong(name, parameters, words):
    with pytest.raises(ValueError, match=words):
        make_temperature(name, **parameters)


def test_a_temperature_of_ones_own(monkeypatch):
    monkeypatch.setattr(registry, "TEMPERATURES", dict(registry.TEMPERATURES))

    @register_temperature("squared")
    class SquaredTemperature(ProfileTemperature):
        def __init__(self, tau_min: float, tau_max: float = 0.35) -> None:
            super().__init__(tau_min, tau_max, lambda s: s**2)

    with pytest.raises(ValueError, match="tau_min"):
        make_temperature("squared")
    own = make_temperature("squared", tau_min=0.2)
    x = torch.tensor([[1.0, 0.0], [0.6, 0.8]], dtype=torch.float64)
    y = torch.tensor([[0.8, 0.6], [0.0, 1.0]], dtype=torch.float64)  # similarities 0.8, 0 and 0.96, 0.8
    expected = info_nce([(0.8 / 0.296, [0.0]), (0.8 / 0.296, [0.96 / 0.33824])])
    assert float(InfoNCELoss(own)(x, y)) == pytest.approx(expected, rel=1e-12)


def test_a_name_is_taken_by_one_class_that_may_be_defined_again(monkeypatch):
    monkeypatch.setattr(registry, "TEMPERATURES", dict(registry.TEMPERATURES))

    def run_cell(module, class_name):
        cls = type(class_name, (ConstantTemperature,), {"__module__": module, "__qualname__": class_name})
        return register_temperature("mine")(cls)

    run_cell("__main__", "Mine")
    again = run_cell("__main__", "Mine")
    assert type(make_temperature("mine")) is again
    for other in (("elsewhere", "Mine"), ("__main__", "Another")):
        with pytest.raises(ValueError, match=r"'mine' is registered already, by __main__\.Mine"):
            run_cell(*other)
    assert type(make_temperature("mine")) is again


@pytest.mark.parametrize("value", [0.1, math.nan])
def test_a_refused_alignment_leaves_no_trace(value):
    temperature = AlignmentAdaptiveTemperature()
    with pytest.raises(ValueError, match="must stay positive"):
        temperature.observe(torch.tensor(value))
    assert float(temperature.mean_positive) == 0.8
