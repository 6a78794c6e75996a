"""Options of vision/train.py: images and encoder, and vision's defaults for the loss and the loop."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any, ClassVar

from dystress_text.cli.options import check_options, option, reworded
from dystress_text.core.registry import TEMPERATURES
from dystress_text.errors import UserError
from dystress_text.training.settings import OBJECTIVES, OWNERS, TEMPERATURE_OPTIONS, EngineSettings, LossSettings
from vision.data.augment import check_jitter
from vision.data.crops import RandomCrop
from vision.data.sources import SET_NAMES
from vision.pretraining.loss_defaults import VISION
from vision.pretraining.negative_free import NEGATIVE_FREE
from vision.resnet import ARCHITECTURES, LARGEST_OUT_DIM, PROJECTORS, STEMS

WITHOUT_TEMPERATURE = (*NEGATIVE_FREE, "byol", "dino")
VISION_OBJECTIVES = (*OBJECTIVES, "queue", *WITHOUT_TEMPERATURE)
WITH_FOLLOWER = ("queue", "byol", "dino")  # a second encoder follows the trained one by --key_momentum
SMALLEST_CROP = 0.05  # share of an image's area; DINO's
_OBJECTIVES_WITH = {"queue_size": ("queue",), "key_momentum": WITH_FOLLOWER, "small_crops": ("dino",)}


@dataclass(frozen=True)
class VisionSettings:
    """Images, encoder, augmentation and optimiser."""

    _argument_group_name = "images, encoder, augmentation and optimiser"

    dataset: str = option(
        "cifar10",
        f"{', '.join(SET_NAMES)}, shapes (drawn at run time), or a folder of images (all together, or "
        "train/CLASS/ and test/CLASS/) or parquet files.",
    )
    data_dir: str | None = option(None, "Folder of prepared data; default $DYSTRESS_DATA, else data/prepared.")
    max_train_samples: int | None = option(None, "Use this many images, drawn with the seed.", interval="[2, inf)")
    skip_corrupt: bool = option(False, "Count and leave out images that cannot be decoded.")
    architecture: str = option("resnet18", "The network.", choices=list(ARCHITECTURES))
    stem: str = option("cifar", "First layers: cifar (3 x 3, no pooling) or imagenet.", choices=STEMS)
    projector: str = option(
        "cifar",
        "Head while pre-training: cifar or simclr (2 layers), expander (3), byol (2 wide ones).",
        choices=PROJECTORS,
    )
    out_dim: int = option(128, "Dimensions of the projector's output.", interval=f"[1, {LARGEST_OUT_DIM}]")
    image_size: int = option(
        32, "Side of the crops, in pixels; they come from the whole picture.", interval="[1, 4096]"
    )
    jitter: float = option(
        1.0, "Colour jitter, times 0.4 0.4 0.4 0.1; 2 is SimCLR's strength 1, which it uses on ImageNet."
    )
    blur: bool = option(False, "Gaussian blur, as on ImageNet.")
    min_scale: float = option(0.08, "Smallest share of an image's area that a crop has.")
    optimizer: str = option("sgd", "The optimiser.", choices=("sgd", "lars", "adamw"))
    lr_scaling: str = option(
        "none", "learning_rate as it is, times sqrt(batch), or times batch / 256.", choices=("none", "sqrt", "linear")
    )
    queue_size: int = option(4096, "queue: number of keys in the queue.", interval="[1, 16777216]")
    key_momentum: float = option(
        0.99, "queue, byol, dino: momentum of the encoder that follows; byol and dino raise it to 1.", interval="[0, 1)"
    )
    small_crops: int = option(
        0,
        "dino: small crops of each image, for the student alone; they take from a twentieth of its area to "
        "--min_scale, the large ones from there on.",
        interval="[0, 64]",
    )
    small_crop_size: int = option(
        96, "dino: side of the small crops, in pixels.", interval="[1, 4096]", needs="small_crops"
    )
    sync_batchnorm: bool = option(False, "Compute batch statistics over all processes, not in each one alone.")
    knn_k: int = option(200, "Neighbours of the online evaluation; 0 for none.", interval="[0, inf)")

    def __post_init__(self) -> None:
        check_options(self)
        RandomCrop(self.image_size, self.min_scale)
        check_jitter(self.jitter)
        if self.small_crops and self.min_scale <= SMALLEST_CROP:
            raise UserError(
                f"--min_scale: small crops take areas from {SMALLEST_CROP} up to it, so it must lie above that, got "
                f"{self.min_scale}"
            )


@dataclass(frozen=True)
class VisionLossSettings(LossSettings):
    """Objective and temperature. Options that are not given take :data:`VISION`'s values, then the temperature's."""

    _rows_of_macl: ClassVar[str] = "ntxent"  # the base is SimCLR

    objective: str = option(
        "ntxent",
        f"The objective; queue is MoCo v2's. No negatives and no temperature have {', '.join(WITHOUT_TEMPERATURE)}.",
        choices=VISION_OBJECTIVES,
    )
    temperature: str | None = reworded(
        LossSettings,
        "temperature",
        f"{', '.join(TEMPERATURES)}; default {VISION.temperature}, constant with --temp, alignment_adaptive with macl. "
        "A profile keeps the preset's range.",
    )
    temp: float | None = reworded(LossSettings, "temp", "The constant temperature.")
    tau_min: float | None = reworded(LossSettings, "tau_min", f"Lowest temperature; {VISION.tau_range['tau_min']}.")
    tau_max: float | None = reworded(LossSettings, "tau_max", f"Highest temperature; {VISION.tau_range['tau_max']}.")
    half_period: float | None = reworded(LossSettings, "half_period", "scheduled: half a swing, in --unit; 200.")
    unit: str | None = reworded(LossSettings, "unit", f"scheduled: run or epoch; {VISION.schedule['unit']}.")
    tau_0: float | None = reworded(
        LossSettings, "tau_0", f"alignment_adaptive: temperature at A = a_0; {VISION.alignment['tau_0']}."
    )
    alpha: float | None = reworded(
        LossSettings, "alpha", f"alignment_adaptive: how strongly it follows A; {VISION.alignment['alpha']}."
    )
    a_0: float | None = reworded(
        LossSettings, "a_0", f"alignment_adaptive: reference alignment; {VISION.alignment['a_0']}."
    )
    rows: str | None = reworded(
        LossSettings,
        "rows",
        "macl: what it reweights, the rows of ntxent (each view against all others) or of infonce (one view against "
        "the other); ntxent.",
    )


@dataclass(frozen=True)
class VisionEngineSettings(EngineSettings):
    """Settings of the loop, with an output folder of their own."""

    output_dir: str = option("out_vision", "Where the encoder, the log and checkpoints go.")
    seed: int = reworded(EngineSettings, "seed", "Of everything: initialisation, order, augmentation.")
    learning_rate: float = reworded(EngineSettings, "learning_rate", "Peak learning rate, before --lr_scaling.")
    weight_decay: float = reworded(
        EngineSettings,
        "weight_decay",
        "Of sgd on all weights; of lars and adamw not on biases and normalisation layers.",
    )
    metric_for_best_model: str | None = reworded(
        EngineSettings, "metric_for_best_model", "Keep the best model by it, such as knn200; default: the last one."
    )
    # networks with batch normalisation are refused with it
    grad_cache_chunk: int | None = reworded(EngineSettings, "grad_cache_chunk", argparse.SUPPRESS)


@dataclass(frozen=True)
class PretrainSettings:
    """All settings of a run.

    Attributes:
        vision: images, encoder, augmentation, optimiser.
        loss: objective and temperature.
        engine: the loop.
        preset: the preset that the settings started from.

    Raises:
        UserError: options that the objective does not have, or a metric that is not measured.
    """

    vision: VisionSettings
    loss: VisionLossSettings
    engine: EngineSettings
    preset: str

    def __post_init__(self) -> None:
        name = self.loss.objective
        for unused, owners in _OBJECTIVES_WITH.items():
            if name not in owners and getattr(self.vision, unused) != getattr(VisionSettings, unused):
                plural = "es" if len(owners) == 1 else ""
                raise UserError(f"--{unused}: objective {name!r} has none; {', '.join(owners)} do{plural}")
        if name in WITHOUT_TEMPERATURE:
            self._check_no_temperature()
        check_metric(self.engine, f"knn{self.vision.knn_k}" if self.vision.knn_k else None)

    def _check_no_temperature(self) -> None:
        name = self.loss.objective
        for unused in ("temperature", *TEMPERATURE_OPTIONS, "rule", *OWNERS, "detach_temperature", "learn_temperature"):
            if getattr(self.loss, unused) != getattr(VisionLossSettings, unused):
                raise UserError(f"--{unused}: objective {name!r} has no negatives and takes no temperature")
        if self.engine.log_similarity:
            raise UserError(f"--log_similarity: objective {name!r} has no negatives to look at")

    def options(self) -> dict[str, Any]:
        """Every option by its name."""
        return {"preset": self.preset, **vars(self.vision), **vars(self.loss), **vars(self.engine)}


def check_metric(engine: EngineSettings, known: str | None) -> None:
    """Refuse a metric for the best model that is not measured.

    Args:
        engine: settings of the loop.
        known: the metric of the online evaluation; None if there is no such evaluation.

    Raises:
        UserError: another metric is named.
    """
    wanted = engine.metric_for_best_model
    if wanted in (None, known):
        return
    reason = "there is no online evaluation (--knn_k)" if known is None else f"known is {known}"
    raise UserError(f"--metric_for_best_model: {wanted!r} is not measured; {reason}")
