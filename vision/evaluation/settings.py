"""The options of vision/evaluate.py as a dataclass: defaults, help and checks."""

from __future__ import annotations

import math
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from dystress_text.errors import UserError
from vision.evaluation.fine_tuning import NAMED_WEIGHTS, parse_class_weights
from vision.evaluation.geometry import check_plot
from vision.evaluation.knn import WEIGHTS, Weights
from vision.evaluation.probe import Probe

MEASURES = ("knn", "linear", "geometry", "transfer")  # the choices of --tasks
UNTRAINED = "untrained"


def _field(default: Any, text: str, measure: str | None = None, **how: Any) -> Any:
    """A field that is an option: its default, its help, the measure that it belongs to, and argparse's arguments."""
    return field(default=default, metadata={"help": text, "measure": measure, **how})


@dataclass(frozen=True)
class EvaluationSettings:
    """The options of vision/evaluate.py.

    Raises:
        UserError: a value out of range, or an option of a measure that is not in ``tasks``.
    """

    model: str = field(metadata={"help": "folder that vision/train.py wrote", "required": True})
    dataset: str | None = _field(
        None, "name of an image set, or a folder of class folders; default: what the model was trained on"
    )
    data_dir: str | None = _field(
        None, "folder of prepared data; default: as in training, $DYSTRESS_DATA, or data/prepared"
    )
    tasks: Sequence[str] = _field(
        ("knn", "linear", "geometry"),
        "default: all but transfer, which trains the whole encoder",
        nargs="+",
        choices=MEASURES,
    )
    compare: str | None = _field(
        None,
        "evaluate another encoder too; without FOLDER, an untrained one of the same kind",
        nargs="?",
        const=UNTRAINED,
        metavar="FOLDER",
    )
    k: int = _field(200, "neighbours of the cosine kNN", "knn", type=int)
    knn_temperature: float = _field(0.1, "temperature of the cosine kNN's weights", "knn", type=float)
    l2_k: Sequence[int] = _field((1, 10), "neighbours of the L2 kNN", "knn", type=int, nargs="+")
    l2_weights: Weights = field(
        default=WEIGHTS[0],
        metadata={"help": "how the L2 kNN weighs its neighbours", "measure": "knn", "choices": WEIGHTS},
    )
    probe: Probe | None = field(
        default=None,
        metadata={
            "help": "train the linear probe on augmented images, as published figures have it, or on fixed features, "
            "which is faster; default: augmented for images of more than 96 pixels",
            "measure": "linear",
            "choices": ("augmented", "fixed"),
        },
    )
    probe_epochs: int = _field(90, "epochs of the linear probe", "linear", type=int)
    class_weights: Sequence[str] = _field(
        (),
        "weights in fine-tuning by class, such as HP=1 SSA=2.45, where classes that are not named weigh 1; or the "
        f"paper's of a set: {', '.join(NAMED_WEIGHTS)}",
        "transfer",
        nargs="+",
        metavar="CLASS=WEIGHT",
    )
    transfer_epochs: int = _field(50, "epochs of fine-tuning", "transfer", type=int)
    transfer_lr: float | None = _field(
        None, "learning rate of fine-tuning (default 0.1, with two classes 1.0)", "transfer", type=float
    )
    image_size: int | None = _field(
        None, "side of what the encoder sees, in pixels (default: as in training)", type=int
    )
    limit: int | None = _field(None, "images of each split, drawn by --seed (default all)", type=int)
    batch_size: int = _field(256, "images at a time in evaluation", type=int)
    skip_corrupt: bool = _field(False, "count and skip images that cannot be read", action="store_true")
    seed: int = _field(0, "seed of everything that is drawn", type=int)
    plot: Path | None = field(
        default=None,
        metadata={
            "help": "draw the similarity histograms of geometry",
            "measure": "geometry",
            "type": Path,
            "metavar": "FILE.png",
        },
    )
    output: Path | None = field(
        default=None,
        metadata={
            "help": "all results; default vision-DATA.json in the model's folder",
            "type": Path,
            "metavar": "FILE.json",
        },
    )

    def __post_init__(self) -> None:
        for option in ("probe_epochs", "transfer_epochs", "batch_size", "image_size", "limit"):
            value = getattr(self, option)
            if value is not None and value < 1:
                raise UserError(f"--{option}: must be at least 1, got {value}")
        for option in ("transfer_lr", "knn_temperature"):
            rate = getattr(self, option)
            if rate is not None and not 0 < rate < math.inf:
                raise UserError(f"--{option}: must be above 0, got {rate:g}")
        for measure in MEASURES:
            if list(self.tasks).count(measure) > 1:
                raise UserError(f"--tasks: {measure} is named twice")
        for setting in fields(self):
            value, owner = getattr(self, setting.name), setting.metadata.get("measure")
            given = (tuple(value) if isinstance(value, list) else value) != setting.default
            if given and owner is not None and owner not in self.tasks:
                raise UserError(f"--{setting.name} is for {owner}; add {owner} to --tasks")
        if self.plot is not None:
            check_plot(self.plot)
        parse_class_weights(self.class_weights)


def add_options(parser: ArgumentParser) -> None:
    """Give a parser the options of :class:`EvaluationSettings`, with the defaults in their help."""
    for setting in fields(EvaluationSettings):
        how: dict[str, Any] = {key: value for key, value in setting.metadata.items() if key != "measure"}
        if "required" not in how:
            how["default"] = setting.default
            values = setting.default if isinstance(setting.default, tuple) else (setting.default,)
            shown = " ".join(str(value) for value in values if value is not None and value is not False)
            if shown and "default" not in how["help"]:
                how["help"] += f" (default {shown})"
        parser.add_argument(f"--{setting.name}", **how)
