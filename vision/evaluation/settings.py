"""The options of vision/evaluate.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from dystress_text.cli.options import check_options, option
from dystress_text.errors import ParameterError

TASKS = ("knn", "linear", "geometry", "svm", "transfer")
UNTRAINED = "untrained"
NEIGHBOURS = 200  # the paper's
# the paper's, by the class names of data/README.md, which says what counts they come from
NAMED_WEIGHTS: dict[str, dict[str, float]] = {
    "mura": {"positive": 0.7097},
    "isic2016": {"malignant": 4.24},
    "mhist": {"SSA": 2.45},
    "chaoyang": {"normal": 1.264, "serrated": 1.667, "adenocarcinoma": 1.0, "adenoma": 2.114},
}


@dataclass(frozen=True)
class ImageEvaluationSettings:
    """The options of vision/evaluate.py."""

    title: ClassVar[str] = "the options of vision/evaluate.py"

    model: str = field(metadata={"help": "Folder that vision/train.py wrote."})
    dataset: str | None = option(
        None,
        "Name of an image set, or a folder of class folders; default: what the model was trained "
        "on.",
    )
    data_dir: str | None = option(
        None, "Folder of prepared data; default: as in training, $DYSTRESS_DATA, or data/prepared."
    )
    tasks: list[str] | None = option(
        None,
        "Default: the first three, or none with --features. svm is linear, on balanced classes (FS "
        "of Kukleva et al.); transfer trains the whole encoder.",
        choices=TASKS,
        nargs="+",
    )
    compare: str | None = option(
        None,
        "Another encoder; without FOLDER, an untrained one.",
        nargs="?",
        const=UNTRAINED,
        metavar="FOLDER",
    )
    k: int | None = option(
        None,
        f"knn: neighbours, by cosine; default {NEIGHBOURS}, or all training images if they are "
        "fewer.",
        interval="[1, inf)",
    )
    probe: str | None = option(
        None,
        "linear: train on augmented images, as published figures have it, or on fixed features, "
        "which is faster; default: fixed for small images of one size.",
        choices=("augmented", "fixed"),
    )
    probe_epochs: int = option(90, "linear: epochs; default 90.", interval="[1, inf)")
    class_weights: list[str] = option(
        [],
        "transfer: weights by class, such as HP=1 SSA=2.45, where classes that are not named weigh "
        f"1; or the paper's of a set: {', '.join(NAMED_WEIGHTS)}.",
        nargs="+",
        metavar="CLASS=WEIGHT",
    )
    transfer_epochs: int = option(50, "transfer: epochs; default 50.", interval="[1, inf)")
    limit: int | None = option(
        None, "Images of each split, drawn with the seed; default all.", interval="[1, inf)"
    )
    batch_size: int = option(
        256,
        "Images that are encoded at a time, also in the steps of the probe (256 images) and of "
        "fine-tuning (128; below it, batch statistics are those of so many); default 256.",
        interval="[1, inf)",
    )
    skip_corrupt: bool = option(False, "Count and leave out images that cannot be decoded.")
    max_pixels: int | None = option(
        None,
        "Refuse pictures of more pixels; default: more than Pillow's 178,956,970.",
        interval="[1, inf)",
    )
    seed: int = option(0, "Of everything that is drawn; default 0.")
    features: Path | None = option(
        None,
        "Write the features of all images, with their file names and any labels, to this file. "
        "Images without labels have features too.",
        metavar="FILE.npz",
    )
    output: Path | None = option(
        None,
        "File to which results are appended; default vision-DATA.jsonl in the model's folder.",
        metavar="FILE.jsonl",
    )

    def __post_init__(self) -> None:
        check_options(self)
        if self.features is not None and self.features.suffix != ".npz":
            reason = f"{str(self.features)!r} must end in .npz, its format"
            raise ParameterError("features", reason)

    @property
    def measures(self) -> Sequence[str]:
        """Return the tasks that are asked for, or the default ones."""
        if self.tasks is not None:
            return self.tasks
        return TASKS[:3] if self.features is None else ()
