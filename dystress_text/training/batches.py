"""Order, load and embed batches; compute their gradient chunk by chunk."""

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
from accelerate.utils import send_to_device
from numpy.typing import NDArray
from torch import Tensor, nn

from dystress_text.errors import ParameterError
from dystress_text.training.settings import TrainingSettings

Batch = dict[str, Any]  # tensors, and numbers that stay on the CPU
T = TypeVar("T")

AHEAD = 2  # batches that are loaded in advance


@dataclass(frozen=True)
class BatchOrder:
    """The order of samples: a permutation for each epoch, drawn with the seed and the epoch.

    The global batches do not depend on the number of processes, each of which takes its share. An
    incomplete last batch is dropped.
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
        """Return the number of batches in an epoch."""
        return self.size // self.batch_size

    def epoch(self, epoch: int) -> NDArray[np.int64]:
        """Return this process's sample indices in an epoch, (batches, batch_size / world_size)."""
        order = np.random.default_rng([self.seed, epoch]).permutation(self.size)
        by_rank = order[: len(self) * self.batch_size].reshape(len(self), self.world_size, -1)
        return np.ascontiguousarray(by_rank[:, self.rank])


def count_steps(batches: int, settings: TrainingSettings) -> tuple[int, int]:
    """Return the number of optimiser steps in an epoch, and in the run."""
    accumulation = settings.gradient_accumulation_steps
    per_epoch = batches // accumulation
    if per_epoch == 0:
        reason = f"must be at most {batches}, the batches of an epoch; got {accumulation}"
        raise ParameterError("gradient_accumulation_steps", reason)
    most = settings.max_steps
    if settings.num_train_epochs is None and most > 0:
        return per_epoch, most
    steps = math.ceil(per_epoch * (settings.num_train_epochs or 1))
    return per_epoch, min(steps, most) if most > 0 else steps


def prefetch(
    load: Callable[[T], Batch], wanted: Iterable[T], device: torch.device
) -> Iterator[Batch]:
    """Yield the batches ``wanted`` in order, on ``device``. A thread loads the next ones meanwhile.

    Copies to a CUDA device are asynchronous, from pinned memory.
    """

    def load_pinned(item: T) -> Batch:
        batch = load(item)
        return _pinned(batch) if device.type == "cuda" else batch

    with ThreadPoolExecutor(1, thread_name_prefix="load") as pool:
        waiting: deque[Future[Batch]] = deque()
        for item in wanted:
            waiting.append(pool.submit(load_pinned, item))
            if len(waiting) > AHEAD:
                yield to_device(waiting.popleft().result(), device)
        while waiting:
            yield to_device(waiting.popleft().result(), device)


def _pinned(batch: Batch) -> Batch:
    return {name: x.pin_memory() if isinstance(x, Tensor) else x for name, x in batch.items()}


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return a batch with its tensors on a device; copies to CUDA are asynchronous."""
    moved: Batch = send_to_device(batch, device, non_blocking=True)
    return moved


class Embeddings(NamedTuple):
    """The views of a batch, (n, dim) each, and other inputs of the loss.

    Another input has a row for each sample, or one entry for each chunk of the batch.
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
    """Add the gradient of the whole batch's loss to the weights; return the loss.

    This is gradient caching (Gao et al., RepL4NLP 2021). Embed the chunks without a graph, and
    compute the gradient of the loss with respect to all embeddings. Then embed each chunk again,
    with the same random numbers, to propagate its gradient to the weights. Processes exchange
    gradients once, in the backward pass of the last chunk.

    Call it within ``accelerator.accumulate(model)``.
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
    # for each tensor, its chunks
    pieces = list(zip(*((*chunk.views, *chunk.others) for chunk in cache), strict=True))
    whole = [torch.cat(of_chunks) for of_chunks in pieces]
    whole = [tensor.requires_grad_(tensor.is_floating_point()) for tensor in whole]
    count = len(cache[0].views)
    loss = loss_of(Embeddings(tuple(whole[:count]), tuple(whole[count:])))
    accelerator.backward(loss)  # to the embeddings, scaled for accumulation and fp16
    gradients = [  # for each tensor with a gradient, its chunks
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
