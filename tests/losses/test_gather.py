"""Gathered rows and their gradients."""

import torch
import torch.distributed as dist
from processes import in_threads

from dystress_text.losses import ProcessGather


def test_rows_are_ordered_by_rank_and_gradients_summed(monkeypatch):
    """Threads simulate the processes."""
    world_size = 3
    meetings = {}

    def all_gather(parts, rows, group):
        assert all(tensor.is_contiguous() for tensor in [*parts, rows])  # as NCCL demands
        for part, of_rank in zip(parts, meetings[group](rows).chunk(world_size), strict=True):
            part.copy_(of_rank)

    def all_reduce(total, group):
        assert total.is_contiguous()
        total.copy_(torch.stack(meetings[group](total.clone()).chunk(world_size)).sum(0))

    monkeypatch.setattr(dist, "all_gather", all_gather)
    monkeypatch.setattr(dist, "all_reduce", all_reduce)

    def work(meet):
        meetings[meet.rank] = meet  # the group says who is calling
        rows = torch.full((3, 2), float(meet.rank + 1)).T.requires_grad_()  # not contiguous
        everybody = ProcessGather(meet.rank, world_size, meet.rank)(rows)
        weights = torch.arange(6.0).unsqueeze(1) * (meet.rank + 1)
        return everybody.detach(), torch.autograd.grad((everybody * weights).sum(), rows)[0]

    for rank, (everybody, gradient) in enumerate(in_threads(world_size, work)):
        expected = torch.tensor([1.0, 1.0, 2.0, 2.0, 3.0, 3.0])
        assert torch.equal(everybody, expected.unsqueeze(1).expand(6, 3))
        # process r weighs row k by k (r + 1), which sums to 6 k
        assert gradient.tolist() == [[6.0 * (2 * rank + k)] * 3 for k in range(2)]
