"""The exact gradient of a large batch on a small device: gradient caching (Gao et al., RepL4NLP 2021).

The batch is embedded in chunks without a graph. The loss of all embeddings gives the gradient of each embedding. Each
chunk is then embedded again, with the same random numbers, to propagate that gradient to the weights. The memory is
that of one chunk and of all embeddings; the cost is a second forward pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dystress_text.errors import UserError
from dystress_text.training.batches import Batch
from dystress_text.training.embeddings import Embeddings, concatenated
from dystress_text.training.random_states import random_states, restore_random_states


class Embedder(Protocol):
    """The part of a task that gradient caching needs."""

    def embed(self, model: nn.Module, batch: Batch) -> Any: ...

    def loss(self, embeddings: Any) -> Tensor: ...


def check_no_batch_statistics(model: nn.Module) -> None:
    """Check that a sample's embedding does not depend on its chunk.

    Raises:
        UserError: the network has batch normalisation.
    """
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            raise UserError(
                f"--grad_cache_chunk: {name} ({type(module).__name__}) uses the statistics of its batch, which a chunk "
                "does not have; leave the option out"
            )


def backward_in_chunks(
    task: Embedder, model: nn.Module, chunks: Sequence[Batch], accelerator: Accelerator
) -> tuple[Tensor, Embeddings]:
    """Add the gradient of the whole batch's loss to the weights; returns the loss and all embeddings.

    Processes exchange gradients once, in the backward pass of the last chunk. Call it within
    ``accelerator.accumulate(model)``.
    """
    cache, states = _embed_without_graph(task, model, chunks, accelerator.device)
    whole = [tensor.requires_grad_(tensor.is_floating_point()) for tensor in concatenated(cache)]
    together = cache[0].with_tensors(whole)
    loss = task.loss(together)
    accelerator.backward(loss)  # to the embeddings, scaled for accumulation and fp16
    rows = zip(*([len(tensor) for tensor in chunk.tensors()] for chunk in cache), strict=True)
    gradients = [  # for each tensor with a gradient, one per chunk
        torch.split(tensor.grad, list(lengths))
        for tensor, lengths in zip(whole, rows, strict=True)
        if tensor.grad is not None
    ]
    for i, (batch, *gradient) in enumerate(zip(chunks, *gradients, strict=True)):
        restore_random_states(states[i], accelerator.device)
        last = i + 1 == len(chunks)
        with nullcontext() if last else accelerator.no_sync(model):
            embeddings = [
                x for x in task.embed(model, batch).tensors() if x.requires_grad
            ]  # not those of frozen models
            torch.autograd.backward(embeddings, gradient)
    return loss.detach(), together


@torch.no_grad()
def _embed_without_graph(
    task: Embedder, model: nn.Module, chunks: Sequence[Batch], device: torch.device
) -> tuple[list[Embeddings], list[list[Tensor]]]:
    """The embeddings of each chunk, and the random state before each chunk."""
    cache, states = [], []
    for batch in chunks:
        states.append(random_states(device))
        cache.append(task.embed(model, batch))
    return cache, states
