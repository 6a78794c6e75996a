"""Shared by several test modules."""

from __future__ import annotations

import copy

from processes import in_threads


def own(rows, rank, world_size):
    return rows.chunk(world_size)[rank]


def losses_of_ranks(build, temperature, views, world_size, **options):
    """The loss of each simulated process, on its own rows of the views."""

    def work(gather):
        loss = build(copy.deepcopy(temperature), gather=gather, **options)
        return loss(*(own(z, gather.rank, world_size) for z in views))

    return in_threads(world_size, work)
