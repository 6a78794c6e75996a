"""Several processes must equal one process with the whole batch, in the loss and in every gradient."""

import gc

import pytest
import torch
import torch.distributed as dist
from core_cases import OBJECTIVES, TEMPERATURES, VARIANTS, macl, macl_on_both_views
from gather_cases import losses_of_ranks, own
from processes import spawn
from rule_cases import RULES
from torch.nn.parallel import DistributedDataParallel

from dystress_text.core import (
    AlignmentAdaptiveTemperature,
    DCLWLoss,
    LocalGather,
    NTXentLoss,
    ProcessGather,
)

TAU = TEMPERATURES["cosine"][0]


LOSSES = {name: case.build for name, case in OBJECTIVES.items()} | {k: build for k, (build, _) in VARIANTS.items()}
VIEWS = {name: VARIANTS[name][1] if name in VARIANTS else 2 for name in LOSSES}


def adaptive():
    return AlignmentAdaptiveTemperature(0.1, 0.8, 0.6)


def draw(views, n, dim):
    generator = torch.Generator().manual_seed(7)
    base = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    return [base + 0.5 * torch.randn(n, dim, generator=generator, dtype=torch.float64) for _ in range(views)]


# ---- simulated processes: threads that meet at every gather, so that autograd sees all of them at once ---------------


@pytest.mark.parametrize(
    ("world_size", "rows", "make_tau", "detach"),
    [(3, 2, lambda: TAU, False), (2, 3, adaptive, True), (4, 1, lambda: TAU, True)],
    ids=["in the graph", "adaptive", "one row each"],
)
@pytest.mark.parametrize("name", LOSSES)
def test_mean_over_ranks_is_the_single_process(name, world_size, rows, make_tau, detach):
    views = [z.requires_grad_() for z in draw(VIEWS[name], world_size * rows, dim=4)]
    single = LOSSES[name](make_tau(), detach_temperature=detach)(*views)
    expected = torch.autograd.grad(single, views)
    losses = losses_of_ranks(LOSSES[name], make_tau(), views, world_size, detach_temperature=detach)
    assert all(loss.shape == () for loss in losses)
    assert len({loss.item() for loss in losses}) == world_size  # each has its own rows
    average = torch.stack(losses).mean()
    torch.testing.assert_close(average, single, rtol=1e-12, atol=0)
    torch.testing.assert_close(torch.autograd.grad(average, views), expected, rtol=1e-10, atol=1e-14)


def test_batch_statistics_are_global():
    z1, z2 = draw(2, 4, dim=3)
    z2[2:] += 2 * z1[2:].flip(0)  # the second process has other similarities than the first
    for build in (DCLWLoss, macl, macl_on_both_views):
        temperature = adaptive() if build is not DCLWLoss else TAU
        single = build(temperature)(z1, z2)
        ranks = losses_of_ranks(build, temperature, (z1, z2), 2)
        torch.testing.assert_close(torch.stack(ranks).mean(), single, rtol=1e-12, atol=0)


def test_local_gather_is_one_process():
    rows = torch.randn(3, 2)
    gather = LocalGather()
    assert (gather.rank, gather.world_size) == (0, 1)
    assert torch.equal(gather(rows), rows)


@pytest.mark.parametrize(("rank", "world_size"), [(-1, 2), (2, 2), (0, 0)])
def test_a_rank_outside_the_group_is_refused(rank, world_size):
    with pytest.raises(ValueError, match="rank"):
        ProcessGather(rank, world_size)


def test_what_is_sent_and_received_is_contiguous(monkeypatch):  # as NCCL demands; gloo bears any strides
    def all_gather(parts, rows, group):
        assert all(tensor.is_contiguous() for tensor in [*parts, rows])
        for part in parts:
            part.copy_(rows)

    def all_reduce(total, group):
        assert total.is_contiguous()
        total *= 2  # the other process has the same gradient

    monkeypatch.setattr(dist, "all_gather", all_gather)
    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    rows, weights = torch.rand(3, 2).T.requires_grad_(), torch.rand(3, 4).T
    everybody = ProcessGather(1, 2)(rows)
    assert torch.equal(everybody, torch.cat([rows, rows]))
    (everybody * weights).sum().backward()
    assert torch.equal(rows.grad, 2 * weights[2:])


def test_one_row_a_process_is_a_batch():
    z1, z2 = torch.eye(2), torch.eye(2)
    assert all(loss.isfinite() for loss in losses_of_ranks(NTXentLoss, TAU, (z1, z2), 2))
    with pytest.raises(ValueError, match="at least 2"):
        NTXentLoss(TAU, gather=LocalGather())(z1[:1], z2[:1])


# ---- real processes -------------------------------------------------------------------------------------------------


def linear_encoder():
    torch.manual_seed(0)
    return torch.nn.Linear(5, 4, dtype=torch.float64)


def encoder_gradient(encoder, loss, views):
    """The loss and its gradient in all parameters, in one vector; one forward pass of all views."""
    encoder.zero_grad()
    value = loss(*encoder(torch.cat(views)).chunk(len(views)))
    value.backward()
    return value.detach(), torch.cat([p.grad.flatten() for p in encoder.parameters()])


def cases():
    for name, build in LOSSES.items():
        for kind, temperature, detach in (("cosine", TAU, False), ("adaptive", adaptive(), True)):
            yield f"{name}, {kind}", build, temperature, detach, draw(VIEWS[name], 6, dim=5)
    for name, (rule, _) in RULES.items():
        yield name, NTXentLoss, rule(), name != "temo", draw(2, 6, dim=5)


def process(folder):
    """One of the real processes: saves its losses and the gradients that DistributedDataParallel leaves it with."""
    dist.init_process_group("gloo")
    save_results(dist.get_rank(), dist.get_world_size(), folder)
    gc.collect()  # DistributedDataParallel must be gone before its group


def save_results(rank, world_size, folder):
    gather, results = ProcessGather(rank, world_size), {}
    rows = torch.full((2, 3), float(rank + 1), dtype=torch.float64, requires_grad=True)
    everybody = gather(rows)
    (everybody * torch.arange(4.0).unsqueeze(1) * (rank + 1)).sum().backward()
    results["rows"], results["rows' gradient"] = everybody.detach(), rows.grad
    encoder = DistributedDataParallel(linear_encoder())
    for name, build, temperature, detach, views in cases():
        loss = build(temperature, detach_temperature=detach, gather=gather)
        results[name] = encoder_gradient(encoder, loss, [own(z, rank, world_size) for z in views])
    torch.save(results, f"{folder}/{rank}")


def test_real_processes_equal_one(tmp_path):
    spawn(2, process, str(tmp_path))
    ranks = [torch.load(tmp_path / str(rank)) for rank in range(2)]
    for rank, results in enumerate(ranks):
        assert results["rows"].tolist() == [[1.0] * 3] * 2 + [[2.0] * 3] * 2
        # process r weighs row k by k (r + 1): the owner gets the sum over both processes, 3 k
        assert results["rows' gradient"].tolist() == [[3.0 * (2 * rank + k)] * 3 for k in range(2)]
    for name, build, temperature, detach, views in cases():
        value, gradient = encoder_gradient(linear_encoder(), build(temperature, detach_temperature=detach), views)
        torch.testing.assert_close((ranks[0][name][0] + ranks[1][name][0]) / 2, value, rtol=1e-12, atol=0)
        for results in ranks:
            assert float((results[name][1] - gradient).norm() / gradient.norm()) < 1e-10, name
