"""Options of the vision programs, beside those of the loop and of the temperature that text has too."""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass, field
from typing import Any

from dystress_text.cli.options import option, reworded
from dystress_text.core.registry import TEMPERATURES
from dystress_text.errors import UserError
from dystress_text.training.build_loss import LossDefaults
from dystress_text.training.settings import OBJECTIVES, EngineSettings, LossSettings
from vision.data.sources import LONG_TAILED, PREPARED
from vision.pretraining.negative_free import NEGATIVE_FREE
from vision.resnet import ARCHITECTURES, LARGEST_OUT_DIM, PROJECTORS, STEMS

WITHOUT_TEMPERATURE = (*NEGATIVE_FREE, "byol", "dino")
VISION_OBJECTIVES = (*OBJECTIVES, "queue", *WITHOUT_TEMPERATURE)

# the paper's CIFAR row; Kukleva et al.'s swing over hundreds of epochs; and MACL's numbers for images, where those for
# text would make the temperature negative
VISION = LossDefaults("cosine", {"tau_min": 0.07, "tau_max": 0.2}, {"unit": "epoch"},
                      {"tau_0": 0.1, "alpha": 0.5, "a_0": 0.0})  # fmt: skip


@dataclass(frozen=True)
class VisionSettings:
    """Images, encoder, augmentation and optimiser."""

    _argument_group_name = "images, encoder, augmentation and optimiser"

    dataset: str = field(
        default="cifar10",
        metadata={
            "help": f"{', '.join((*PREPARED, *LONG_TAILED))}, shapes (drawn at run time), or a folder of images (all "
            "together, or train/CLASS/ and test/CLASS/) or parquet files."
        },
    )
    data_dir: str | None = field(
        default=None, metadata={"help": "Where prepared data lie; default $DYSTRESS_DATA, else data/prepared."}
    )
    max_train_samples: int | None = field(default=None, metadata={"help": "Use so many images, drawn with the seed."})
    skip_corrupt: bool = field(default=False, metadata={"help": "Count and leave out images that cannot be decoded."})
    architecture: str = field(default="resnet18", metadata={"help": "The network.", "choices": list(ARCHITECTURES)})
    stem: str = field(
        default="cifar",
        metadata={"help": "First layers: cifar (3 x 3, no pooling) or imagenet.", "choices": list(STEMS)},
    )
    projector: str = field(
        default="cifar",
        metadata={
            "help": "Head while pre-training: cifar or simclr (2 layers), expander (3), byol (2 wide ones).",
            "choices": list(PROJECTORS),
        },
    )
    out_dim: int = field(default=128, metadata={"help": "Dimensions of the projector's output."})
    image_size: int = field(
        default=32, metadata={"help": "Side of the crops, in pixels; they come from the middle squares of images."}
    )
    jitter: float = field(
        default=1.0,
        metadata={"help": "Colour jitter, times 0.4 0.4 0.4 0.1; 2 is SimCLR's strength 1, that of ImageNet."},
    )
    blur: bool = field(default=False, metadata={"help": "Gaussian blur, as on ImageNet."})
    min_scale: float = field(default=0.2, metadata={"help": "Smallest share of an image's area that a crop has."})
    optimizer: str = field(default="sgd", metadata={"help": "The optimiser.", "choices": ["sgd", "lars", "adamw"]})
    lr_scaling: str = field(
        default="none",
        metadata={
            "help": "learning_rate as it is, times sqrt(batch), or times batch / 256.",
            "choices": ["none", "sqrt", "linear"],
        },
    )
    queue_size: int = field(default=4096, metadata={"help": "queue: keys that stay."})
    key_momentum: float = field(
        default=0.99, metadata={"help": "queue, byol, dino: of the encoder that follows; byol and dino raise it to 1."}
    )
    sync_batchnorm: bool = field(
        default=False, metadata={"help": "Batch statistics over all processes, in place of each one's own."}
    )
    knn_k: int = field(default=200, metadata={"help": "Neighbours of the online evaluation; 0 for none."})

    def __post_init__(self) -> None:
        for name, most in (("out_dim", LARGEST_OUT_DIM), ("image_size", 4096), ("queue_size", 2**24)):
            if not 1 <= getattr(self, name) <= most:
                raise UserError(f"--{name}: must lie in [1, {most:,}], got {getattr(self, name)}")
        if not 0 <= self.key_momentum < 1:
            raise UserError(f"--key_momentum: must lie in [0, 1), got {self.key_momentum}")
        if not 0 < self.min_scale <= 1:
            raise UserError(f"--min_scale: must lie in (0, 1], got {self.min_scale}")
        if not 0 <= self.jitter < math.inf:
            raise UserError(f"--jitter: must be at least 0, got {self.jitter}")
        if self.knn_k < 0:
            raise UserError(f"--knn_k: must be at least 0, got {self.knn_k}")
        if self.max_train_samples is not None and self.max_train_samples < 2:
            raise UserError(f"--max_train_samples: must be at least 2, got {self.max_train_samples}")


@dataclass(frozen=True)
class VisionLossSettings(LossSettings):
    """Objective and temperature; what is not given takes :data:`VISION`'s values, then the temperature's own."""

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


@dataclass(frozen=True)
class VisionEngineSettings(EngineSettings):
    """Settings of the loop, with an output folder that is not that of text."""

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
    """

    vision: VisionSettings
    loss: VisionLossSettings
    engine: EngineSettings
    preset: str

    def options(self) -> dict[str, Any]:
        """Every option by its name."""
        return {"preset": self.preset, **vars(self.vision), **vars(self.loss), **vars(self.engine)}
