"""Losses at their limits: half precision, autocast, degenerate embeddings and huge leads."""

import math

import pytest
import torch
from loss_cases import EVERY, OBJECTIVES, TEMPERATURES, assert_same, value_and_gradients, views

from dystress_text import losses
from dystress_text.losses.vectors import unit_vectors

N = 6
DIM = 8
X = torch.randn(N, DIM, generator=torch.Generator().manual_seed(1))
SAME = X[:1].expand(N, DIM)
DEGENERATE = {
    "identical": (SAME, SAME),
    "opposite pairs": (X, -X),
    "zero": (0 * X, 0 * X),
    "one zero row": (X * (torch.arange(N) != 2)[:, None], X),
}


def checked(loss, pair):
    """Return the loss; check that it and its gradients are finite."""
    z = [x.clone().requires_grad_() for x in pair]
    value, *gradients = value_and_gradients(loss(*z), z)
    for x in (value, *gradients):
        assert x.isfinite().all()
    return value.item()


@pytest.mark.parametrize("pair", DEGENERATE.values(), ids=DEGENERATE)
def test_degenerate_embeddings_have_finite_losses_and_gradients(pair):
    shifted = losses.ShiftedCosineTemperature(0.05, 0.1, -0.4)
    for objective in OBJECTIVES.values():
        loss = objective.build(shifted, detach_temperature=False)
        for loss.blockwise in (False, True):
            checked(loss, pair)
    for profile, _ in TEMPERATURES.values():
        checked(losses.InfoNCELoss(profile, detach_temperature=False), pair)


def test_equal_embeddings_have_the_loss_of_chance():
    chances = {
        "InfoNCE": math.log(N),
        "NT-Xent": math.log(2 * N - 1),
        "DCL": math.log(2 * N - 2),
        "DCLW": math.log(2 * N - 2),
        "MACL": math.log(N) * N / (N - 1),  # -log P / (1 - P) with P = 1 / N
    }
    for name, expected in chances.items():
        value = checked(OBJECTIVES[name].build(0.1), (SAME, SAME))
        assert value == pytest.approx(expected, rel=1e-5)


@EVERY
def test_half_precision_is_computed_in_fp32(name):
    loss = OBJECTIVES[name].build(losses.CosineTemperature(0.05, 0.1), detach_temperature=False)
    z = [x.detach().bfloat16().requires_grad_() for x in views(N, DIM)]
    expected = value_and_gradients(loss(*z), z)
    assert expected[0].dtype == torch.float32
    assert torch.equal(expected[0], loss(*(x.float() for x in z)))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(*z)
    assert_same(value, expected, z, 0)


@pytest.mark.parametrize("entry", [0.0, 1e-40])  # in fp32 the second is subnormal
@pytest.mark.parametrize("scale", [1e-35, 1e35])
def test_unit_vectors_of_any_length(entry, scale):
    x = torch.tensor([[3.0, 4.0], [entry, entry], [0.0, -2.0]], requires_grad=True)
    units = unit_vectors(x * torch.tensor([[scale], [1], [scale]]))
    assert units.tolist() == [pytest.approx([0.6, 0.8]), [0, 0], [0, -1]]
    units.backward(torch.tensor([[1.0, 0.0], [5.0, 7.0], [1.0, 1.0]]))
    assert x.grad.tolist() == [pytest.approx([0.128, -0.096]), [0, 0], pytest.approx([0.5, 0])]


@pytest.mark.parametrize("lead", [-1e4, -3.0, 39.9, 40.1, 1e4])
def test_macl_at_any_lead_of_the_positive(lead):
    """softplus(-lead) / sigmoid(-lead), whose limit is 1."""
    other = math.exp(-abs(lead))
    softplus = math.log1p(other) + max(-lead, 0)
    sigmoid = (other if lead > 0 else 1) / (1 + other)
    expected = softplus / sigmoid if sigmoid > 0 else 1.0
    positive = torch.tensor([lead / 2], requires_grad=True)
    negatives = torch.tensor([-lead / 2], requires_grad=True)
    value = losses.MACLLoss(0.1).row_loss(positive, negatives, positive)
    limit = 8 * torch.finfo(torch.float32).eps
    assert value.item() == pytest.approx(expected, rel=limit)
    gradients = torch.autograd.grad(value.sum(), (positive, negatives))
    assert [float(g) for g in gradients] == pytest.approx([-1, 1], rel=limit)


def test_invalid_embeddings_and_temperatures_are_refused():
    loss = losses.InfoNCELoss(0.1)
    for shapes in ([(1, 3), (1, 3)], [(4, 3), (5, 3)], [(4, 3, 2), (4, 3, 2)]):
        with pytest.raises(ValueError, match=r"shape|batch"):
            loss(*map(torch.ones, shapes))
    for temperature in ("0.05", losses.CosineTemperature):
        with pytest.raises(TypeError, match=r"^temperature"):
            losses.InfoNCELoss(temperature)
