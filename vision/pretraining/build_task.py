"""What a run needs before its first step: images, encoder, objective, task and optimiser."""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from pytorch_optimizer import LARS
from torch import nn

from dystress_text.errors import ParameterError
from dystress_text.losses.objectives import Objective
from dystress_text.training.accelerator import make_gather
from dystress_text.training.trainer import parameter_groups
from vision.data.augment import SimclrAugment
from vision.data.crops import RandomCrop
from vision.data.images import ImageSet, NoAccuracyError, mean_std, square_of
from vision.data.loading import load_images, load_test
from vision.data.views import RandomViews
from vision.evaluation.knn import OnlineKnn
from vision.pretraining.held_out import DividedImages, HeldOutAgreement, OnlineMeasure, divide
from vision.pretraining.presets import LARS_RATES, LarsRates
from vision.pretraining.settings import SMALLEST_CROP, PretrainSettings, VisionSettings
from vision.pretraining.task import (
    PREDICTOR_HIDDEN,
    PretrainTask,
    Prototypes,
    QueueTask,
    TeacherTask,
)
from vision.resnet import ImageEncoder, ImageInput, build_encoder, mlp

# images that a CPU's evaluation while training takes: all would take minutes
CPU_BANK = 10_000
CPU_QUERIES = 3_000


class PreparedRun(NamedTuple):
    """What a run of pre-training needs before its first step."""

    settings: PretrainSettings  # with a batch of at most all images
    task: PretrainTask
    examples: ImageSet  # those of :class:`DividedImages`, for the page
    notes: tuple[str, ...]  # lines for the user on what is measured


def prepare_run(settings: PretrainSettings, accelerator: Accelerator) -> PreparedRun:
    """Load images and network, and make the task."""
    vision = settings.vision
    seed = settings.training.seed
    set_seed(seed)
    encoder = build_encoder(vision.architecture, vision.stem, vision.projector, vision.out_dim)
    on_device(encoder, vision, accelerator)
    objective = make_objective(settings, accelerator)
    images = load_images(
        vision.dataset,
        "train",
        vision.data_dir,
        vision.skip_corrupt,
        vision.image_size,
        vision.train_list,
        keep_count=True,
    )
    square = square_of(images, vision.image_size)
    encoder.input = ImageInput(square.image_size, square.crop, *mean_std(images, square))
    images = images.sample(vision.max_train_samples, seed)
    notes: list[str] = []
    queries: ImageSet | None = None
    held_out = 0
    if vision.knn_k:
        try:
            queries = load_test(
                images, vision.dataset, vision.data_dir, vision.skip_corrupt, vision.image_size
            )
            notes += queries.notes
        except NoAccuracyError as error:
            notes.append(f"no accuracy while training ({error})")
            held_out = vision.held_out
    divided = divide(images, held_out, vision.knn_k, seed)
    if held_out and not divided.held_out:
        reason = f"too few for knn_k {vision.knn_k}"
        notes.append(f"none of {len(images):,} images is held out: {reason}")
    settings = fit_batch(settings, len(divided.train), accelerator.num_processes)
    # whether each forward pass sees one view of each image
    apart = not vision.one_pass or vision.small_crops == 1
    of_process = settings.training.train_batch_size // accelerator.num_processes
    if apart and of_process < 2 and not vision.sync_batchnorm:
        reason = "batch normalisation needs at least 2 images in each process"
        raise ParameterError("train_batch_size", reason)
    views = make_views(settings, divided.train, encoder.input)
    online = make_online(settings, divided, queries, views, accelerator)
    if online is not None:
        notes.append(online.description)
    metric = settings.training.metric_for_best_model
    if metric is not None and (online is None or metric != online.metric.name):
        reason = f"{metric!r} is not measured; {'; '.join(notes)}"
        raise ParameterError("metric_for_best_model", reason)
    task = make_task(settings, encoder, views, objective, online, accelerator)
    return PreparedRun(settings, task, divided.examples, tuple(notes))


def fit_batch(settings: PretrainSettings, count: int, processes: int) -> PretrainSettings:
    """Return the settings; a preset's batch size above ``count`` is lowered to all images."""
    fewer = count // processes * processes
    batch_size = settings.training.train_batch_size
    if "train_batch_size" in settings.user_options or fewer >= batch_size:
        return settings
    if fewer < 2:
        reason = f"training needs 2 images at least, and one in each process; there are {count}"
        raise ParameterError("dataset", reason)
    return replace(settings, training=replace(settings.training, train_batch_size=fewer))


def on_device(module: nn.Module, vision: VisionSettings, accelerator: Accelerator) -> nn.Module:
    """Return the module on the device, with SyncBatchNorm if the settings ask for it."""
    if vision.sync_batchnorm and accelerator.num_processes > 1:
        if accelerator.device.type == "cpu":
            reason = "works only on GPUs, and these processes are on CPUs; leave the option out"
            raise ParameterError("sync_batchnorm", reason)
        module = nn.SyncBatchNorm.convert_sync_batchnorm(module)  # type: ignore[no-untyped-call]
    return module.to(accelerator.device)


def make_objective(settings: PretrainSettings, accelerator: Accelerator) -> Objective:
    """Return a copy of the loss on the device, which gathers the embeddings of all processes."""
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


def make_task(
    settings: PretrainSettings,
    encoder: ImageEncoder,
    views: RandomViews,
    objective: Objective,
    online: OnlineMeasure | None,
    accelerator: Accelerator,
) -> PretrainTask:
    """Return the task that the objective names, on the device of the accelerator."""
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
        head = on_device(prototypes, vision, accelerator)
        return TeacherTask(**common, head=head, head_in_teacher=True)
    predictor = on_device(mlp(dim, PREDICTOR_HIDDEN, dim), vision, accelerator)
    return TeacherTask(**common, head=predictor, head_in_teacher=False)


def make_views(
    settings: PretrainSettings, images: ImageSet, image_input: ImageInput
) -> RandomViews:
    """Return the views of the images: two of each, and for DINO further small ones."""
    vision = settings.vision
    crop = RandomCrop(vision.image_size, vision.min_scale)
    augment = SimclrAugment(crop, image_input.mean, image_input.std, vision.jitter, vision.blur)
    views = RandomViews(images, augment, 2, settings.training.seed)
    if not vision.small_crops:
        return views
    # with the colours of the large crops; their areas end where those of the large crops begin
    small_crop = RandomCrop(vision.small_crop_size, SMALLEST_CROP, vision.min_scale)
    small = replace(augment, crop=small_crop)
    return replace(views, others=((small, vision.small_crops),))


def make_online(
    settings: PretrainSettings,
    divided: DividedImages,
    queries: ImageSet | None,
    views: RandomViews,
    accelerator: Accelerator,
) -> OnlineMeasure | None:
    """Return what to measure during training: on test images, else on held-out ones, else None."""
    k = settings.vision.knn_k
    batch_size = settings.training.train_batch_size // accelerator.num_processes
    if queries is None:
        if not divided.held_out:
            return None
        seen = replace(views, images=divided.examples, others=())
        return HeldOutAgreement(seen, divided.held_out, k, batch_size)
    bank = divided.train
    if accelerator.device.type == "cpu":
        bank = bank.sample(CPU_BANK, settings.training.seed)
        queries = queries.sample(CPU_QUERIES, settings.training.seed)
    if k > len(bank):
        reason = f"{k} exceeds the {len(bank)} training images; lower it, or give 0 not to evaluate"
        raise ParameterError("knn_k", reason)
    return OnlineKnn(bank, queries, k, batch_size)


def make_optimizer(network: nn.Module, settings: PretrainSettings) -> torch.optim.Optimizer:
    """Return the optimiser of a network.

    SGD decays all weights, as in the CIFAR recipes. LARS and AdamW do not decay biases and
    normalisation layers, and LARS adapts the rate of matrices and kernels only (You et al., 2017).
    """
    vision = settings.vision
    weight_decay = settings.training.weight_decay
    batch_size = settings.training.train_batch_size  # of all processes
    scales = {"none": 1.0, "sqrt": math.sqrt(batch_size), "linear": batch_size / 256}
    rate = settings.training.learning_rate * scales[vision.lr_scaling]
    if vision.optimizer == "sgd":
        trained = network.parameters()
        return torch.optim.SGD(trained, rate, 0.9, weight_decay=weight_decay, fused=True)
    groups = parameter_groups(network, weight_decay)
    if vision.optimizer == "lars":
        lars = LARS_RATES.get(settings.preset, LarsRates())
        groups[1]["lr"] = rate * lars.biases
        return LARS(groups, lr=rate, momentum=0.9, trust_coefficient=lars.trust_coefficient)
    return torch.optim.AdamW(groups, lr=rate, fused=True)
