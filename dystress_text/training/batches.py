"""The samples of each batch, and their loading while the device works."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dystress_text.errors import ParameterError

Batch = dict[str, Tensor]
T = TypeVar("T")

AHEAD = 2  # batches that are loaded in advance


@dataclass(frozen=True)
class BatchOrder:
    """The samples of each batch: a new permutation each epoch, which depends only on the seed and the epoch.

    A global batch is split into ``world_size`` shares in the order of the ranks, so the global batches are the same for
    any number of processes. Samples that do not fill the last batch of an epoch are left out of that epoch.
    """

    size: int
    batch_size: int
    seed: int
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.batch_size % self.world_size:
            raise ValueError(f"a batch of {self.batch_size} does not divide among {self.world_size} processes")
        if self.size < self.batch_size:
            raise ParameterError("train_batch_size", f"{self.batch_size} exceeds the {self.size} training samples")

    def __len__(self) -> int:
        """Number of batches per epoch."""
        return self.size // self.batch_size

    def epoch(self, epoch: int) -> NDArray[np.int64]:
        """Sample indices of this process, (batches, batch_size / world_size)."""
        order = np.random.default_rng([self.seed, epoch]).permutation(self.size)
        by_rank = order[: len(self) * self.batch_size].reshape(len(self), self.world_size, -1)
        return np.ascontiguousarray(by_rank[:, self.rank])


def load_ahead(load: Callable[[T], Batch], wanted: Iterable[T], device: torch.device) -> Iterator[Batch]:
    """Batches on ``device``, in order; a thread loads them while earlier ones are in use.

    For a CUDA device they are copied from pinned memory without waiting for the device.

    Args:
        load: makes a batch on the CPU from one of ``wanted``, such as sample indices; called from the thread.
        wanted: an item for each batch.
        device: where the batches go.
    """

    def load_pinned(item: T) -> Batch:
        batch = load(item)
        return {name: x.pin_memory() for name, x in batch.items()} if device.type == "cuda" else batch

    with ThreadPoolExecutor(1, thread_name_prefix="load") as pool:
        waiting: deque[Future[Batch]] = deque()
        for item in wanted:
            waiting.append(pool.submit(load_pinned, item))
            if len(waiting) > AHEAD:
                yield _to(waiting.popleft().result(), device)
        while waiting:
            yield _to(waiting.popleft().result(), device)


def _to(batch: Batch, device: torch.device) -> Batch:
    return {name: tensor.to(device, non_blocking=True) for name, tensor in batch.items()}
