"""Optimisers of pre-training: SGD, LARS, AdamW, with the learning rate scaled to the batch."""

from __future__ import annotations

import math

import torch
from pytorch_optimizer import LARS
from torch import nn

from dystress_text.training.settings import EngineSettings
from dystress_text.training.trainer import parameter_groups
from vision.pretraining.settings import VisionSettings


def scaled_rate(engine: EngineSettings, vision: VisionSettings, batch_size: int) -> float:
    """The learning rate for a global batch: unscaled, times sqrt(batch), or times batch / 256."""
    factor = {"none": 1.0, "sqrt": math.sqrt(batch_size), "linear": batch_size / 256}[vision.lr_scaling]
    return engine.learning_rate * factor


def make_optimizer(
    network: nn.Module, engine: EngineSettings, vision: VisionSettings, batch_size: int
) -> torch.optim.Optimizer:
    """The optimiser that the settings name.

    SGD decays all weights, as in the CIFAR recipes. LARS and AdamW do not decay biases and normalisation layers, and
    LARS adapts the rate of matrices and kernels only (You et al., 2017). With fp16, LARS waits for the device in each
    step, to see whether a gradient overflowed; the others check that on the device.
    """
    rate = scaled_rate(engine, vision, batch_size)
    groups = parameter_groups(network, engine.weight_decay)
    match vision.optimizer:
        case "sgd":
            trainable = [p for p in network.parameters() if p.requires_grad]
            return torch.optim.SGD(trainable, lr=rate, momentum=0.9, weight_decay=engine.weight_decay, fused=True)
        case "lars":
            return LARS(groups, lr=rate, momentum=0.9)
        case _:
            return torch.optim.AdamW(groups, lr=rate, fused=True)
