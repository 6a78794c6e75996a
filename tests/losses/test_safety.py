"""Losses at their limits: half precision, autocast, degenerate embeddings, huge leads; and the
errors they raise.
"""

import math

import pytest
import torch
from loss_cases import EVERY, OBJECTIVES, PROFILES, value_and_gradients, views

from dystress_text import losses
from dystress_text.losses.vectors import unit_vectors

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
N, DIM = 6, 8


def degenerate_views(case, dtype):
    x = torch.randn(N, DIM, generator=torch.Generator().manual_seed(1))
    same, one_zero = x[:1].expand(N, DIM), x * (torch.arange(N) != 2)[:, None]
    pairs = {
        "identical": (same, same),
        "opposite pairs": (x, -x),
        "zero": (0 * x, 0 * x),
        "one zero row": (one_zero, x),
    }
    return [z.clone().to(dtype).requires_grad_() for z in pairs[case]]


def checked(loss, z):
    """The value; loss and gradients are finite."""
    found = value_and_gradients(loss(*z), z)
    assert all(bool(x.isfinite().all()) for x in found)
    return found[0].item()


@pytest.mark.parametrize("case", ["identical", "opposite pairs", "zero", "one zero row"])
@EVERY
def test_degenerate_embeddings_give_finite_losses_and_gradients(name, case):
    build, low = (
        OBJECTIVES[name].build,
        [losses.ConstantTemperature(0.05), *(profile(0.05, 0.1) for profile in PROFILES)],
    )
    for tau in low:  # text's low temperatures, where logits are largest
        for form in (False, True):
            checked(
                build(tau, detach_temperature=False, blockwise=form),
                degenerate_views(case, torch.float32),
            )
    for dtype in DTYPES[1:]:
        checked(build(low[1]), degenerate_views(case, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_embeddings_without_information_give_the_loss_of_chance(dtype):
    shifted = losses.ShiftedCosineTemperature(0.05, 0.07, -0.4)
    for name, count in {
        "InfoNCE": N,
        "NT-Xent": 2 * N - 1,
        "DCL": 2 * N - 2,
        "DCLW": 2 * N - 2,
    }.items():
        for case in ("identical", "zero"):
            found = checked(OBJECTIVES[name].build(shifted), degenerate_views(case, dtype))
            assert found == pytest.approx(math.log(count), rel=1e-5)
    chance = math.log(N) * N / (N - 1)  # -log P / (1 - P) with P = 1 / N
    assert checked(losses.MACLLoss(), degenerate_views("identical", dtype)) == pytest.approx(
        chance, rel=1e-5
    )
    with pytest.raises(losses.TemperatureError):
        losses.MACLLoss()(*degenerate_views("zero", dtype))


@EVERY
@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_half_precision_is_computed_in_fp32_and_autocast_changes_nothing(name, dtype):
    for tau in (
        losses.CosineTemperature(0.05, 0.1),
        losses.ScheduledTemperature(0.1, 1.0),
        losses.AlignmentAdaptiveTemperature(0.05, 2.0, 0.8),
    ):
        loss = OBJECTIVES[name].build(tau, detach_temperature=False)
        z = [x.detach().to(dtype).requires_grad_() for x in views(N, DIM)]
        value, *gradients = value_and_gradients(loss(*z), z)
        assert value.dtype == torch.float32
        assert torch.equal(value, loss(*(x.float() for x in z)))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            autocast = loss(*z)  # a backward is called outside
        assert all(map(torch.equal, [value, *gradients], value_and_gradients(autocast, z)))


@pytest.mark.parametrize("entry", [0.0, 1e-40])  # in fp32 the second is no normal number
@pytest.mark.parametrize("scale", [1, 1e-35, 1e35])
def test_length_does_not_matter_and_a_zero_row_stays_zero_with_a_zero_gradient(entry, scale):
    x = torch.tensor([[3.0, 4.0], [entry, entry], [0.0, -2.0]], requires_grad=True)
    units = unit_vectors(x * torch.tensor([[scale], [1], [scale]]))
    assert units.tolist() == [pytest.approx([0.6, 0.8]), [0, 0], [0, -1]]
    units.backward(torch.tensor([[1.0, 0.0], [5.0, 7.0], [1.0, 1.0]]))
    assert x.grad.tolist() == [pytest.approx([0.128, -0.096]), [0, 0], pytest.approx([0.5, 0])]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lead", [-1e4, -3.0, 0.0, 39.9, 40.1, 1e4])
def test_macl_is_exact_at_any_lead_of_the_positive(lead, dtype):
    other = math.exp(-abs(lead))
    if lead >= 0:  # softplus(-lead) / sigmoid(-lead), which tends to 1
        expected = (1 + other) * (math.log1p(other) / other if other > 0 else 1.0)
    else:  # which tends to -lead
        expected = (1 + other) * (math.log1p(other) - lead)
    positive = torch.tensor([lead / 2], dtype=dtype, requires_grad=True)
    negatives = torch.tensor([-lead / 2], dtype=dtype, requires_grad=True)
    value = losses.MACLLoss().row_loss(positive, negatives, positive)
    assert value.item() == pytest.approx(expected, rel=8 * torch.finfo(dtype).eps)
    gradients = torch.autograd.grad(
        value.sum(), (positive, negatives)
    )  # w (1 - P) = 1 whatever the lead
    assert [float(g) for g in gradients] == pytest.approx([-1, 1], rel=8 * torch.finfo(dtype).eps)


@EVERY
def test_what_does_not_fit_is_refused(name):
    build = OBJECTIVES[name].build
    with pytest.raises(ValueError, match="at least 2"):
        build(0.1)(torch.ones(1, 3), torch.ones(1, 3))
    if "per view" in name:  # the hard negative is of the other view
        with pytest.raises(ValueError, match="no negatives in the anchor's view"):
            build(0.1)(*torch.eye(3)[:, None])
    for shapes in (
        ((4, 3), (5, 3)),
        ((4, 3), (4, 2)),
        ((4, 3, 2), (4, 3, 2)),
        ((4, 3), (4, 3), (5, 3)),
    ):
        with pytest.raises(ValueError, match=".*".join(str(shape).strip("()") for shape in shapes)):
            build(0.1)(*(torch.ones(shape) for shape in shapes))
    for temperature in ("0.05", True, losses.CosineTemperature, torch.tensor(0.05)):
        with pytest.raises(TypeError, match=r"^temperature must be"):
            build(temperature)
    with pytest.raises(ValueError, match=r"^tau must lie"):
        build(-0.05)
