"""The blockwise form: the plain form's values and gradients, at any block, with any state, in
bounded memory.
"""

import sys
from pathlib import Path

import pytest
import torch
from loss_cases import DETACH, EVERY, OBJECTIVES, assert_same, value_and_gradients, views

from dystress_text import losses
from dystress_text.losses import blockwise, objectives
from dystress_text.losses.vectors import unit_vectors

pytestmark = pytest.mark.usefixtures("small_blocks")


class OwnTemperature(losses.Temperature):
    """A user's, with parameters: one that takes part in the temperature and one that does not."""

    def __init__(self):
        super().__init__()
        self.base = torch.nn.Parameter(torch.tensor([0.15, 0.02, -0.03], dtype=torch.float64))
        self.unused = torch.nn.Parameter(torch.zeros(3))

    def forward(self, s):
        a, b, c = self.base.to(s.dtype)
        return a + b * s + c * s.square()


@EVERY
@DETACH
@pytest.mark.parametrize("count", [2, 4])
def test_blockwise_is_plain_with_parameters_at_any_block(name, detach, count, monkeypatch):
    z = views(9, 6, count)
    options = {"detach_temperature": detach, "hard_negative_weight": 0.7}
    plain = OBJECTIVES[name].build(OwnTemperature(), blockwise=False, **options)
    expected = value_and_gradients(plain(*z), [*z, *plain.parameters()])
    for block in (
        1,
        5,
        9,
        100,
    ):  # sizes below, at and above the rows' number, and no multiples of it
        monkeypatch.setattr(blockwise, "CPU_BLOCK", block)
        loss = OBJECTIVES[name].build(OwnTemperature(), blockwise=True, **options)
        found = value_and_gradients(loss(*z), [*z, *loss.parameters()])
        assert [x.dtype for x in found] == [x.dtype for x in expected]
        assert_same(found, expected)


@EVERY
def test_in_fp32_and_at_low_temperatures(name):
    z = views(11, 3)
    single = [x.detach().float().requires_grad_() for x in z]
    for tau in (0.002, 0.01, 0.3):  # logits of 500 and 100 are beyond fp32's exponent
        found = value_and_gradients(OBJECTIVES[name].build(tau, blockwise=True)(*single), single)
        expected = value_and_gradients(OBJECTIVES[name].build(tau, blockwise=False)(*z), z)
        assert_same(found, expected, 1e-3)  # fp32's share of such logits


@DETACH
@pytest.mark.parametrize("both_views", [False, True])
def test_backward_uses_the_state_of_the_forward(both_views, detach):
    z, others = views(9, 6), views(13, 3)
    gradients = []
    for form in (False, True):
        loss = losses.MACLLoss(
            0.1, 0.8, 0.6, both_views=both_views, detach_temperature=detach, blockwise=form
        )
        scheduled, learned = (
            losses.NTXentLoss(tau, blockwise=form)
            for tau in (losses.ScheduledTemperature(0.1, 1.0), OwnTemperature())
        )
        values = [loss(*z), scheduled(*z), learned(*z)]
        loss(*others)
        scheduled.temperature.advance(150, 0.75)
        learned.temperature.base.data = learned.temperature.base * (
            2 if form else 1
        )  # a new tensor for both forms
        gradients.append(
            [
                g
                for value in values
                for _ in range(2)
                for g in torch.autograd.grad(value, z, None, True)
            ]
        )
    assert_same(gradients[1], gradients[0])  # twice from one graph


@DETACH
def test_autocast_does_not_reach_the_backward(detach):
    z = [x.detach().float().requires_grad_() for x in views(9, 6)]
    loss = losses.NTXentLoss(
        losses.CosineTemperature(0.1, 0.2), detach_temperature=detach, blockwise=True
    )
    expected = torch.autograd.grad(loss(*z), z)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        gradients = torch.autograd.grad(loss(*z), z)
    assert all(torch.equal(*pair) for pair in zip(gradients, expected, strict=True))


def test_second_derivatives_are_refused_with_the_way_out_and_the_plain_form_has_them():
    z = views(3, 2)
    with pytest.raises(RuntimeError, match="blockwise=False"):
        torch.autograd.grad(losses.InfoNCELoss(0.1, blockwise=True)(*z), z, create_graph=True)
    assert torch.autograd.gradgradcheck(unit_vectors, views(3, 4)[:1])
    assert torch.autograd.gradgradcheck(
        losses.NTXentLoss(
            losses.CosineTemperature(0.1, 0.2), detach_temperature=False, blockwise=False
        ),
        z,
    )


@pytest.mark.parametrize(
    ("name", "count", "entries"), [("InfoNCE", 2, 25), ("NT-Xent", 2, 100), ("InfoNCE", 4, 75)]
)
def test_the_form_is_chosen_by_the_number_of_entries(name, count, entries, monkeypatch):
    used = []
    monkeypatch.setattr(
        objectives,
        "blockwise_logsumexps",
        lambda *a: used.append(1) or blockwise.blockwise_logsumexps(*a),
    )
    limit, other = ("SYMMETRIC_ENTRIES", "BLOCKWISE_ENTRIES")[:: 1 if name == "NT-Xent" else -1]
    monkeypatch.setattr(blockwise, other, 10**9)
    for asked, most, times in (
        (None, entries, 0),
        (None, entries - 1, 1),
        (True, 10**9, 1),
        (False, 0, 0),
    ):
        used.clear()
        monkeypatch.setattr(blockwise, limit, most)
        OBJECTIVES[name].build(0.1, blockwise=asked)(*views(5, 3, count))
        assert len(used) == times


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory from /proc")
@pytest.mark.parametrize(("objective", "size"), [("InfoNCE", 4096), ("NT-Xent", 2048)])
def test_memory_does_not_grow_with_the_square(objective, size, monkeypatch):
    """Bytes of a step, as the benchmark takes them; the matrix in fp32 has 64 MiB, the vectors have
    less than 1 MiB.
    """
    monkeypatch.undo()  # the blocks are as they come
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[1] / "benchmarks")
    import loss_core

    plain, blocks = (
        loss_core.peak(loss_core.make_loss(objective, "cosine", f), size, 16)
        for f in ("plain", "blockwise")
    )
    assert plain > 3 * 64 * 2**20
    assert blocks < 32 * 2**20
