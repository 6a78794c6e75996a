"""The exact gradient of a large batch on a small device: gradient caching (Gao et al., RepL4NLP 2021).

The batch is embedded in chunks without a graph. The loss of all embeddings gives the gradient of each embedding. Each
chunk is then embedded again, with the same random numbers, to propagate that gradient to the weights. The memory is
that of one chunk and of all embeddings; the cost is a second forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dystress_text.errors import ParameterError
from dystress_text.training.batches import Batch
from dystress_text.training.task import Embeddings, concatenated


def check_no_batch_statistics(model: nn.Module) -> None:
    """Refuse a network in which a sample's embedding depends on its chunk."""
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            raise ParameterError(
                "grad_cache_chunk",
                f"{name} ({type(module).__name__}) uses the statistics of its batch, which a chunk does not have; "
                "leave the option out",
            )


def backward_in_chunks(
    embed: Callable[[nn.Module, Batch], Embeddings],
    loss_of: Callable[[Embeddings], Tensor],
    model: nn.Module,
    chunks: Sequence[Batch],
    accelerator: Accelerator,
) -> Tensor:
    """Add the gradient of the whole batch's loss to the weights, and return the loss.

    Processes exchange gradients once, in the backward pass of the last chunk. Call it within
    ``accelerator.accumulate(model)``.
    """
    device = accelerator.device
    cache, states = [], []
    with torch.no_grad():
        for batch in chunks:
            states.append(random_states(device))
            cache.append(embed(model, batch))
    whole = [tensor.requires_grad_(tensor.is_floating_point()) for tensor in concatenated(cache)]
    loss = loss_of(cache[0].with_tensors(whole))
    accelerator.backward(loss)  # to the embeddings, scaled for accumulation and fp16
    lengths = list(zip(*([len(tensor) for tensor in chunk.tensors()] for chunk in cache), strict=True))
    gradients = [  # for each tensor with a gradient, one per chunk
        torch.split(tensor.grad, list(of_chunks))
        for tensor, of_chunks in zip(whole, lengths, strict=True)
        if tensor.grad is not None
    ]
    for i, (batch, *gradient) in enumerate(zip(chunks, *gradients, strict=True)):
        restore_random_states(states[i], device)
        with nullcontext() if i + 1 == len(chunks) else accelerator.no_sync(model):
            again = [x for x in embed(model, batch).tensors() if x.requires_grad]
            torch.autograd.backward(again, gradient)
    return loss.detach()


def random_states(device: torch.device) -> list[Tensor]:
    """The state of the CPU's generator and, for another device, that of its own."""
    states = [torch.get_rng_state()]
    if device.type != "cpu":
        states.append(torch.get_device_module(device).get_rng_state(device))
    return states


def restore_random_states(states: Sequence[Tensor], device: torch.device) -> None:
    """Set what :func:`random_states` gave."""
    torch.set_rng_state(states[0])
    if device.type != "cpu":
        torch.get_device_module(device).set_rng_state(states[1], device)
