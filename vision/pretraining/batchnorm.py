"""Batch normalisation with the statistics of all processes' images."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from dystress_text.core.gather import Gather


def synchronise(module: nn.Module, gather: Gather, device: torch.device) -> None:
    """Replace a module's batch norms by synchronised ones, in place: torch's, or on a CPU, where it has none, ours."""
    if device.type != "cpu":
        nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
        return
    for name, child in module.named_children():
        if isinstance(child, _BatchNorm):
            setattr(module, name, CpuSyncBatchNorm(child, gather))
        else:
            synchronise(child, gather, device)


class CpuSyncBatchNorm(_BatchNorm):
    """``nn.SyncBatchNorm`` for CPUs, of an affine layer with momentum. The gradient flows through the statistics.

    Args:
        layer: gives its weights, running statistics, eps and momentum.
        gather: the processes; all of them must hold equally many images.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor
    momentum: float

    def __init__(self, layer: _BatchNorm, gather: Gather) -> None:
        super().__init__(layer.num_features, layer.eps, layer.momentum)
        for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
            setattr(self, name, getattr(layer, name))
        self.train(layer.training)
        self.gather = gather

    def forward(self, input: Tensor) -> Tensor:
        """(n, channels, ...) -> the same shape and precision."""
        if not self.training:
            return F.batch_norm(input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)
        x = input.to(torch.promote_types(input.dtype, torch.float32)).movedim(1, -1)  # (n, ..., channels)
        over = list(range(input.ndim - 1))  # all but the channels
        mean = self.gather(x.mean(over)[None]).mean(0)  # (channels,)
        x = x - mean
        variance = self.gather(x.square().mean(over)[None]).mean(0)  # (channels,)
        with torch.no_grad():
            count = self.gather.world_size * x.numel() // self.num_features
            self.num_batches_tracked += 1
            self.running_mean.lerp_(mean.to(self.running_mean), self.momentum)
            self.running_var.lerp_(variance.to(self.running_var) * count / (count - 1), self.momentum)
        x = x * (variance + self.eps).rsqrt() * self.weight + self.bias
        return x.movedim(-1, 1).to(input.dtype)
