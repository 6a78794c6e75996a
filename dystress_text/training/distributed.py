"""Support for sharded weights (FSDP) and for DeepSpeed, and checks of the launcher's settings."""

from __future__ import annotations

import copy
import os
from dataclasses import replace

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from dystress_text.errors import UserError
from dystress_text.training.settings import EngineSettings


def check_launch(accelerator: Accelerator, settings: EngineSettings) -> None:
    """Check that the trainer supports the launcher's settings.

    Raises:
        UserError: it does not.
    """
    started, kind = int(os.environ.get("WORLD_SIZE", "1")), accelerator.distributed_type
    if accelerator.num_processes == 1 < started:
        raise UserError(
            f"the launcher started {started} processes, but accelerate found no devices to join them on; for CPUs set "
            "the environment variable ACCELERATE_USE_CPU=true"
        )
    if kind == DistributedType.FSDP and not accelerator.is_fsdp2:
        raise UserError("FSDP version 1 is not supported; put fsdp_version: 2 there, as docs/accelerate/fsdp.yaml does")
    if kind == DistributedType.DEEPSPEED and accelerator.state.deepspeed_plugin.zero_stage == 3:
        raise UserError(
            "DeepSpeed's stage 3 is not supported, as no process has the whole model to evaluate; use zero_stage: 2, "
            "or FSDP (docs/accelerate/fsdp.yaml)"
        )
    of_launcher, of_program = accelerator.gradient_accumulation_steps, settings.gradient_accumulation_steps
    if of_launcher != of_program:  # accelerate uses the launcher's number, the loop its own
        raise UserError(
            f"--gradient_accumulation_steps: the launcher (ACCELERATE_GRADIENT_ACCUMULATION_STEPS) says "
            f"{of_launcher}, the program {of_program}; give both the same"
        )


def network_to_train(accelerator: Accelerator, model: nn.Module) -> nn.Module:
    """The network for accelerate to prepare: ``model`` itself, or under FSDP a copy.

    FSDP replaces a network's weights by shards, and all processes must take part in every use of them. The main process
    evaluates and saves alone, so ``model`` stays whole, and :func:`collect_weights` copies the weights into it.
    """
    if not accelerator.is_fsdp2:
        return model
    policy = accelerator.state.fsdp_plugin.mixed_precision_policy
    if policy is not None:  # average gradients in fp32, as without shards; accelerate's policy averages in bf16
        accelerator.state.fsdp_plugin.mixed_precision_policy = replace(policy, reduce_dtype=torch.float32)
    trained = copy.deepcopy(model)
    if not accelerator.is_main_process:
        model.to("cpu")  # not used any more
    return trained


def check_whole(accelerator: Accelerator, option: str) -> None:
    """Check that every process has the whole network, for an option that needs this.

    Raises:
        UserError: the run uses FSDP or DeepSpeed.
    """
    if accelerator.distributed_type in (DistributedType.FSDP, DistributedType.DEEPSPEED):
        raise UserError(f"{option}: not with {accelerator.distributed_type.value}; leave one of them out")


def is_sharded(model: nn.Module) -> bool:
    """Whether a prepared network's layers hold shards; whole weights then exist only during a call of the layer."""
    return isinstance(model, FSDPModule)


@torch.no_grad()
def collect_weights(accelerator: Accelerator, trained: nn.Module, model: nn.Module) -> None:
    """Under FSDP, copy the weights of ``trained`` into the main process's ``model``; all processes call this."""
    if not accelerator.is_fsdp2:
        return
    weights, shards = model.state_dict().values(), trained.state_dict().values()
    for weight, shard in zip(weights, shards, strict=True):  # by order: checkpointing and compiling change the names
        whole = shard.full_tensor() if isinstance(shard, DTensor) else shard
        if accelerator.is_main_process:
            weight.copy_(whole)


def tell_deepspeed(accelerator: Accelerator, rows: int, settings: EngineSettings) -> None:
    """Give DeepSpeed the settings that it would read from a data loader; it steps and clips by itself.

    Args:
        accelerator: of the run.
        rows: samples per batch in each process.
        settings: of the loop.
    """
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        accelerator.state.deepspeed_plugin.deepspeed_config.update(
            train_micro_batch_size_per_gpu=rows,
            gradient_accumulation_steps=settings.gradient_accumulation_steps,
            gradient_clipping=settings.max_grad_norm,
        )
