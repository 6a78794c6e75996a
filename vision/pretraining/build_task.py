"""The objective and the task of a run, from its options."""

from __future__ import annotations

from accelerate import Accelerator, DistributedType
from torch import nn

from dystress_text.core.gather import Gather
from dystress_text.core.objectives import ContrastiveLoss, QueueInfoNCELoss
from dystress_text.errors import UserError
from dystress_text.training.accelerator import gather_of
from dystress_text.training.build_loss import TEMPERATURE_OPTIONS, build_objective, build_temperature
from vision.data.images import ImageSet
from vision.pretraining.batchnorm import synchronise
from vision.pretraining.negative_free import NEGATIVE_FREE
from vision.pretraining.settings import (
    VISION,
    WITHOUT_TEMPERATURE,
    PretrainSettings,
    VisionLossSettings,
    VisionSettings,
)
from vision.pretraining.task import Evaluate, PretrainTask, QueueTask
from vision.pretraining.teachers import BYOLLoss, DINOLoss, Prototypes, TeacherTask, predictor
from vision.resnet import ImageEncoder

_OBJECTIVES_WITH = {"queue_size": ("queue",), "key_momentum": ("queue", "byol", "dino")}


def objective_of(loss: VisionLossSettings, vision: VisionSettings, accelerator: Accelerator) -> nn.Module:
    """The objective that the settings describe.

    Raises:
        UserError: options that it does not have.
    """
    name, gather = loss.objective, gather_of(accelerator)
    for option, owners in _OBJECTIVES_WITH.items():
        if name not in owners and getattr(vision, option) != getattr(VisionSettings, option):
            raise UserError(
                f"--{option}: objective {name!r} has none; {', '.join(owners)} do{'es' * (len(owners) < 2)}"
            )
    if name in WITHOUT_TEMPERATURE:
        return _without_temperature(loss, gather)
    if name != "queue":
        return build_objective(loss, VISION, gather)
    if gather is not None and not vision.sync_batchnorm:
        raise UserError(
            "--objective queue: on several processes, add --sync_batchnorm; with statistics of its own a process "
            "tells its keys from those of the others"
        )
    if loss.sigma is not None:
        raise UserError("--sigma: objective 'queue' has none; dclw does")
    temperature = build_temperature(loss, VISION)
    return QueueInfoNCELoss(temperature, vision.queue_size, vision.out_dim, loss.detach_temperature, gather)


def _without_temperature(loss: VisionLossSettings, gather: Gather | None) -> nn.Module:
    for option in ("temperature", *TEMPERATURE_OPTIONS, "sigma", "detach_temperature", "learn_temperature"):
        if getattr(loss, option) != getattr(VisionLossSettings, option):
            raise UserError(f"--{option}: objective {loss.objective!r} has no negatives and takes no temperature")
    match loss.objective:
        case "byol":
            return BYOLLoss()
        case "dino":
            return DINOLoss(gather=gather)
    return NEGATIVE_FREE[loss.objective](gather=gather)


def task_of(
    settings: PretrainSettings,
    encoder: ImageEncoder,
    images: ImageSet,
    augment: nn.Module,
    online: Evaluate | None,
    accelerator: Accelerator,
) -> PretrainTask:
    """The task that the settings describe, for an encoder on the accelerator's device.

    Raises:
        UserError: options that the objective does not have.
    """
    vision, name = settings.vision, settings.loss.objective
    if name in _OBJECTIVES_WITH["key_momentum"] and accelerator.distributed_type == DistributedType.FSDP:
        raise UserError(
            f"--objective {name}: the encoder that follows cannot read weights that FSDP shards; leave FSDP out"
        )
    objective = objective_of(settings.loss, vision, accelerator).to(accelerator.device)
    used = f"{type(objective).__name__} and {objective.temperature}" if isinstance(objective, ContrastiveLoss) else name
    card = f"Pre-trained on {images.name} with {used}."
    if name == "queue":
        return QueueTask(
            encoder, images, augment, objective, online, card, momentum=vision.key_momentum,
            autocast=accelerator.autocast,
        )  # fmt: skip
    if name not in ("byol", "dino"):
        return PretrainTask(encoder, images, augment, objective, online, card)
    head = predictor(vision.out_dim) if name == "byol" else Prototypes(vision.out_dim)
    gather = gather_of(accelerator)
    if vision.sync_batchnorm and gather is not None:
        synchronise(head, gather, accelerator.device)
    return TeacherTask(
        encoder, images, augment, objective, online, card, momentum=vision.key_momentum,
        autocast=accelerator.autocast, head=head.to(accelerator.device), head_in_teacher=name == "dino",
    )  # fmt: skip
