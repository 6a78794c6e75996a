"""Temperatures against the formulas of the specification."""

import math
import re
from decimal import Decimal, localcontext

import pytest
import torch
from loss_cases import OBJECTIVES, TEMPERATURES, assert_same, value_and_gradients, views
from spec_formulas import cosine_tau, simcse_rows

from dystress_text import losses

GRID = torch.linspace(-1, 1, 401, dtype=torch.float64)


@pytest.mark.parametrize("name", TEMPERATURES)
def test_temperature_equals_its_formula(name):
    temperature, formula = TEMPERATURES[name]
    expected = torch.stack([formula(s) for s in GRID])
    limit = 1e-5 if name == "TeMo" else 1e-12  # at s = -1 its root is kept from 0
    torch.testing.assert_close(temperature(GRID), expected, rtol=limit, atol=0)
    similarity = torch.tensor([[-0.9, -0.25, 0.0], [0.25, 0.5, 1.0]], dtype=torch.bfloat16)
    right = torch.stack([formula(s) for s in similarity.double().flatten()]).view(2, 3)
    torch.testing.assert_close(temperature(similarity), right.bfloat16(), rtol=0.0625, atol=0)


@pytest.mark.parametrize("ratio", [1e-8, 0.9e-3, 1.1e-3])  # on both sides of the series' end
def test_even_ode_near_zero(ratio):
    with localcontext(prec=50):
        excess = Decimal(ratio) / (1 + Decimal(ratio)).ln() - 1
    expected = float(excess) / (1 / (0.1 * math.log(11)) - 1)
    s = torch.tensor(-0.1 * ratio, dtype=torch.float64)
    found = losses.EvenODETemperature(0.1, 0.2).shape(s)
    assert float(found) == pytest.approx(expected, rel=1e-12, abs=0)


def test_schedule():
    epochs = losses.ScheduledTemperature(0.1, 1.0)  # half a period is 200 epochs
    run = losses.ScheduledTemperature(0.1, 1.0, half_period=0.5, unit="run")
    for time in (0, 30, 200, 730.5):
        expected = 0.1 + 0.9 / 2 * (1 + math.cos(math.pi * time / 200))
        epochs.advance(epoch=time, run_fraction=0.123)
        run.advance(epoch=17, run_fraction=time / 400)
        for tau in (epochs(GRID), run(GRID)):
            assert tau.tolist() == pytest.approx([expected] * len(GRID), rel=1e-12)


def test_alignment_adaptive():
    temperature = losses.AlignmentAdaptiveTemperature(0.05, 2.0, 0.8)
    assert float(temperature(GRID)[0]) == pytest.approx(0.05, rel=1e-12)  # before the first batch
    temperature.observe(torch.tensor(0.301, dtype=torch.float64, requires_grad=True))
    tau = temperature(GRID)
    expected = 0.05 * (1 + 2 * (0.301 - 0.8))
    assert tau.tolist() == pytest.approx([expected] * len(GRID), rel=1e-9)
    assert not tau.requires_grad
    for mean_positive in (0.3, math.nan):  # where it reaches 0
        with pytest.raises(losses.TemperatureError):
            temperature.observe(torch.tensor(mean_positive, dtype=torch.float64))
    assert float(temperature.mean_positive) == 0.301


def test_checkpoints_contain_the_state():
    schedule = losses.ScheduledTemperature(0.1, 1.0)
    adaptive = losses.AlignmentAdaptiveTemperature(0.05, 2.0, 0.8)
    schedule.advance(epoch=70, run_fraction=0.1)
    adaptive.observe(torch.tensor(0.625))
    assert schedule.state_dict() == {"time": 70}
    assert adaptive.state_dict() == {"mean_positive": 0.625}


@pytest.mark.parametrize(
    "start", [losses.ConstantTemperature(0.05), losses.ShiftedCosineTemperature(0.05, 0.07, -0.4)]
)
def test_learned_temperature_starts_as_given(start):
    learned = losses.LearnableTemperature(start)
    torch.testing.assert_close(learned(GRID), start(GRID), rtol=1e-6, atol=0)
    assert learned.learned() == {end: getattr(start, end) for end in learned.ends}


@pytest.mark.parametrize(("detach", "form"), [(True, False), (True, True), (False, False)])
def test_gradient_of_a_learned_temperature(detach, form):
    """Detached similarities leave the parameters their gradient."""
    learned = losses.LearnableTemperature(losses.CosineTemperature(0.1, 0.2), 0.05, 0.5).double()
    shares = learned.free.sigmoid()
    tau_min = 0.05 + 0.45 * shares[0]
    tau_max = tau_min + (0.5 - tau_min) * shares[1]
    z = views(5, 4)
    inputs = [learned.free, *z]
    rows = simcse_rows(*z)
    expected = OBJECTIVES["InfoNCE"].loss(rows, lambda s: cosine_tau(s, tau_min, tau_max), detach)
    loss = losses.InfoNCELoss(learned, detach_temperature=detach, blockwise=form)
    assert_same(loss(*z), value_and_gradients(expected, inputs), inputs)


@pytest.mark.parametrize(
    ("build", "arguments", "parameter"),
    [
        (losses.CosineTemperature, (0.3, 0.2), "tau_min"),
        (losses.CosineTemperature, (0.1, math.nan), "tau_max"),
        (losses.ConstantTemperature, (True,), "tau"),
        (losses.LearnableTemperature, (0.05, 0.2, 0.1), "temperature"),
        (losses.DebiasedReweighting, (0.5, 1.0), "tau_plus"),
    ],
)
def test_an_error_begins_with_the_parameter(build, arguments, parameter):
    with pytest.raises(ValueError, match=f"^{parameter}"):
        build(*arguments)


def test_negative_temperatures_are_refused():
    class Negative(losses.ProfileTemperature):
        def shape(self, s):
            return -2 * s.abs()

    with pytest.raises(ValueError, match="shape"):
        Negative(0.1, 0.35)


def falling(temperature):
    """Return where the logit falls, on a fine grid."""
    grid = torch.linspace(-1, 1, 20_001, dtype=torch.float64)
    logit = grid / temperature(grid)
    return grid[1:][logit.diff() < -1e-9]


class Quadratic(losses.ProfileTemperature):
    """Falls for a ratio above 2: ``s / (a + b s^2)`` has its maximum at ``sqrt(a / b)``."""

    def shape(self, similarity):
        return similarity.square()


@pytest.mark.parametrize("kind", [losses.CosineTemperature, Quadratic])
@pytest.mark.filterwarnings("error")
def test_a_warning_tells_where_the_logit_falls_and_from_which_ratio(kind):
    with pytest.warns(UserWarning, match="logit") as caught:
        temperature = kind(0.05, 0.6)
    text = str(caught[0].message)
    falls_at = falling(temperature)
    assert f"between {falls_at[0]:.2f} and {falls_at[-1]:.2f}" in text
    (ratio,) = re.findall(r"below (\d+\.\d+)", text)
    highest = 0.05 * float(ratio)
    assert len(falling(kind(0.05, 0.99 * highest))) == 0
    with pytest.warns(UserWarning, match="logit"):
        temperature = kind(0.05, 1.01 * highest)
    assert len(falling(temperature)) > 0
