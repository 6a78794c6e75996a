"""The objective, the task and the optimiser of a run, from its settings."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from accelerate import Accelerator
from pytorch_optimizer import LARS
from torch import nn

from dystress_text.errors import ParameterError
from dystress_text.losses.objectives import Objective
from dystress_text.training.accelerator import make_gather
from dystress_text.training.settings import TrainingSettings
from dystress_text.training.trainer import parameter_groups
from vision.data.views import RandomViews
from vision.evaluation.knn import OnlineKnn
from vision.pretraining.held_out import HeldOutAgreement
from vision.pretraining.presets import LARS_RATES, LarsRates
from vision.pretraining.settings import PretrainSettings, VisionSettings
from vision.pretraining.task import (
    PREDICTOR_HIDDEN,
    PretrainTask,
    Prototypes,
    QueueTask,
    TeacherTask,
)
from vision.resnet import ImageEncoder, mlp


def prepared(module: nn.Module, vision: VisionSettings, accelerator: Accelerator) -> nn.Module:
    """Return the module on the device, with synchronised batch statistics if so set."""
    if vision.sync_batchnorm and accelerator.num_processes > 1:
        if accelerator.device.type == "cpu":
            reason = "torch has it for GPUs alone, and these processes are on CPUs"
            raise ParameterError("sync_batchnorm", reason)
        module = nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
    return module.to(accelerator.device)


def objective_of(settings: PretrainSettings, accelerator: Accelerator) -> Objective:
    """Return the loss of the settings, on the accelerator's device, for all processes' rows."""
    vision = settings.vision
    objective = copy.deepcopy(settings.loss)
    several = accelerator.num_processes > 1
    if objective.task == "queue" and several and not vision.sync_batchnorm:
        reason = (
            "queue on several processes needs `sync_batchnorm`; with batch statistics of its "
            "own, a process can tell its keys from those of the others"
        )
        raise ParameterError("loss", reason)
    objective.start(vision.out_dim)
    objective.gather = make_gather(accelerator)
    return objective.to(accelerator.device)


def task_of(
    settings: PretrainSettings,
    encoder: ImageEncoder,
    views: RandomViews,
    objective: Objective,
    online: OnlineKnn | HeldOutAgreement | None,
    accelerator: Accelerator,
) -> PretrainTask:
    """Return the task that the objective names; its parts are on the accelerator's device."""
    vision = settings.vision
    dim = vision.out_dim
    common: dict[str, Any] = {
        "encoder": encoder,
        "views": views,
        "objective": objective,
        "one_pass": vision.one_pass,
        "online": online,
        "card": f"Pre-trained on {views.images.name} with {settings.loss}.",
    }
    if objective.task == "views":
        return PretrainTask(**common)
    common |= {"momentum": vision.key_momentum, "autocast": accelerator.autocast}
    if objective.task == "queue":
        return QueueTask(**common)
    if objective.task == "prototypes":
        prototypes = Prototypes(dim, objective.argument("prototypes"))
        head = prepared(prototypes, vision, accelerator)
        return TeacherTask(**common, head=head, head_in_teacher=True)
    predictor = prepared(mlp(dim, PREDICTOR_HIDDEN, dim), vision, accelerator)
    return TeacherTask(**common, head=predictor, head_in_teacher=False)


def make_optimizer(
    network: nn.Module,
    training: TrainingSettings,
    vision: VisionSettings,
    batch_size: int,
    preset: str = "",
) -> torch.optim.Optimizer:
    """Return the optimiser of a network.

    SGD decays all weights, as in the CIFAR recipes. LARS and AdamW do not decay biases and
    normalisation layers, and LARS adapts the rate of matrices and kernels only (You et al., 2017).

    Args:
        network: whose parameters it updates.
        training: rate and weight decay.
        vision: the optimiser, and how the rate is scaled.
        batch_size: of all processes, for the scaling.
        preset: its name, by which LARS has its rates.
    """
    scales = {"none": 1.0, "sqrt": math.sqrt(batch_size), "linear": batch_size / 256}
    rate = training.learning_rate * scales[vision.lr_scaling]
    if vision.optimizer == "sgd":
        return torch.optim.SGD(
            [p for p in network.parameters() if p.requires_grad],
            lr=rate,
            momentum=0.9,
            weight_decay=training.weight_decay,
            fused=True,
        )
    groups = parameter_groups(network, training.weight_decay)
    if vision.optimizer == "lars":
        lars = LARS_RATES.get(preset, LarsRates())
        groups[1]["lr"] = rate * lars.biases
        return LARS(groups, lr=rate, momentum=0.9, trust_coefficient=lars.trust_coefficient)
    return torch.optim.AdamW(groups, lr=rate, fused=True)
