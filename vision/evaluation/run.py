"""An evaluation of image encoders from the first task to the result file."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import torch

from dystress_text.errors import UserError
from dystress_text.files.whole import versions, write_json
from dystress_text.training.run_folder import RECORD, read_record, vision_file
from vision.data.augment import crop_of
from vision.data.splits import Splits, load_splits
from vision.evaluation.accuracy import Accuracy
from vision.evaluation.class_weights import check_class_weights, parse_class_weights
from vision.evaluation.fine_tuning import TransferRecipe, TransferResult
from vision.evaluation.geometry import Geometry, check_plot, plot_geometry
from vision.evaluation.knn import WEIGHTS, Weights, check_neighbours
from vision.evaluation.measures import Subject, geometry, linear, nearest_neighbours, transfer
from vision.evaluation.table import table
from vision.resnet import ImageEncoder, ImageInput, build_encoder, load_encoder

TASKS = ("knn", "linear", "geometry", "transfer")
UNTRAINED = "untrained"
_TASK_OF = {
    "k": "knn", "knn_temperature": "knn", "l2_k": "knn", "l2_weights": "knn", "probe_epochs": "linear",
    "plot": "geometry", "class_weights": "transfer", "transfer_epochs": "transfer", "transfer_lr": "transfer",
}  # fmt: skip
Found = dict[str, Accuracy] | Accuracy | Geometry | TransferResult
PACKAGES = ("scikit-learn", "numpy", "pillow", "kornia")


@dataclass(frozen=True)
class EvaluationSettings:
    """What the program was told; see its help."""

    model: str
    dataset: str | None = None
    data_dir: str | None = None
    tasks: Sequence[str] = ("knn", "linear", "geometry")
    compare: str | None = None
    k: int = 200
    knn_temperature: float = 0.1
    l2_k: Sequence[int] = (1, 10)
    l2_weights: Weights = WEIGHTS[0]
    probe_epochs: int = 90
    class_weights: Sequence[str] = ()
    transfer_epochs: int = 50
    transfer_lr: float | None = None
    image_size: int | None = None
    limit: int | None = None
    batch_size: int = 256
    skip_corrupt: bool = False
    seed: int = 0
    plot: Path | None = None
    output: Path | None = None

    def __post_init__(self) -> None:
        for option in ("probe_epochs", "transfer_epochs", "batch_size", "image_size", "limit"):
            value = getattr(self, option)
            if value is not None and value < 1:
                raise UserError(f"--{option}: must be at least 1, got {value}")
        for option in ("transfer_lr", "knn_temperature"):
            rate = getattr(self, option)
            if rate is not None and not 0 < rate < math.inf:
                raise UserError(f"--{option}: must be above 0, got {rate:g}")
        for task in TASKS:
            if list(self.tasks).count(task) > 1:
                raise UserError(f"--tasks: {task} is named twice")
        defaults = {setting.name: setting.default for setting in fields(self)}
        for option, task in _TASK_OF.items():
            value = getattr(self, option)
            told = (tuple(value) if isinstance(value, list) else value) != defaults[option]
            if told and task not in self.tasks:
                raise UserError(f"--{option} is for {task}; add {task} to --tasks")
        if self.plot is not None:
            check_plot(self.plot)
        parse_class_weights(self.class_weights)

    def result_file(self) -> Path:
        """Where the results go."""
        return self.output or vision_file(Path(self.model), self.dataset or "")


@dataclass
class Results:
    """What has been found so far; grows task by task.

    Attributes:
        about: the settings, the data and what each encoder is.
        encoders: results by task, by encoder.
        seconds: by task, by encoder.
    """

    about: dict[str, Any]
    encoders: dict[str, dict[str, Any]] = field(default_factory=dict)
    seconds: dict[str, dict[str, float]] = field(default_factory=dict)

    def write(self, file: Path) -> None:
        """Write all of it as JSON.

        Raises:
            UserError: the file cannot be written.
        """
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json(file, {**self.about, "results": self.encoders, "seconds": self.seconds})
        except OSError as error:
            raise UserError(f"--output: cannot write {str(file)!r}: {error.strerror}") from error


def run(settings: EvaluationSettings) -> Results:
    """Evaluate: print a table, write the result file after each task, and return the results.

    Raises:
        UserError: no model, no data, or options that do not fit them.
    """
    encoders = load_encoders(settings)
    settings = with_data(settings)
    assert settings.dataset is not None
    splits = load_splits(
        settings.dataset,
        settings.data_dir,
        view_of(settings, encoders),
        settings.limit,
        settings.seed,
        settings.skip_corrupt,
    )
    _check(settings, splits)
    taken = {name: _input_of(encoder, splits) for name, encoder in encoders.items()}
    results = Results(
        {
            "settings": asdict(settings),
            "data": splits.describe(),
            "encoders": {
                name: {**asdict(encoder.description), "input": asdict(taken[name])}
                for name, encoder in encoders.items()
            },
            "device": str(_device()),
            "versions": versions(*PACKAGES),
        }
    )
    file = settings.result_file()
    results.write(file)  # a place that cannot be written shows itself now, not after the last task
    drawn: dict[str, Geometry] = {}
    for name, encoder in encoders.items():
        subject = Subject(encoder.to(_device()), splits, taken[name], settings.batch_size, settings.seed)
        results.encoders[name], results.seconds[name] = {}, {}
        for task in settings.tasks:
            start = time.perf_counter()
            found = _do(task, settings, subject)
            if isinstance(found, Geometry):
                drawn[name] = found
            results.encoders[name][task] = {"data_variant": splits.train.variant, **_plain(found)}
            results.seconds[name][task] = round(time.perf_counter() - start, 2)
            print(f"{name}: {task} ({results.seconds[name][task]:.1f} s)", file=sys.stderr, flush=True)
            results.write(file)
        encoder.cpu()
    title = f"{splits.train.title}, {len(splits.test):,} test images"
    print(f"\n{title}\n{table(results.encoders, splits.train.variant)}\n")
    if settings.plot is not None:
        plot_geometry(drawn, title, settings.plot)
        print(f"{settings.plot}: similarity histograms")
    print(f"{file}: all results")
    return results


def load_encoders(settings: EvaluationSettings) -> dict[str, ImageEncoder]:
    """The model, and what it is compared with, by what the table calls them; the random state stays as it is.

    Raises:
        UserError: a folder is no model.
    """
    with torch.random.fork_rng(devices=[]):  # weights are drawn before they are read
        torch.manual_seed(settings.seed)
        model = load_encoder(settings.model)
        if settings.compare is None:
            return {settings.model: model}
        torch.manual_seed(settings.seed)
        if settings.compare == UNTRAINED:
            untrained = build_encoder(**asdict(model.description))
            untrained.input = model.input
            return {UNTRAINED: untrained, settings.model: model}
        return {settings.compare: load_encoder(settings.compare), settings.model: model}


def with_data(settings: EvaluationSettings) -> EvaluationSettings:
    """The settings, with the data set that the model was trained on where they name none.

    Raises:
        UserError: the model's folder does not say which that was.
    """
    if settings.dataset is not None:
        return settings
    file = Path(settings.model) / RECORD
    try:
        trained = read_record(file.parent)["settings"]
        return replace(settings, dataset=str(trained["dataset"]), data_dir=settings.data_dir or trained["data_dir"])
    except (KeyError, TypeError) as error:
        raise UserError(
            f"--dataset: {str(file)!r} does not say what the encoder was trained on; name images"
        ) from error


def view_of(settings: EvaluationSettings, encoders: Mapping[str, ImageEncoder]) -> int | None:
    """Side of what the encoders take: what was asked for, or what they were trained on; None where nothing says it.

    Raises:
        UserError: they were trained on images of different sides.
    """
    sides = {encoder.input.image_size for encoder in encoders.values() if encoder.input is not None}
    if settings.image_size is None and len(sides) > 1:
        said = " and ".join(str(side) for side in sorted(sides))
        raise UserError(f"--image_size: the encoders were trained on images of {said} pixels a side; give one of them")
    return settings.image_size or next(iter(sides), None)


def _input_of(encoder: ImageEncoder, splits: Splits) -> ImageInput:
    """Normalisation is that of training; where that is not known, that of the images at hand."""
    mean, std = (splits.mean, splits.std) if encoder.input is None else (encoder.input.mean, encoder.input.std)
    return ImageInput(splits.view, crop_of(splits.train.size, splits.view), mean, std)


def _check(settings: EvaluationSettings, splits: Splits) -> None:
    """What can be said to be wrong before any encoder runs."""
    if "knn" in settings.tasks:
        check_neighbours(settings.k, len(splits.train), "--k")
        for k in settings.l2_k:
            check_neighbours(k, len(splits.train), "--l2_k")
    if "transfer" in settings.tasks:
        check_class_weights(parse_class_weights(settings.class_weights), splits.train.classes)


def _do(task: str, settings: EvaluationSettings, subject: Subject) -> Found:
    match task:
        case "knn":
            return nearest_neighbours(subject, settings.k, settings.knn_temperature, settings.l2_k, settings.l2_weights)
        case "linear":
            return linear(subject, settings.probe_epochs)
        case "geometry":
            return geometry(subject)
    recipe = TransferRecipe(epochs=settings.transfer_epochs, learning_rate=settings.transfer_lr)
    return transfer(subject, parse_class_weights(settings.class_weights), recipe)


def _plain(found: Found) -> dict[str, Any]:
    if isinstance(found, dict):
        return {name: asdict(accuracy) for name, accuracy in found.items()}
    return asdict(found)


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
