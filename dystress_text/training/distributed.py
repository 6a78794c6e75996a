"""What several processes need beyond averaged gradients: sharded weights (FSDP) and DeepSpeed's own settings."""

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
    """See that the launcher asks for nothing that the engine cannot do.

    Raises:
        UserError: it does.
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
    said, wanted = accelerator.gradient_accumulation_steps, settings.gradient_accumulation_steps
    if said != wanted:  # accelerate takes the launcher's number, which the loop would not know
        raise UserError(
            f"--gradient_accumulation_steps: the launcher (ACCELERATE_GRADIENT_ACCUMULATION_STEPS) says {said}, the "
            f"program {wanted}; give both the same"
        )


def network_to_train(accelerator: Accelerator, model: nn.Module) -> nn.Module:
    """What to prepare in place of ``model``: itself, or under FSDP a copy.

    FSDP turns a network's weights into shards for good, and every use of them is a call of all processes. The main
    process evaluates and saves alone, so ``model`` stays whole, and :func:`collect_weights` brings it up to date.
    """
    if not accelerator.is_fsdp2:
        return model
    policy = accelerator.state.fsdp_plugin.mixed_precision_policy
    if policy is not None:  # gradients are averaged in fp32, as without shards; accelerate's policy has bf16
        accelerator.state.fsdp_plugin.mixed_precision_policy = replace(policy, reduce_dtype=torch.float32)
    trained = copy.deepcopy(model)
    if not accelerator.is_main_process:
        model.to("cpu")  # used no more
    return trained


def check_whole(accelerator: Accelerator, option: str) -> None:
    """See that the network is whole on every process, as an option needs it.

    Raises:
        UserError: FSDP or DeepSpeed.
    """
    if accelerator.distributed_type in (DistributedType.FSDP, DistributedType.DEEPSPEED):
        raise UserError(f"{option}: not with {accelerator.distributed_type.value}; leave one of them out")


def is_sharded(model: nn.Module) -> bool:
    """Whether a prepared network's layers hold shards: their weights exist only inside the layers' own calls."""
    return isinstance(model, FSDPModule)


@torch.no_grad()
def collect_weights(accelerator: Accelerator, trained: nn.Module, model: nn.Module) -> None:
    """Under FSDP, copy the weights of ``trained`` into the main process's ``model``; all processes call this."""
    if not accelerator.is_fsdp2:
        return
    own, shards = model.state_dict().values(), trained.state_dict().values()
    for weight, shard in zip(own, shards, strict=True):  # in order: activation checkpointing and compiling rename
        whole = shard.full_tensor() if isinstance(shard, DTensor) else shard
        if accelerator.is_main_process:
            weight.copy_(whole)


def tell_deepspeed(accelerator: Accelerator, rows: int, settings: EngineSettings) -> None:
    """Give DeepSpeed, which steps and clips by itself and asks for a data loader, what it cannot see.

    Args:
        accelerator: of the run.
        rows: samples a batch in each process.
        settings: of the loop.
    """
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        accelerator.state.deepspeed_plugin.deepspeed_config.update(
            train_micro_batch_size_per_gpu=rows,
            gradient_accumulation_steps=settings.gradient_accumulation_steps,
            gradient_clipping=settings.max_grad_norm,
        )
