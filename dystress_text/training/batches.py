"""A batch: its samples, their loading while the device works, its embeddings, and their gradient
chunk by chunk.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from accelerate import Accelerator
from numpy.typing import NDArray
from torch import Tensor, nn

from dystress_text.errors import ParameterError
from dystress_text.training.settings import TrainingSettings

Batch = dict[str, Any]  # tensors, and numbers that stay on the CPU
T = TypeVar("T")

AHEAD = 2  # batches that are loaded in advance


@dataclass(frozen=True)
class BatchOrder:
    """The samples of each batch: a new permutation each epoch, which depends only on the seed and
    the epoch.

    The global batches are the same for any number of processes, which take shares in the order of
    the ranks. Samples that do not fill the last batch of an epoch are left out of that epoch.
    """

    size: int
    batch_size: int
    seed: int
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if self.size < self.batch_size:
            reason = f"{self.batch_size} exceeds the {self.size} training samples"
            raise ParameterError("train_batch_size", reason)

    def __len__(self) -> int:
        """Number of batches per epoch."""
        return self.size // self.batch_size

    def epoch(self, epoch: int) -> NDArray[np.int64]:
        """Sample indices of this process, (batches, batch_size / world_size)."""
        order = np.random.default_rng([self.seed, epoch]).permutation(self.size)
        by_rank = order[: len(self) * self.batch_size].reshape(len(self), self.world_size, -1)
        return np.ascontiguousarray(by_rank[:, self.rank])


def count_steps(batches: int, settings: TrainingSettings) -> tuple[int, int]:
    """Optimiser steps per epoch, and of the whole run."""
    accumulation = settings.gradient_accumulation_steps
    per_epoch = batches // accumulation
    if per_epoch == 0:
        reason = f"{accumulation} batches per step, but an epoch has {batches}"
        raise ParameterError("gradient_accumulation_steps", reason)
    most = settings.max_steps
    if settings.num_train_epochs is None and most > 0:
        return per_epoch, most
    steps = math.ceil(per_epoch * (settings.num_train_epochs or 1))
    return per_epoch, min(steps, most) if most > 0 else steps


def prefetch(
    load: Callable[[T], Batch], wanted: Iterable[T], device: torch.device
) -> Iterator[Batch]:
    """Batches on ``device``, in order; a thread loads each on the CPU while earlier ones are in
    use.

    To a CUDA device it is copied from pinned memory without waiting for the device.
    """

    def load_pinned(item: T) -> Batch:
        batch = load(item)
        return _moved(batch, Tensor.pin_memory) if device.type == "cuda" else batch

    with ThreadPoolExecutor(1, thread_name_prefix="load") as pool:
        waiting: deque[Future[Batch]] = deque()
        for item in wanted:
            waiting.append(pool.submit(load_pinned, item))
            if len(waiting) > AHEAD:
                yield to_device(waiting.popleft().result(), device)
        while waiting:
            yield to_device(waiting.popleft().result(), device)


def to_device(batch: Batch, device: torch.device) -> Batch:
    """The batch with its tensors on a device; to CUDA without waiting."""
    return _moved(batch, lambda tensor: tensor.to(device, non_blocking=True))


def _moved(batch: Batch, move: Callable[[Tensor], Tensor]) -> Batch:
    return {name: move(x) if isinstance(x, Tensor) else x for name, x in batch.items()}


class Embeddings(NamedTuple):
    """What a task makes of a batch: its views, (n, dim) each, and what else the loss takes, with a
    row for each sample or an entry for each chunk.
    """

    views: tuple[Tensor, ...]
    others: tuple[Tensor, ...] = ()


def backward_in_chunks(
    embed: Callable[[nn.Module, Batch], Embeddings],
    loss_of: Callable[[Embeddings], Tensor],
    model: nn.Module,
    chunks: Sequence[Batch],
    accelerator: Accelerator,
) -> Tensor:
    """Add the gradient of the whole batch's loss to the weights, and return the loss.

    Gradient caching (Gao et al., RepL4NLP 2021): the chunks are embedded without a graph, the loss
    of all embeddings gives the gradient of each, and each chunk is embedded again, with the same
    random numbers, to propagate it to the weights. Processes exchange gradients once, in the
    backward pass of the last chunk. Call it within ``accelerator.accumulate(model)``.
    """
    generators: list[Any] = [torch]
    if accelerator.device.type != "cpu":
        generators.append(torch.get_device_module(accelerator.device))
    cache = []
    states = []
    with torch.no_grad():
        for batch in chunks:
            states.append([generator.get_rng_state() for generator in generators])
            cache.append(embed(model, batch))
    # of each tensor, by chunk
    pieces = list(zip(*((*chunk.views, *chunk.others) for chunk in cache), strict=True))
    whole = [torch.cat(of_chunks) for of_chunks in pieces]
    whole = [tensor.requires_grad_(tensor.is_floating_point()) for tensor in whole]
    count = len(cache[0].views)
    loss = loss_of(Embeddings(tuple(whole[:count]), tuple(whole[count:])))
    accelerator.backward(loss)  # to the embeddings, scaled for accumulation and fp16
    gradients = [  # for each tensor with a gradient, one per chunk
        torch.split(tensor.grad, [len(piece) for piece in of_chunks])
        for tensor, of_chunks in zip(whole, pieces, strict=True)
        if tensor.grad is not None
    ]
    for i, (batch, *gradient) in enumerate(zip(chunks, *gradients, strict=True)):
        for generator, state in zip(generators, states[i], strict=True):
            generator.set_rng_state(state)
        with nullcontext() if i + 1 == len(chunks) else accelerator.no_sync(model):
            views, others = embed(model, batch)
            torch.autograd.backward([x for x in (*views, *others) if x.requires_grad], gradient)
    return loss.detach()
