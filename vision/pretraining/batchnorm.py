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
    """``nn.SyncBatchNorm`` for CPUs. The gradient flows through the statistics.

    Args:
        layer: gives its weights, running statistics, eps and momentum.
        gather: the processes; all of them must hold equally many images.

    Raises:
        ValueError: a layer without momentum or running statistics.
    """

    def __init__(self, layer: _BatchNorm, gather: Gather) -> None:
        if layer.momentum is None or not layer.track_running_stats:
            raise ValueError("batch statistics are synchronised for layers with momentum and running statistics only")
        super().__init__(layer.num_features, layer.eps, layer.momentum, layer.affine)
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
        self._track(mean, variance, self.gather.world_size * x.numel() // self.num_features)
        x = x * (variance + self.eps).rsqrt()
        if self.affine:
            x = x * self.weight + self.bias
        return x.movedim(-1, 1).to(input.dtype)

    @torch.no_grad()
    def _track(self, mean: Tensor, variance: Tensor, count: int) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        self.num_batches_tracked += 1
        self.running_mean.lerp_(mean.to(self.running_mean), self.momentum)
        self.running_var.lerp_(variance.to(self.running_var) * count / (count - 1), self.momentum)
