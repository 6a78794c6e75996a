"""A run of pre-training: what is loaded, what it says and measures before the first step, and its results."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from accelerate import Accelerator
from accelerate.utils import set_seed

from dystress_text.core.objectives import ContrastiveLoss
from dystress_text.core.registry import Temperature
from dystress_text.errors import ParameterError
from dystress_text.files.whole import versions
from dystress_text.training.accelerator import describe, evaluation_dtype
from dystress_text.training.build_loss import build_rule, learned_group
from dystress_text.training.presets import paper_row
from dystress_text.training.run_folder import IMAGE_PROGRAM, write_record
from dystress_text.training.settings import global_batch_size
from dystress_text.training.task import Run
from vision.data.augment import SimclrAugment, crop_of
from vision.data.crops import RandomCrop
from vision.data.images import ImageSet, mean_std
from vision.data.loading import load_images
from vision.data.sources import NoSuchSplitError
from vision.data.views import RandomViews
from vision.evaluation.features import transform_of
from vision.evaluation.knn import online_knn
from vision.pretraining.allocator import keep_freed_memory
from vision.pretraining.build_task import encoder_of, make_optimizer, objective_of, task_of
from vision.pretraining.presets import PRESETS
from vision.pretraining.settings import (
    SMALLEST_CROP,
    WITHOUT_TEMPERATURE,
    PretrainSettings,
    VisionSettings,
)
from vision.pretraining.task import Evaluate, PretrainTask
from vision.resnet import ImageInput

Publish = Callable[[Path, Temperature | None], str]


@dataclass(kw_only=True)
class VisionRun(Run):
    """A run on images.

    Attributes:
        settings: of the run.
        publish: leaves a page in the run's folder, and returns a line about it.
        accelerator: of the run.
    """

    task: PretrainTask
    settings: PretrainSettings
    publish: Publish
    accelerator: Accelerator

    def __post_init__(self) -> None:
        images, objective, settings = self.task.views.images, self.task.objective, self.settings
        self.samples, self.options = len(images), settings.options()
        self.best_metric = settings.engine.metric_for_best_model
        if isinstance(objective, ContrastiveLoss):
            self.learned_temperature = learned_group(objective, settings.loss)
        self.data_id = f"{images.name}, {len(images)} images, {images.checksum()}"
        self.record = {
            "program": IMAGE_PROGRAM,
            "settings": self.options,
            "objective": settings.loss.objective if self.temperature is None else type(objective).__name__,
            "temperature": None if self.temperature is None else repr(self.temperature),
            "temperature_parameters": None if self.temperature is None else self.temperature.values(),
            "data": {
                "name": images.name,
                "variant": images.variant,
                "images": len(images),
                "classes": len(images.classes),
                "corrupt": images.corrupt,
                "loaded_size": images.size,
            },
            "versions": versions("kornia", "pytorch_optimizer", "pillow"),
            **paper_row(
                PRESETS[settings.preset],
                settings,
                self.accelerator.num_processes,
                lambda loss: None if loss.objective in WITHOUT_TEMPERATURE else build_rule(loss),
                not_compared=("eval_steps", "evaluation_strategy"),  # they matter to a best model alone
            ),
        }

    @property
    def temperature(self) -> Temperature | None:
        """The objective's temperature; None for an objective without one."""
        objective = self.task.objective
        return objective.temperature if isinstance(objective, ContrastiveLoss) else None

    def begin(self, steps: int, batch_size: int, before: Mapping[str, Any]) -> None:
        images, name = self.task.views.images, self.settings.loss.objective
        place = f"at {images.size} x {images.size}" if images.pictures is None else "cropped from the whole picture"
        _say(f"{len(images):,} images of {images.title}, {len(images.classes)} classes, {place}")
        if self.task.online is None and self.settings.vision.knn_k > 0:
            _say("no test split with labels: no accuracy while training")
        _say(name if self.temperature is None else f"{type(self.task.objective).__name__} with {self.temperature}")
        _say(f"{steps:,} steps of {batch_size} images on {describe(self.accelerator)}")
        self.record["untrained"] = before.get("untrained") or dict(self.task.evaluate())

    def finish(self, samples_per_second: float, output: Path) -> None:
        self.record["images_per_second"] = round(samples_per_second, 1)
        write_record(output, self.record)
        record = self.record
        _say(
            f"{record['images_per_second']:,.0f} images/s, {record['train_seconds']:,.0f} s of training, "
            f"peak memory {record['peak_memory_gb']:.2f} GB"
        )
        variant = record["data"]["variant"]
        for metric, value in record["trained"].items():
            note = "" if variant is None else f"  ({variant})"
            _say(f"{metric}: untrained {record['untrained'][metric]:.2f}, trained {value:.2f}{note}")
        _say(f"\npython vision/evaluate.py --model {output} evaluates the encoder.")
        _say(self.publish(output, self.temperature))


def build_vision_run(settings: PretrainSettings, accelerator: Accelerator, publish: Publish) -> VisionRun:
    """Load what a run of images needs: its images, its encoder, and its evaluation; called on all processes."""
    vision, engine = settings.vision, settings.engine
    batch = global_batch_size(engine, accelerator.num_processes)
    check_batch(settings, batch, accelerator.num_processes)
    if accelerator.device.type == "cpu":
        keep_freed_memory()
    set_seed(engine.seed)
    encoder = encoder_of(vision, accelerator)
    objective = objective_of(settings, accelerator)
    images = load_images(
        vision.dataset, "train", vision.data_dir, None, vision.skip_corrupt, vision.image_size, vision.train_list
    )
    mean, std = mean_std(images)
    encoder.input = ImageInput(vision.image_size, crop_of(images.size, vision.image_size), mean, std)
    images = images.sample(vision.max_train_samples, engine.seed)
    knn = _online_knn(vision, images, encoder.input, accelerator)
    if engine.metric_for_best_model not in (None, f"knn{vision.knn_k}" if knn else None):
        reason = f"known is knn{vision.knn_k}" if knn else "there is no online evaluation (knn_k)"
        raise ParameterError("metric_for_best_model", f"{engine.metric_for_best_model!r} is not measured; {reason}")
    augment = SimclrAugment(RandomCrop(vision.image_size, vision.min_scale), mean, std, vision.jitter, vision.blur)
    augment = augment.to(accelerator.device)
    small = copy.deepcopy(augment)  # DINO's, coloured as the others, with areas up to where the large ones begin
    small.crop = RandomCrop(vision.small_crop_size, SMALLEST_CROP, vision.min_scale)
    others = ((small, vision.small_crops),) if vision.small_crops else ()
    views = RandomViews(images, augment, 2, engine.seed, others)
    task = task_of(settings, encoder, views, objective, knn, accelerator)
    optimizer = partial(make_optimizer, engine=engine, vision=vision, batch_size=batch)
    return VisionRun(
        task=task,
        samples=len(images),
        make_optimizer=optimizer,
        settings=settings,
        publish=publish,
        accelerator=accelerator,
    )


def _online_knn(
    vision: VisionSettings, images: ImageSet, image_input: ImageInput, accelerator: Accelerator
) -> Evaluate | None:
    """The evaluation while training; None without labels or a test split."""
    if vision.knn_k == 0 or images.labels is None:
        return None
    try:
        queries = load_images(vision.dataset, "test", vision.data_dir, images.size, vision.skip_corrupt)
    except NoSuchSplitError:  # there are training images only
        return None
    if queries.labels is None:
        return None
    if vision.knn_k > len(images):
        raise ParameterError(
            "knn_k", f"{vision.knn_k} neighbours of {len(images)} training images; 0 for no evaluation"
        )
    transform, dtype = transform_of(image_input), evaluation_dtype(accelerator)
    return partial(online_knn, bank=images, queries=queries, transform=transform, k=vision.knn_k, dtype=dtype)


def check_batch(settings: PretrainSettings, batch: int, processes: int) -> None:
    """Refuse a batch, over all processes, that batch normalisation or whitening cannot take."""
    vision, objective = settings.vision, settings.loss.objective
    apart = objective == "queue" or not vision.one_pass  # the views go through batch normalisation
    if apart and batch // processes < 2 and not vision.sync_batchnorm:
        raise ParameterError(
            "train_batch_size", "batch normalisation needs at least 2 images a process (one has no spread)"
        )
    if objective == "w_mse" and batch <= vision.out_dim:
        raise ParameterError(
            "out_dim",
            f"objective 'w_mse' whitens {vision.out_dim} dimensions, for which the batch must have more images than "
            f"that, but it has {batch}; {max(1, batch // 2)} is the usual half",
        )


def _say(line: str) -> None:
    print(line, flush=True)
