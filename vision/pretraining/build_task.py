"""The encoder, the objective and the task of a run, from its settings."""

from __future__ import annotations

from typing import Any

from accelerate import Accelerator
from torch import nn

from dystress_text.core.objectives import ContrastiveLoss
from dystress_text.core.other_losses import QueueInfoNCELoss
from dystress_text.errors import UserError
from dystress_text.training.accelerator import gather_of
from dystress_text.training.build_loss import build_objective, build_rule
from vision.data.views import RandomViews
from vision.pretraining.batchnorm import synchronise
from vision.pretraining.loss_defaults import VISION
from vision.pretraining.negative_free import NEGATIVE_FREE
from vision.pretraining.settings import WITH_FOLLOWER, PretrainSettings, VisionSettings
from vision.pretraining.task import Evaluate, PretrainTask, QueueTask
from vision.pretraining.teachers import BYOLLoss, DINOLoss, Prototypes, TeacherTask, predictor
from vision.resnet import ImageEncoder, build_encoder


def encoder_of(vision: VisionSettings, accelerator: Accelerator) -> ImageEncoder:
    """A new encoder on the accelerator's device."""
    encoder = build_encoder(vision.architecture, vision.stem, vision.projector, vision.out_dim)
    _prepare(encoder, vision, accelerator)
    return encoder


def objective_of(settings: PretrainSettings, accelerator: Accelerator) -> nn.Module:
    """The objective of the settings, on the accelerator's device.

    Raises:
        UserError: an objective that cannot run on these processes, or a temperature that cannot be built.
    """
    loss, vision = settings.loss, settings.vision
    name, gather = loss.objective, gather_of(accelerator)
    if name == "queue" and gather is not None and not vision.sync_batchnorm:
        raise UserError(
            "--objective queue: on several processes, add --sync_batchnorm; with batch statistics of its own, a "
            "process can tell its keys from those of the others"
        )
    match name:
        case "queue":
            temperature = build_rule(loss, VISION)
            objective: nn.Module = QueueInfoNCELoss(
                temperature, vision.queue_size, vision.out_dim, loss.detach_temperature, gather
            )
        case "byol":
            objective = BYOLLoss()
        case "dino":
            objective = DINOLoss(gather=gather)
        case _ if name in NEGATIVE_FREE:
            objective = NEGATIVE_FREE[name](gather=gather)
        case _:
            objective = build_objective(loss, VISION, gather)
    return objective.to(accelerator.device)


def task_of(
    settings: PretrainSettings,
    encoder: ImageEncoder,
    views: RandomViews,
    objective: nn.Module,
    online: Evaluate | None,
    accelerator: Accelerator,
) -> PretrainTask:
    """The task that the settings describe.

    Args:
        settings: of the run.
        encoder: on the accelerator's device.
        views: of the images that it trains on.
        objective: from :func:`objective_of`.
        online: metrics of the encoder while it trains, or None.
        accelerator: of the run.
    """
    vision, name = settings.vision, settings.loss.objective
    used = f"{type(objective).__name__} and {objective.temperature}" if isinstance(objective, ContrastiveLoss) else name
    common: dict[str, Any] = {
        "encoder": encoder,
        "views": views,
        "objective": objective,
        "online": online,
        "card": f"Pre-trained on {views.images.name} with {used}.",
    }
    if name not in WITH_FOLLOWER:
        return PretrainTask(**common)
    common |= {"momentum": vision.key_momentum, "autocast": accelerator.autocast}
    if name == "queue":
        return QueueTask(**common)
    head = predictor(vision.out_dim) if name == "byol" else Prototypes(vision.out_dim)
    _prepare(head, vision, accelerator)
    return TeacherTask(**common, head=head, head_in_teacher=name == "dino")


def _prepare(module: nn.Module, vision: VisionSettings, accelerator: Accelerator) -> None:
    """Synchronise the batch statistics where the settings say so, and move the module to the device, in place."""
    gather = gather_of(accelerator)
    if vision.sync_batchnorm and gather is not None:
        synchronise(module, gather, accelerator.device)
    module.to(accelerator.device)
