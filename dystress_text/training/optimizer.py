"""The optimiser: AdamW, parameter groups with and without weight decay, number of steps, and learning rate."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR
from transformers import get_scheduler

from dystress_text.errors import ParameterError
from dystress_text.training.settings import EngineSettings


def adamw(model: nn.Module, settings: EngineSettings) -> torch.optim.Optimizer:
    """Fused AdamW."""
    groups = parameter_groups(model, settings.weight_decay)
    return torch.optim.AdamW(groups, lr=settings.learning_rate, fused=True)


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Trainable parameters, those of biases and normalisation layers (one dimension) without weight decay."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trainable if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p.ndim <= 1], "weight_decay": 0.0},
    ]


def count_steps(batches: int, settings: EngineSettings) -> tuple[int, int]:
    """Optimiser steps per epoch, and of the whole run."""
    accumulation = settings.gradient_accumulation_steps
    per_epoch = batches // accumulation
    if per_epoch == 0:
        raise ParameterError(
            "gradient_accumulation_steps", f"{accumulation} batches per step, but an epoch has {batches}"
        )
    return per_epoch, settings.max_steps if settings.max_steps > 0 else math.ceil(settings.num_train_epochs * per_epoch)


def schedule(optimizer: torch.optim.Optimizer, settings: EngineSettings, total_steps: int) -> LambdaLR:
    """The learning rate over the run, with warmup; a function of the step alone."""
    rising = settings.lr_scheduler_type == "constant" and settings.warmup_ratio > 0
    scheduler: LambdaLR = get_scheduler(
        "constant_with_warmup" if rising else settings.lr_scheduler_type,
        optimizer,
        num_warmup_steps=math.ceil(settings.warmup_ratio * total_steps),
        num_training_steps=total_steps,
    )
    return scheduler
