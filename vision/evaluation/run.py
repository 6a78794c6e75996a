"""An evaluation of image encoders, from loading them to the result file."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from dystress_text.errors import UserError
from dystress_text.files.whole import versions, write_json
from dystress_text.training.run_folder import RECORD, read_record, vision_file
from vision.data.augment import crop_of
from vision.data.loading import Splits, load_splits
from vision.evaluation.accuracy import Accuracy
from vision.evaluation.fine_tuning import FineTuningRecipe, FineTuningResult, parse_class_weights, weights_of
from vision.evaluation.geometry import Geometry, plot_geometry
from vision.evaluation.knn import check_neighbours
from vision.evaluation.measures import Subject, fine_tuning, geometry, linear, nearest_neighbours
from vision.evaluation.settings import UNTRAINED, EvaluationSettings
from vision.evaluation.table import table
from vision.resnet import ImageEncoder, ImageInput, build_encoder, load_encoder

Found = dict[str, Accuracy] | Accuracy | Geometry | FineTuningResult
PACKAGES = ("scikit-learn", "numpy", "pillow", "kornia")


@dataclass
class Results:
    """What has been measured so far; grows measure by measure.

    Attributes:
        about: the settings, the data and what each encoder is.
        file: where all of it is written.
        encoders: results by measure, by encoder.
        seconds: by measure, by encoder.
    """

    about: dict[str, Any]
    file: Path
    encoders: dict[str, dict[str, Any]] = field(default_factory=dict)
    seconds: dict[str, dict[str, float]] = field(default_factory=dict)

    def add(self, name: str, measure: str, found: Found, variant: str | None, seconds: float) -> None:
        """Take in one measure of an encoder, and write the file.

        Raises:
            UserError: the file cannot be written.
        """
        self.encoders.setdefault(name, {})[measure] = {"data_variant": variant, **_plain(found)}
        self.seconds.setdefault(name, {})[measure] = round(seconds, 2)
        print(f"{name}: {measure} ({seconds:.1f} s)", file=sys.stderr, flush=True)
        self.write()

    def write(self) -> None:
        """Write all of it as JSON.

        Raises:
            UserError: the file cannot be written.
        """
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.file, {**self.about, "results": self.encoders, "seconds": self.seconds})
        except OSError as error:
            raise UserError(f"--output: cannot write {str(self.file)!r}: {error.strerror}") from error


def run(settings: EvaluationSettings) -> Results:
    """Evaluate: print a table, write the result file after each measure, and return the results.

    Raises:
        UserError: no model, no data, or options that do not fit them.
    """
    encoders = load_encoders(settings)
    dataset, data_dir = images_of(settings)
    view = view_of(settings, encoders)
    splits = load_splits(dataset, data_dir, view, settings.limit, settings.seed, settings.skip_corrupt)
    _check(settings, splits)
    inputs = {name: _input_of(encoder, splits) for name, encoder in encoders.items()}
    about = {
        "settings": {
            **asdict(settings),
            "dataset": dataset,
            "data_dir": data_dir,
            "class_weights": parse_class_weights(settings.class_weights),
        },
        "data": splits.describe(),
        "encoders": {
            name: {**asdict(encoder.description), "input": asdict(inputs[name])} for name, encoder in encoders.items()
        },
        "device": str(_device()),
        "versions": versions(*PACKAGES),
    }
    file = settings.output or vision_file(Path(settings.model), dataset)
    results = Results(about, file)
    results.write()  # shows now, not after the last measure, that the place cannot be written
    histograms: dict[str, Geometry] = {}
    for name, encoder in encoders.items():
        subject = Subject(encoder.to(_device()), splits, inputs[name], settings.batch_size, settings.seed)
        for measure in settings.tasks:
            start = time.perf_counter()
            found = _measure(measure, settings, subject)
            results.add(name, measure, found, splits.train.variant, time.perf_counter() - start)
            if isinstance(found, Geometry):
                histograms[name] = found
        encoder.cpu()
    title = f"{splits.train.title}, {len(splits.test):,} test images"
    print(f"\n{title}\n{table(results.encoders, splits.train.variant)}\n")
    if settings.plot is not None:
        plot_geometry(histograms, title, settings.plot)
        print(f"{settings.plot}: similarity histograms")
    print(f"{file}: all results")
    return results


def load_encoders(settings: EvaluationSettings) -> dict[str, ImageEncoder]:
    """The model and the encoder to compare it with, by their names in the table. The random state is unchanged.

    Raises:
        UserError: a folder does not hold an encoder.
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


def images_of(settings: EvaluationSettings) -> tuple[str, str | None]:
    """The data set and the folder of prepared data: those of the settings, else those that the model was trained on.

    Raises:
        UserError: neither the settings nor the model's record name a data set.
    """
    if settings.dataset is not None:
        return settings.dataset, settings.data_dir
    file = Path(settings.model) / RECORD
    try:
        trained = read_record(file.parent)["settings"]
        return str(trained["dataset"]), settings.data_dir or trained["data_dir"]
    except (KeyError, TypeError) as error:
        raise UserError(
            f"--dataset: {str(file)!r} does not say what the encoder was trained on; name images"
        ) from error


def view_of(settings: EvaluationSettings, encoders: Mapping[str, ImageEncoder]) -> int | None:
    """Side of the encoders' input: that of the settings, or that of training; None where neither is known.

    Raises:
        UserError: they were trained on images of different sides.
    """
    sides = {encoder.input.image_size for encoder in encoders.values() if encoder.input is not None}
    if settings.image_size is None and len(sides) > 1:
        said = " and ".join(str(side) for side in sorted(sides))
        raise UserError(f"--image_size: the encoders were trained on images of {said} pixels a side; give one of them")
    return settings.image_size or next(iter(sides), None)


def _input_of(encoder: ImageEncoder, splits: Splits) -> ImageInput:
    """Normalised as in training; where that is not known, by the mean and deviation of these images."""
    mean, std = (splits.mean, splits.std) if encoder.input is None else (encoder.input.mean, encoder.input.std)
    return ImageInput(splits.view, crop_of(splits.train.size, splits.view), mean, std)


def _check(settings: EvaluationSettings, splits: Splits) -> None:
    """Refuse before any encoder runs what does not fit the images."""
    if "knn" in settings.tasks:
        check_neighbours(settings.k, len(splits.train), "--k")
        for k in settings.l2_k:
            check_neighbours(k, len(splits.train), "--l2_k")
    if "transfer" in settings.tasks:
        weights_of(parse_class_weights(settings.class_weights), splits.train.classes)


def _measure(measure: str, settings: EvaluationSettings, subject: Subject) -> Found:
    match measure:
        case "knn":
            return nearest_neighbours(subject, settings.k, settings.knn_temperature, settings.l2_k, settings.l2_weights)
        case "linear":
            return linear(subject, settings.probe_epochs, settings.probe)
        case "geometry":
            return geometry(subject)
    recipe = FineTuningRecipe(epochs=settings.transfer_epochs, learning_rate=settings.transfer_lr)
    return fine_tuning(subject, parse_class_weights(settings.class_weights), recipe)


def _plain(found: Found) -> dict[str, Any]:
    if isinstance(found, dict):
        return {name: asdict(accuracy) for name, accuracy in found.items()}
    return asdict(found)


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
