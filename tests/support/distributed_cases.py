"""Shared by several test modules."""

from __future__ import annotations

from accelerate import FullyShardedDataParallelPlugin, PartialState
from accelerate.utils import DistributedType


def shard(accelerator):
    """Sharded training on the CPU, which torch can do, and for which accelerate has no name."""
    accelerator.state.fsdp_plugin = FullyShardedDataParallelPlugin(
        fsdp_version=2, auto_wrap_policy="transformer_based_wrap"
    )
    if accelerator.mixed_precision != "no":
        accelerator.state.fsdp_plugin.set_mixed_precision(accelerator.mixed_precision)
    accelerator.state.distributed_type = PartialState().distributed_type = DistributedType.FSDP
