"""Losses at their limits: half precision, autocast, degenerate embeddings, huge leads; and the errors they raise."""

import math

import pytest
import torch
from core_cases import OBJECTIVES, PROFILES
from dystress_text.core.rows import Rows, reweighted_rows, unit_vectors

from dystress_text.core import (
    AlignmentAdaptiveTemperature,
    ConstantTemperature,
    CosineTemperature,
    DCLWLoss,
    InfoNCELoss,
    MACLLoss,
    ScheduledTemperature,
    ShiftedCosineTemperature,
    TemperatureError,
)

LOSSES = {name: objective.build for name, objective in OBJECTIVES.items()}
COSINE, SHIFTED = CosineTemperature(0.05, 0.1), ShiftedCosineTemperature(0.05, 0.07)
# text's low temperatures, where logits are largest; built once, as none of them has state
TAU = [ConstantTemperature(0.05), *(profile(0.05, 0.1) for profile in PROFILES)]
HALF = [torch.float16, torch.bfloat16]
N, DIM = 6, 8


def random_views(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    z1 = torch.randn(N, DIM, generator=generator)
    return [z.to(dtype).requires_grad_() for z in (z1, z1 + 0.5 * torch.randn(N, DIM, generator=generator))]


def degenerate_views(case, dtype):
    x = torch.randn(N, DIM, generator=torch.Generator().manual_seed(1))
    same = x[:1].expand(N, DIM)
    z1, z2 = {
        "identical": (same, same),
        "identical pairs": (x, x),
        "opposite pairs": (x, -x),
        "opposite halves": (torch.cat([same[:3], -same[:3]]), torch.cat([same[:3], -same[:3]])),
        "zero": (torch.zeros_like(x), torch.zeros_like(x)),
        "one zero row": (x * torch.ones(N, 1).index_fill(0, torch.tensor([2]), 0), x),
    }[case]
    return [z.clone().to(dtype).requires_grad_() for z in (z1, z2)]


CASES = ["identical", "identical pairs", "opposite pairs", "opposite halves", "zero", "one zero row"]


def assert_finite(loss, views):
    value = loss(*views)
    gradients = torch.autograd.grad(value, views)
    assert math.isfinite(value.item())
    for gradient, view in zip(gradients, views, strict=True):
        assert gradient.dtype == view.dtype
        assert bool(gradient.isfinite().all())
    return value.item()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", LOSSES)
def test_degenerate_embeddings_give_finite_losses_and_gradients(name, case):
    for dtype in (torch.float32, *HALF):
        assert_finite(LOSSES[name](SHIFTED), degenerate_views(case, dtype))
    for tau in TAU:  # in the graph, where the temperature's own slope could fail as well
        assert_finite(LOSSES[name](tau, detach_temperature=False), degenerate_views(case, torch.float32))


@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
@pytest.mark.parametrize("both_views", [False, True])
def test_macl_with_its_own_temperature_bears_identical_views(both_views, dtype):
    columns = 2 * N - 1 if both_views else N
    loss = MACLLoss(both_views=both_views)
    chance = math.log(columns) * columns / (columns - 1)  # -log P / (1 - P) with P = 1 / columns
    assert assert_finite(loss, degenerate_views("identical", dtype)) == pytest.approx(chance, rel=1e-5)
    assert_finite(loss, degenerate_views("identical pairs", dtype))
    assert loss.temperature(torch.zeros(1)).item() == pytest.approx(0.05 * (1 + 2 * 0.2), rel=1e-5)


@pytest.mark.parametrize("case", ["opposite pairs", "zero"])
def test_macl_with_its_own_temperature_refuses_views_that_are_not_alike(case):
    with pytest.raises(TemperatureError):
        MACLLoss()(*degenerate_views(case, torch.float32))


@pytest.mark.parametrize("case", ["identical", "zero"])
@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
def test_embeddings_without_information_give_the_loss_of_chance(case, dtype):
    views = degenerate_views(case, dtype)
    candidates = {"InfoNCE": N, "NT-Xent": 2 * N - 1, "DCL": 2 * N - 2, "DCLW": 2 * N - 2}  # DCLW: every weight is 1
    for name, count in candidates.items():
        assert assert_finite(LOSSES[name](SHIFTED), views) == pytest.approx(math.log(count), rel=1e-5)


@pytest.mark.parametrize("dtype", HALF)
@pytest.mark.parametrize("name", LOSSES)
def test_half_precision_embeddings_are_computed_in_fp32(name, dtype):
    views = random_views(dtype)
    value = LOSSES[name](COSINE)(*views)
    assert value.dtype == torch.float32
    assert torch.equal(value, LOSSES[name](COSINE)(*(z.float() for z in views)))


@pytest.mark.parametrize(
    ("name", "tau"),
    [
        *((name, SHIFTED) for name in LOSSES),
        *(("NT-Xent", tau) for tau in (*TAU, ScheduledTemperature(), AlignmentAdaptiveTemperature())),
    ],
)
def test_autocast_changes_nothing(name, tau):
    views = random_views()
    loss = LOSSES[name](tau, detach_temperature=False)
    plain = loss(*views)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        autocast = loss(*views)
    assert autocast.dtype == torch.float32
    assert torch.equal(autocast, plain)
    gradients = [torch.autograd.grad(value, views) for value in (plain, autocast)]
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


@pytest.mark.parametrize("name", LOSSES)
def test_length_of_embeddings_does_not_matter(name):
    for scale in (1e-35, 1e-12, 1e12, 1e35):
        views = random_views()
        values = [LOSSES[name](COSINE)(*(z * factor for z in views)) for factor in (scale, 1)]
        torch.testing.assert_close(*values, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(*(torch.autograd.grad(value, views) for value in values), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("entry", [0.0, 1e-40])  # in fp32 the second is no normal number
def test_a_zero_row_stays_zero_with_a_zero_gradient(entry):
    x = torch.tensor([[3.0, 4.0], [entry, entry], [0.0, -2.0]], requires_grad=True)
    units = unit_vectors(x)
    assert units.tolist() == [pytest.approx([0.6, 0.8]), [0, 0], [0, -1]]
    units.backward(torch.tensor([[1.0, 0.0], [5.0, 7.0], [1.0, 1.0]]))
    assert x.grad.tolist() == [pytest.approx([0.128, -0.096]), [0, 0], [0.5, 0]]


LEADS = [-1e4, -200.0, -60.0, -3.0, 0.0, 3.0, 30.0, 39.9, 40.1, 60.0, 100.0, 200.0, 1e4]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lead", LEADS)
def test_macl_is_exact_at_any_lead_of_the_positive(lead, dtype):
    other = math.exp(-abs(lead))
    if lead >= 0:  # softplus(-lead) / sigmoid(-lead), which tends to 1
        expected = (1 + other) * (math.log1p(other) / other if other > 0 else 1.0)
    else:  # which tends to -lead
        expected = (1 + other) * (math.log1p(other) - lead)
    positive = torch.tensor([lead / 2], dtype=dtype, requires_grad=True)
    negatives = torch.tensor([-lead / 2], dtype=dtype, requires_grad=True)
    value = reweighted_rows(Rows(positive, negatives))
    assert value.item() == pytest.approx(expected, rel=8 * torch.finfo(dtype).eps)
    gradients = torch.autograd.grad(value.sum(), (positive, negatives))  # w (1 - P) = 1 whatever the lead
    assert [float(g) for g in gradients] == pytest.approx([-1, 1], rel=8 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("tau", [None, 2 / 60, 0.01, 1e-4])  # None: its own, 0.07 here
@pytest.mark.parametrize("dtype", [torch.float32, *HALF])
@pytest.mark.parametrize("both_views", [False, True])
def test_macl_of_perfectly_separated_pairs_is_one(both_views, dtype, tau):
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.0]])  # similarities 1 and -1: a lead of 2 / tau logits
    views = [(length * x).to(dtype).requires_grad_() for length in (1, 2)]
    assert assert_finite(MACLLoss(temperature=tau, both_views=both_views), views) == pytest.approx(1, rel=1e-6)


# ---- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", LOSSES)
def test_a_batch_of_one_is_refused(name):
    with pytest.raises(ValueError, match="at least 2"):
        LOSSES[name](0.1)(torch.ones(1, 3), torch.ones(1, 3))


@pytest.mark.parametrize("name", LOSSES)
def test_shapes_that_do_not_fit_are_refused_with_the_shapes(name):
    for shapes in (((4, 3), (5, 3)), ((4, 3), (4, 2)), ((4, 3, 2), (4, 3, 2)), ((4,), (4,))):
        with pytest.raises(ValueError, match=".*".join(str(shape).strip("()") for shape in shapes)):
            LOSSES[name](0.1)(*(torch.ones(shape) for shape in shapes))


def test_hard_negatives_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"4, 3.*5, 3"):
        InfoNCELoss(0.1)(torch.ones(4, 3), torch.ones(4, 3), torch.ones(5, 3))


@pytest.mark.parametrize("name", LOSSES)
def test_what_is_no_temperature_is_refused(name):
    for temperature in ("0.05", True, CosineTemperature, [0.05], torch.tensor(0.05)):
        with pytest.raises(TypeError, match="temperature"):
            LOSSES[name](temperature)
    with pytest.raises(ValueError, match=r"\btau"):
        LOSSES[name](-0.05)


@pytest.mark.parametrize("sigma", [0.0, -0.5, math.nan, True])
def test_dclw_refuses_a_sigma_that_is_no_positive_number(sigma):
    with pytest.raises(ValueError, match="sigma"):
        DCLWLoss(0.1, sigma=sigma)


@pytest.mark.parametrize(("parameters", "name"), [((0.0,), "tau_0"), ((True,), "tau_0"), ((0.05, -1), "alpha")])
def test_macl_refuses_bad_parameters(parameters, name):
    with pytest.raises(ValueError, match=name):
        MACLLoss(*parameters)
