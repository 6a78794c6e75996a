"""The blockwise form of every objective: the loops over pairs in fp64, and the plain form, in values and gradients."""

import copy
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
import spec_formulas as spec
import torch
from core_cases import OBJECTIVES, TEMPERATURES, VARIANTS, logits_of, macl, macl_on_both_views
from dystress_text.core.rows import Pairs, both_view_pairs, first_view_pairs, plain_rows, unit_vectors
from gather_cases import losses_of_ranks
from processes import ThreadGather, in_new_process
from torch.utils._python_dispatch import TorchDispatchMode

from dystress_text.core import (
    AlignmentAdaptiveTemperature,
    CosineTemperature,
    InfoNCELoss,
    MACLLoss,
    NTXentLoss,
    ScheduledTemperature,
    Temperature,
    blockwise,
    objectives,
)
from dystress_text.core.gather import LocalGather

FLAGS = pytest.mark.parametrize("detach", [True, False], ids=["detached", "in the graph"])
LIMITS = {torch.float64: 1e-10, torch.float32: 1e-5}
DOUBLE = torch.float64
BLOCK = 4  # of the tests: sizes below, at and above it, and no multiples of it
SIZES = [(3, 4), (4, 5), (9, 6)]
# the three ways through the backward: by hand, by autograd, and by autograd with the temperature's own parameters
PATHS = pytest.mark.parametrize(("temperature", "detach"), [("shifted", True), ("shifted", False), ("learnable", True)])


BUILDERS = {name: case.build for name, case in OBJECTIVES.items()} | {k: build for k, (build, _) in VARIANTS.items()}


class LearnableTemperature(Temperature):
    """A user's own, with parameters: one that takes part in the temperature and one that does not."""

    def __init__(self):
        super().__init__()
        self.base = torch.nn.Parameter(torch.tensor(0.15, dtype=torch.float64))
        self.slope = torch.nn.Parameter(torch.tensor([0.02, -0.03], dtype=torch.float64))
        self.unused = torch.nn.Parameter(torch.zeros(3))

    def forward(self, similarity):
        base, slope = self.base.to(similarity.dtype), self.slope.to(similarity.dtype)
        return base + slope[0] * similarity + slope[1] * similarity.square()


class LiveBlocks(TorchDispatchMode):
    """The most memory that floating-point tensors of a block's size take at a time, in blocks."""

    def __init__(self, entries):
        super().__init__()
        self.entries, self.live, self.most = entries, {}, 0.0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(tensor, torch.Tensor) and tensor.numel() == self.entries:
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in self.live:
                    self.live[storage.data_ptr()] = storage.nbytes()
                    weakref.finalize(storage, self.live.pop, storage.data_ptr(), None)
                self.most = max(self.most, sum(self.live.values()) / (4 * self.entries))
        return result


def make_temperature(name):
    special = {
        "learnable": LearnableTemperature,
        "adaptive": lambda: AlignmentAdaptiveTemperature(0.1, 0.8, 0.6),
        "scheduled": ScheduledTemperature,
    }
    return special[name]() if name in special else TEMPERATURES[name][0]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(blockwise, "CPU_BLOCK", BLOCK)


def draw(builder, n, dim, dtype=torch.float64):
    """As many views as the objective takes: correlated, of very different lengths."""
    generator = torch.Generator().manual_seed(100 * n + dim)
    base = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    count = VARIANTS[builder][1] if builder in VARIANTS else 2
    views = [base + torch.randn(n, dim, generator=generator, dtype=torch.float64) for _ in range(count)]
    lengths = torch.logspace(-0.5, 0.5, n, dtype=torch.float64).unsqueeze(1)
    return [(lengths * view).to(dtype).requires_grad_() for view in views]


def assert_equal(results, dtype):
    """Pairs of tensors, relative in norm."""
    for value, expected in results:
        if expected is None:
            assert value is None
            continue
        assert value.shape == expected.shape
        assert value.dtype == expected.dtype
        assert (value - expected).norm().item() <= LIMITS[dtype] * expected.norm().item(), (value, expected)


def value_and_gradients(loss, views, dtype):
    value = loss(*views)
    inputs = [*views, *loss.parameters()]
    gradients = torch.autograd.grad(value, inputs, allow_unused=True)
    assert value.dtype == dtype
    return value, *gradients


def compare_forms(builder, temperature, detach, views, dtype):
    plain, other = (
        value_and_gradients(
            BUILDERS[builder](make_temperature(temperature), detach_temperature=detach, blockwise=form), views, dtype
        )
        for form in (False, True)
    )
    assert_equal(zip(other, plain, strict=True), dtype)


# ---- values and gradients -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", ["constant", "shifted"])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_value_is_the_loop_over_pairs(objective, temperature):
    case, (module, tau) = OBJECTIVES[objective], TEMPERATURES[temperature]
    z1, z2 = draw(objective, 9, 6)
    x, y = z1.tolist(), z2.tolist()
    logits = logits_of(case.rows(x, y), tau)
    expected = case.loss(logits, case.weights(x, y, logits))
    assert case.build(module, blockwise=True)(z1, z2).item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize(("temperature", "detach"), [("constant", True), ("shifted", True), ("shifted", False)])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_gradient_is_numeric_of_the_loop_with_detached_parts_held_fixed(objective, temperature, detach):
    case, (module, tau) = OBJECTIVES[objective], TEMPERATURES[temperature]
    views = draw(objective, 5, 2)
    x, y = (view.tolist() for view in views)
    taus = spec.apply(tau, case.rows(x, y))
    weights = case.weights(x, y, logits_of(case.rows(x, y), tau))

    def loss_of(z):
        rows = case.rows(z[:5], z[5:])
        return case.loss(spec.divide(rows, taus if detach else spec.apply(tau, rows)), weights)

    expected = torch.tensor(spec.numeric_gradient(loss_of, x + y), dtype=torch.float64)
    loss = case.build(module, detach_temperature=detach, blockwise=True)
    gradient = torch.cat(torch.autograd.grad(loss(*views), views))
    torch.testing.assert_close(gradient, expected, rtol=0, atol=1e-7 * float(expected.abs().max()))


@PATHS
@pytest.mark.parametrize("builder", BUILDERS)
def test_blockwise_is_plain(builder, temperature, detach):
    for n, dim in SIZES:
        compare_forms(builder, temperature, detach, draw(builder, n, dim), torch.float64)


@pytest.mark.parametrize("temperature", ["adaptive", "scheduled"])
def test_blockwise_is_plain_with_a_temperature_that_has_state(temperature):
    for builder in OBJECTIVES:
        compare_forms(builder, temperature, True, draw(builder, 9, 6), torch.float64)


@pytest.mark.parametrize(
    ("builder", "block"), [*((builder, 32) for builder in BUILDERS), ("InfoNCE", 500), ("NT-Xent", 500)]
)
def test_blockwise_is_plain_in_fp32(builder, block, monkeypatch):
    monkeypatch.setattr(blockwise, "CPU_BLOCK", block)
    compare_forms(builder, "learnable", False, draw(builder, 70, 24, torch.float32), torch.float32)


@pytest.mark.parametrize("builder", BUILDERS)
def test_results_do_not_depend_on_the_block(builder, monkeypatch):
    """One block of all rows, one for each row, and sizes between, also across the sizes of a GPU's blocks."""
    views, found = draw(builder, 9, 6), []
    for block in (1, 2, 5, 18, *blockwise.CUDA_BLOCKS):
        monkeypatch.setattr(blockwise, "CPU_BLOCK", block)
        found.append(value_and_gradients(BUILDERS[builder](make_temperature("shifted"), blockwise=True), views, DOUBLE))
    for others in found[1:]:
        assert_equal(zip(others, found[0], strict=True), DOUBLE)


@pytest.mark.parametrize(
    ("gib", "itemsize", "expected"),
    [(140, 4, 8_192), (80, 4, 8_192), (80, 8, 4_096), (24, 4, 4_096), (8, 4, 2_048), (2, 4, 2_048), (288, 4, 16_384)],
)
def test_blocks_of_a_gpu_follow_its_memory(gib, itemsize, expected, monkeypatch):
    properties = SimpleNamespace(total_memory=gib * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert blockwise.block_size(torch.device("cuda", 0), itemsize) == expected
    if gib >= 8:
        assert blockwise.COPIES * itemsize * expected**2 <= gib * 2**30 / 16
    assert blockwise.block_size(torch.device("cpu")) == BLOCK
    assert blockwise.block_size(torch.device("xpu")) == blockwise.DEVICE_BLOCK == 4096


@pytest.mark.parametrize(("temperature", "detach"), [("constant", True), ("shifted", True), ("shifted", False)])
@pytest.mark.parametrize("builder", ["InfoNCE", "NT-Xent", "duplicates, NT-Xent"])
def test_the_copies_of_a_block_are_as_many_as_stated(builder, temperature, detach, monkeypatch):
    """Most bytes of block-sized tensors at a time, by the sizes and the lives of all results of torch."""
    monkeypatch.setattr(blockwise, "CPU_BLOCK", 64)
    views = draw(builder, 128, 2, torch.float32)
    loss = BUILDERS[builder](make_temperature(temperature), detach_temperature=detach, blockwise=True)
    with LiveBlocks(64 * 64) as live:
        loss(*views).backward()
    assert 3 <= live.most <= blockwise.COPIES, live.most


@pytest.mark.parametrize("builder", [*OBJECTIVES, "hard negatives", "duplicates, NT-Xent"])
def test_low_temperatures_neither_overflow_nor_underflow(builder):
    views = draw(builder, 11, 3, torch.float32)
    double = [view.detach().double().requires_grad_() for view in views]
    for tau in (0.002, 0.01):  # logits of 500 and 100, beyond fp32's exponent
        value, *gradients = value_and_gradients(BUILDERS[builder](tau, blockwise=True), views, torch.float32)
        expected, *of_double = value_and_gradients(BUILDERS[builder](tau, blockwise=False), double, torch.float64)
        assert value.item() == pytest.approx(expected.item(), rel=1e-4)
        for gradient, right in zip(gradients, of_double, strict=True):
            assert float((gradient - right).norm() / right.norm()) < 1e-3  # fp32's share of such logits


@pytest.mark.parametrize(("temperature", "detach"), [("shifted", True), ("learnable", False)])
@pytest.mark.parametrize("builder", BUILDERS)
def test_ranks_together_are_one_plain_process(builder, temperature, detach):
    world_size = 3
    views = draw(builder, world_size * 5, 4)
    single = BUILDERS[builder](make_temperature(temperature), detach_temperature=detach, blockwise=False)
    value, *gradients = value_and_gradients(single, views, torch.float64)
    losses = losses_of_ranks(
        BUILDERS[builder], make_temperature(temperature), views, world_size, detach_temperature=detach, blockwise=True
    )
    average = torch.stack(losses).mean()
    found = torch.autograd.grad(average, views)
    assert_equal([(average, value), *zip(found, gradients, strict=False)], torch.float64)


@pytest.mark.parametrize("kind", [torch.nn.Identity, torch.detach])
def test_candidates_without_gradient_are_skipped(kind):
    units = [unit_vectors(view) for view in draw("InfoNCE", 9, 6)]
    results = []
    for form in (plain_rows, blockwise.blockwise_rows):
        anchors, candidates = (unit.detach().requires_grad_() for unit in units)
        fixed = candidates.detach() if kind is torch.detach else candidates
        rows = form(first_view_pairs(anchors, fixed, LocalGather()), TEMPERATURES["cosine"][0])
        (rows.positive.square().sum() + rows.sums.sum()).backward()
        results.append((anchors.grad, candidates.grad))
    assert_equal(zip(*reversed(results), strict=True), torch.float64)
    assert (results[1][1] is None) == (kind is torch.detach)


# ---- what may change between forward and backward -------------------------------------------------------------------


@FLAGS
@pytest.mark.parametrize("both_views", [False, True])
def test_backward_uses_the_mean_similarity_of_the_forward(both_views, detach):
    views, others = draw("MACL", 9, 6), draw("MACL", 13, 3)
    gradients = []
    for form in (False, True):
        loss = MACLLoss(0.1, 0.8, 0.6, both_views=both_views, detach_temperature=detach, blockwise=form)
        value = loss(*views)
        before = float(loss.temperature.mean_positive)
        loss(*others)
        assert float(loss.temperature.mean_positive) != before
        gradients.append(torch.autograd.grad(value, views))
    assert_equal(zip(*reversed(gradients), strict=True), torch.float64)


def test_backward_uses_the_schedule_of_the_forward():
    views = draw("NT-Xent", 9, 6)
    gradients = []
    for form in (False, True):
        temperature = ScheduledTemperature()
        value = NTXentLoss(temperature, blockwise=form)(*views)
        temperature.advance(150, 0.75)
        gradients.append(torch.autograd.grad(value, views))
    assert_equal(zip(*reversed(gradients), strict=True), torch.float64)


def test_backward_uses_the_parameters_of_the_forward():
    views = draw("NT-Xent", 9, 6)
    temperature = LearnableTemperature()
    expected = torch.autograd.grad(NTXentLoss(temperature, blockwise=False)(*views), views)
    units = [unit_vectors(view) for view in views]
    negatives = blockwise.blockwise_rows(both_view_pairs(*units, LocalGather()), temperature).sums
    first = torch.autograd.grad(negatives.sum(), views, retain_graph=True)
    with torch.no_grad():
        temperature.base.mul_(2)
    assert all(torch.equal(*pair) for pair in zip(torch.autograd.grad(negatives.sum(), views), first, strict=True))
    changed = torch.autograd.grad(NTXentLoss(temperature, blockwise=True)(*views), views)
    assert not torch.allclose(changed[0], expected[0])  # a later forward sees the new ones


def test_backward_can_run_twice():
    views = draw("NT-Xent", 9, 6)
    loss = NTXentLoss(LearnableTemperature(), blockwise=True)
    value = loss(*views)
    inputs = [*views, loss.temperature.base, loss.temperature.slope]
    first, second = (torch.autograd.grad(value, inputs, retain_graph=True) for _ in range(2))
    assert all(torch.equal(*pair) for pair in zip(first, second, strict=True))


@FLAGS
def test_autocast_does_not_reach_the_backward(detach):
    views = draw("NT-Xent", 9, 6, torch.float32)
    loss = NTXentLoss(CosineTemperature(0.1, 0.2), detach_temperature=detach, blockwise=True)
    expected = torch.autograd.grad(loss(*views), views)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        gradients = torch.autograd.grad(loss(*views), views)
    assert all(torch.equal(*pair) for pair in zip(gradients, expected, strict=True))


def test_second_derivatives_are_refused_with_the_way_out():
    views = draw("InfoNCE", 5, 3)
    with pytest.raises(RuntimeError, match="blockwise=False"):
        torch.autograd.grad(InfoNCELoss(0.1, blockwise=True)(*views), views, create_graph=True)


def test_the_plain_form_has_second_derivatives():
    assert torch.autograd.gradgradcheck(unit_vectors, draw("InfoNCE", 3, 4)[:1])
    views = draw("InfoNCE", 3, 2)
    assert torch.autograd.gradgradcheck(NTXentLoss(CosineTemperature(0.1, 0.2), False, blockwise=False), views)


# ---- degenerate embeddings, size, memory ----------------------------------------------------------------------------


def degenerate(case, views):
    views = [view.detach() for view in views]
    if case == "zero":
        views = [torch.zeros_like(view) for view in views]
    elif case == "identical":
        views = [views[0][:1].expand(9, 6).clone() for _ in views]
    elif case == "one zero row":
        views[0][2] = 0
    else:
        views[1] = -views[0]
    return [view.requires_grad_() for view in views]


@pytest.mark.parametrize("builder", BUILDERS)
def test_degenerate_embeddings(builder):
    for case in ("zero", "identical", "one zero row", "opposite"):
        views = degenerate(case, draw(builder, 9, 6))
        plain, other = (
            value_and_gradients(BUILDERS[builder](make_temperature("shifted"), blockwise=form), views, torch.float64)
            for form in (False, True)
        )
        for a, b in zip(other, plain, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-14, msg=lambda said, case=case: f"{case}: {said}")


def forms_used(monkeypatch, loss, views):
    """Which of the two forms a loss goes through."""
    used = []
    for name in ("plain_rows", "blockwise_rows"):
        form = getattr(objectives, name)
        monkeypatch.setattr(objectives, name, lambda *a, name=name, form=form: used.append(name) or form(*a))
    loss(*views)
    return used


@pytest.mark.parametrize(("builder", "entries"), [("InfoNCE", 25), ("NT-Xent", 100), ("hard negatives", 75)])
@pytest.mark.parametrize("asked", [None, False, True])
def test_the_form_is_chosen_by_the_number_of_entries(builder, entries, asked, monkeypatch):
    views = draw(builder, 5, 3)
    for limit, automatic in ((entries, "plain_rows"), (entries - 1, "blockwise_rows")):
        with monkeypatch.context() as patch:
            limits = {"SYMMETRIC_ENTRIES": limit, "BLOCKWISE_ENTRIES": 10**9}
            if builder != "NT-Xent":
                limits = {"SYMMETRIC_ENTRIES": 10**9, "BLOCKWISE_ENTRIES": limit}
            for name, value in limits.items():
                patch.setattr(blockwise, name, value)
            expected = automatic if asked is None else "blockwise_rows" if asked else "plain_rows"
            assert forms_used(patch, BUILDERS[builder](0.1, blockwise=asked), views) == [expected]


def test_gathered_columns_count_as_entries():
    meeting = type("Meeting", (), {"rows": [None], "barrier": type("B", (), {"wait": lambda self: None})()})()
    z1, z2 = draw("InfoNCE", 5, 3)
    assert first_view_pairs(z1, z2, ThreadGather(0, 1, meeting)).entries == 25
    assert Pairs(z1, torch.cat([z2, z2, z2]), torch.arange(5)).entries == 75


@pytest.mark.parametrize("build", [macl, macl_on_both_views])
def test_a_copied_loss_keeps_its_form(build):
    assert copy.deepcopy(build(0.1, blockwise=True)).blockwise is True


def peaks():
    """MiB that a step needs at most: blockwise, then plain."""
    found = []
    for form in (True, False):
        for build, size in ((InfoNCELoss, 4096), (NTXentLoss, 2048)):
            loss = build(CosineTemperature(0.1, 0.2), blockwise=form)
            step(loss, 600)  # libraries' own buffers
            Path("/proc/self/clear_refs").write_text("5")
            before = status("VmRSS")
            step(loss, size)
            found.append((status("VmHWM") - before) / 1024)
    return found


def step(loss, size):
    loss(*(torch.randn(size, 16).requires_grad_() for _ in range(2))).backward()


def status(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if name in line)


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory from /proc")
def test_memory_does_not_grow_with_the_square():
    """In a process of its own; a matrix of 4096 x 4096 in fp32 is 64 MiB, the vectors are less than 1 MiB."""
    info_nce, nt_xent, *plain = in_new_process(peaks)
    assert min(plain) > 3 * 64
    assert max(info_nce, nt_xent) < 32
