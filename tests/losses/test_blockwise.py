"""The blockwise form against the plain one: values, gradients, state and memory."""

import sys
from pathlib import Path

import pytest
import torch
from loss_cases import EVERY, OBJECTIVES, assert_same, value_and_gradients, views

from dystress_text import losses
from dystress_text.losses import blockwise, objectives
from dystress_text.losses.vectors import unit_vectors

pytestmark = pytest.mark.usefixtures("small_blocks")


class OwnTemperature(losses.Temperature):
    """A user's temperature with a used and an unused parameter."""

    def __init__(self):
        super().__init__()
        self.base = torch.nn.Parameter(torch.tensor([0.15, 0.02, -0.03], dtype=torch.float64))
        self.unused = torch.nn.Parameter(torch.zeros(3))

    def forward(self, s):
        a, b, c = self.base.to(s.dtype)
        return a + b * s + c * s.square()


@EVERY
@pytest.mark.parametrize("detach", [True, False])
def test_equals_the_plain_form_at_any_block(name, detach, monkeypatch):
    z = views(9, 6, 4)
    loss = OBJECTIVES[name].build(
        OwnTemperature(), blockwise=False, detach_temperature=detach, hard_negative_weight=0.7
    )
    inputs = [*z, *loss.parameters()]
    expected = value_and_gradients(loss(*z), inputs)
    loss.blockwise = True
    for block in (5, 100):  # below and above the number of rows
        monkeypatch.setattr(blockwise, "CPU_BLOCK", block)
        assert_same(loss(*z), expected, inputs)


@EVERY
def test_low_temperatures_in_fp32(name):
    z = views(11, 3)
    loss = OBJECTIVES[name].build(0.002)  # logits of 500 are beyond fp32's exponent
    loss.blockwise = False
    expected = value_and_gradients(loss(*z), z)
    loss.blockwise = True
    assert_same(loss(*(x.float() for x in z)), expected, z, 1e-3)


def test_backward_uses_the_state_of_the_forward():
    z = views(9, 6)

    def value_before_a_change(form):
        tau = losses.AlignmentAdaptiveTemperature(0.1, 0.8, 0.6)
        adaptive = losses.MACLLoss(tau, blockwise=form)
        scheduled = losses.NTXentLoss(losses.ScheduledTemperature(0.1, 1.0), blockwise=form)
        value = adaptive(*z) + scheduled(*z)
        adaptive(*views(13, 3))
        scheduled.temperature.advance(150, 0.75)
        return value

    expected = value_and_gradients(value_before_a_change(False), z)
    assert_same(value_before_a_change(True), expected, z)


def test_autocast_does_not_reach_the_backward():
    z = [x.detach().float().requires_grad_() for x in views(9, 6)]
    tau = losses.CosineTemperature(0.1, 0.2)
    loss = losses.NTXentLoss(tau, detach_temperature=False, blockwise=True)
    expected = value_and_gradients(loss(*z), z)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_same(loss(*z), expected, z, 0)


def test_second_derivatives():
    z = views(3, 2)
    with pytest.raises(RuntimeError, match="blockwise=False"):
        torch.autograd.grad(losses.InfoNCELoss(0.1, blockwise=True)(*z), z, create_graph=True)
    assert torch.autograd.gradgradcheck(unit_vectors, views(3, 4)[:1])
    tau = losses.CosineTemperature(0.1, 0.2)
    plain = losses.NTXentLoss(tau, detach_temperature=False, blockwise=False)
    assert torch.autograd.gradgradcheck(plain, z)


@pytest.mark.parametrize(
    ("name", "limit", "entries"),
    [("InfoNCE", "BLOCKWISE_ENTRIES", 25), ("NT-Xent", "SYMMETRIC_ENTRIES", 100)],
)
def test_the_number_of_entries_chooses_the_form(name, limit, entries, monkeypatch):
    def blockwise_form(*_):
        raise InterruptedError

    monkeypatch.setattr(objectives, "blockwise_logsumexps", blockwise_form)
    loss = OBJECTIVES[name].build(0.1)
    monkeypatch.setattr(blockwise, limit, entries)
    loss(*views(5, 3))
    monkeypatch.setattr(blockwise, limit, entries - 1)
    with pytest.raises(InterruptedError):
        loss(*views(5, 3))


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory from /proc")
def test_memory_does_not_grow_with_the_square(monkeypatch):
    """The matrix has 64 MiB in fp32, the vectors less than 1 MiB."""
    monkeypatch.undo()  # the default sizes of blocks
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[1] / "benchmarks")
    import loss_core

    plain = loss_core.peak(losses.NTXentLoss(0.1, blockwise=False), 2048, 16)
    blocks = loss_core.peak(losses.NTXentLoss(0.1, blockwise=True), 2048, 16)
    assert plain > 3 * 64 * 2**20
    assert blocks < 32 * 2**20
