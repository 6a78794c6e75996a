"""Options of vision/train.py: images, encoder and loss, and vision's defaults for the loop."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import Field, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from dystress_text.cli.options import check_options, default_of, option
from dystress_text.cli.presets import Program, StartSettings
from dystress_text.errors import ParameterError
from dystress_text.training.settings import TrainingSettings
from vision.architectures import ARCHITECTURES, LARGEST_OUT_DIM, PROJECTORS, STEMS
from vision.data import SET_NAMES, SHAPES, STRONGEST_JITTER, absolute_paths, is_known
from vision.pretraining.presets import OWN_PHOTOS, PRESETS

if TYPE_CHECKING:
    from dystress_text.losses.objectives import Objective

SMALLEST_CROP = 0.05  # share of an image's area; DINO's


@dataclass(frozen=True)
class VisionSettings:
    """Images, encoder, augmentation and optimiser."""

    title: ClassVar[str] = "images, encoder, augmentation and optimiser"

    dataset: str = option(
        "cifar10",
        f"{', '.join(SET_NAMES)}, shapes (drawn at run time), or a folder of images (all "
        "together, or train/CLASS/ and test/CLASS/) or parquet files; of these --preset "
        f"{OWN_PHOTOS} is the default.",
    )
    data_dir: str | None = option(
        None, "Folder of prepared data; default $DYSTRESS_DATA, else data/prepared."
    )
    train_list: str | None = option(
        None,
        "The training images to take, such as a published long tail: a path a line, or positions "
        "in FILE.npy.",
    )
    max_train_samples: int | None = option(
        None, "Use this many images, drawn with the seed.", interval="[2, inf)"
    )
    skip_corrupt: bool = option(False, "Count and leave out images that cannot be decoded.")
    max_pixels: int | None = option(
        None,
        "Refuse pictures of more pixels; default: more than Pillow's 178,956,970.",
        interval="[1, inf)",
    )
    architecture: str = option("resnet18", "The network.", choices=list(ARCHITECTURES))
    stem: str = option(
        "cifar", "First layers: cifar (3 x 3, no pooling) or imagenet.", choices=STEMS
    )
    projector: str = option(
        "cifar",
        "Head while pre-training: cifar or simclr (2 layers), expander (3), byol (2 wide ones).",
        choices=PROJECTORS,
    )
    out_dim: int = option(
        128, "Dimensions of the projector's output.", interval=f"[1, {LARGEST_OUT_DIM}]"
    )
    image_size: int = option(
        32, "Side of the crops, in pixels; they come from the whole picture.", interval="[1, 4096]"
    )
    jitter: float = option(
        1.0,
        "Colour jitter, times 0.4 0.4 0.4 0.1; 2 is SimCLR's strength 1, which it uses on "
        "ImageNet.",
        interval=f"[0, {STRONGEST_JITTER}]",
    )
    blur: bool = option(False, "Gaussian blur, as on ImageNet.")
    min_scale: float = option(
        0.08, "Smallest share of an image's area that a crop takes.", interval="(0, 1]"
    )
    optimizer: str = option("sgd", "The optimiser.", choices=("sgd", "lars", "adamw"))
    lr_scaling: str = option(
        "none",
        "learning_rate as it is, times sqrt(batch), or times batch / 256.",
        choices=("none", "sqrt", "linear"),
    )
    key_momentum: float = option(
        0.99,
        "queue, byol, dino: momentum of the encoder that follows; byol and dino raise it to 1.",
        interval="[0, 1)",
    )
    small_crops: int = option(
        0,
        "dino: small crops of each image, for the student alone; they take from a twentieth of its "
        "area to --min_scale, the large ones from there on.",
        interval="[0, 64]",
    )
    small_crop_size: int = option(
        96, "dino: side of the small crops, in pixels.", interval="[1, 4096]", needs="small_crops"
    )
    one_pass: bool = option(
        False,
        "Both views go through the network in one pass, which is faster, and share its batch "
        "statistics; not of queue.",
    )
    sync_batchnorm: bool = option(
        False, "On GPUs: compute batch statistics over all processes, not in each one."
    )
    knn_k: int = option(
        200, "Neighbours of the online evaluation; 0 for none.", interval="[0, inf)"
    )
    held_out: int = option(
        0,
        "Without labelled test images: hold out a tenth of the images, this many at most, and "
        "measure whether the two views of each find one another.",
        interval="[0, inf)",
    )
    no_samples: bool = option(False, "Leave the pictures out of the page.")

    def __post_init__(self) -> None:
        check_options(self)
        if self.small_crops and self.min_scale <= SMALLEST_CROP:
            reason = f"must be above {SMALLEST_CROP}, where the areas of small crops begin"
            raise ParameterError("min_scale", reason)


def _reworded(name: str, help: str) -> Any:
    """Return an option of the training loop with another help text."""
    entry: Field[Any] = TrainingSettings.__dataclass_fields__[name]
    return field(default=default_of(entry), metadata={**entry.metadata, "help": help})


@dataclass(frozen=True)
class ImageTrainingSettings(TrainingSettings):
    """Options of the training loop, with defaults and help for images."""

    output_dir: str = option("out_vision", "Where the encoder, the log and checkpoints go.")
    learning_rate: float = _reworded("learning_rate", "Peak learning rate, before --lr_scaling.")
    weight_decay: float = _reworded(
        "weight_decay",
        "Of sgd on all weights; of lars and adamw not on biases and normalisation layers.",
    )
    # networks with batch normalisation are refused with it
    grad_cache_chunk: int | None = _reworded("grad_cache_chunk", argparse.SUPPRESS)


PROGRAM = Program(
    (StartSettings, VisionSettings, ImageTrainingSettings),
    PRESETS,
    default="cifar10",
    loss_options=("key_momentum", "small_crops", "small_crop_size"),
    loss_module="vision.pretraining.negative_free",
)


@dataclass(frozen=True)
class PretrainSettings:
    """All settings of a run."""

    vision: VisionSettings
    training: TrainingSettings
    loss: Objective
    preset: str
    # the names of those that are not the preset's
    user_options: frozenset[str] = field(default=frozenset(), compare=False)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> PretrainSettings:
        """Return the settings of a preset, with the options that replace its own.

        The default preset of a folder is ``own-photos``.
        """
        default = {}
        if not is_known(str(options.get("dataset", SHAPES))):
            default = {"preset": OWN_PHOTOS}
        (vision, training), loss, preset = PROGRAM.settings({**default, **options})
        return cls(vision, training, loss, preset, frozenset(options))

    def __post_init__(self) -> None:
        # here, so that help and errors of options come at once
        from dystress_text.losses.objectives import ContrastiveLoss
        from dystress_text.losses.registry import PARTS
        from vision.pretraining.negative_free import WMSELoss

        for name in ("key_momentum", "small_crops"):
            changed = getattr(self.vision, name) != getattr(VisionSettings, name)
            if changed and name not in self.loss.task_options:
                users = ", ".join(
                    loss
                    for loss, part in PARTS.items()
                    if name in getattr(part, "task_options", ())
                )
                reason = f"has no effect with the loss {self.loss}; used by {users}"
                raise ParameterError(name, reason)
        if self.training.grad_cache_chunk is not None:
            reason = (
                "batch normalisation uses the statistics of its batch, which a chunk does not "
                "have; leave the option out"
            )
            raise ParameterError("grad_cache_chunk", reason)
        batch = self.training.train_batch_size
        if isinstance(self.loss, WMSELoss) and batch <= self.vision.out_dim:
            reason = f"w_mse() whitens it, so it must be below the batch of {batch} images"
            raise ParameterError("out_dim", reason)
        if self.training.log_similarity and not isinstance(self.loss, ContrastiveLoss):
            reason = f"the loss {self.loss} has no negatives to log"
            raise ParameterError("log_similarity", reason)

    def options(self) -> dict[str, Any]:
        """Return all options by name, with absolute paths of data."""
        options = {"preset": self.preset, "loss": str(self.loss)}
        options |= vars(self.vision) | vars(self.training)
        return options | absolute_paths(options)

    def requested(self) -> dict[str, Any]:
        """Return the options that a finished run must share: the batch size only if given."""
        options = self.options()
        if "train_batch_size" not in self.user_options:
            del options["train_batch_size"]
        return options
