"""The options of vision/evaluate.py."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from dystress_text.cli.options import check_options, option

TASKS = ("knn", "linear", "geometry", "svm", "transfer")
UNTRAINED = "untrained"
# the paper's, by the class names of data/README.md, which says what counts they come from
NAMED_WEIGHTS: dict[str, dict[str, float]] = {
    "mura": {"positive": 0.7097},
    "isic2016": {"malignant": 4.24},
    "mhist": {"SSA": 2.45},
    "chaoyang": {"normal": 1.264, "serrated": 1.667, "adenocarcinoma": 1.0, "adenoma": 2.114},
}


@dataclass(frozen=True)
class EvaluationSettings:
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
    tasks: list[str] = option(
        list(TASKS[:3]),
        "Default: the first three. svm is linear, on balanced classes (FS of Kukleva et al.); "
        "transfer trains the whole encoder.",
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
    k: int = option(
        200,
        "knn: neighbours, by cosine; default 200.",
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
        "Images that are encoded at a time, in the steps of the probe (256 images) and of "
        "fine-tuning (128) too; default 256.",
        interval="[1, inf)",
    )
    skip_corrupt: bool = option(False, "Count and leave out images that cannot be decoded.")
    max_pixels: int | None = option(
        None,
        "Refuse pictures of more pixels; default: more than Pillow's 178,956,970.",
        interval="[1, inf)",
    )
    seed: int = option(0, "Of everything that is drawn; default 0.")
    output: Path | None = option(
        None,
        "File to which results are appended; default vision-DATA.jsonl in the model's folder.",
        metavar="FILE.jsonl",
    )

    def __post_init__(self) -> None:
        check_options(self)
