"""An evaluation of image encoders, from loading them to the result file."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from dystress_text.cli.text_table import lay_out
from dystress_text.errors import ParameterError, naming
from dystress_text.io.atomic import append_json, json_lines, versions
from dystress_text.training.accelerator import single_process_device
from dystress_text.training.global_state import full_fp32
from dystress_text.training.run_folder import RECORD, find_record
from vision.data.images import ImageSet, NoAccuracyError
from vision.data.loading import load_images, load_test
from vision.evaluation.features import seeded, write_features
from vision.evaluation.fine_tuning import parse_class_weights, weights_of
from vision.evaluation.measures import Subject
from vision.evaluation.settings import UNTRAINED, ImageEvaluationSettings
from vision.evaluation.table import Column, cells, labelled
from vision.resnet import ImageEncoder, build_encoder, fingerprint, load_encoder


@full_fp32()
def evaluate_encoders(settings: ImageEvaluationSettings) -> None:
    """Write the features, if asked for; append a line to the result file after each measure, and
    print a table.

    Raises:
        ParameterError: an option cannot be satisfied; raised before any encoder runs.
    """
    class_weights = parse_class_weights(settings.class_weights)
    encoders = load_encoders(settings)
    dataset, data_dir, train_list = images_of(settings)
    side = input_size_of(encoders.values())
    sets = load_sets(settings, dataset, data_dir, train_list, side)
    train = sets["train"]
    tasks = settings.measures
    if "knn" in tasks and settings.k is not None and settings.k > len(train):
        bank = f"{len(train):,}"
        reason = f"{settings.k} neighbours of a bank of {bank} images; give 1 to {bank}"
        raise ParameterError("k", reason)
    weights = weights_of(class_weights, train.classes)
    file = settings.output or Path(settings.model) / f"vision-{Path(dataset).resolve().name}.jsonl"
    if tasks:
        with naming("output"), _writing("output", file):  # reported before any work
            if file.is_file():
                json_lines(file)
            append_json(file)
    device = single_process_device()
    if settings.features is not None:
        encoder = encoders[settings.model].to(device)
        with _writing("features", settings.features):
            write_features(settings.features, encoder, sets, settings.batch_size)
        encoder.cpu()
        print(f"{settings.features}: features of {sum(map(len, sets.values())):,} images")
    if not tasks:
        return
    test = sets["test"]
    used = {"dataset": dataset, "data_dir": data_dir, "class_weights": class_weights}
    conditions = {
        "settings": {**asdict(settings), **used},
        "data": data_record(train, test),
        "device": str(device),
        "versions": versions("scikit-learn", "numpy", "pillow", "kornia"),
    }
    columns: dict[str, Column] = {}
    for name, encoder in encoders.items():
        columns[name] = {}
        model: dict[str, Any] = {
            "model": name,
            "weights": fingerprint(encoder),
            "network": asdict(encoder.description),
            "input": asdict(encoder.input),
        }
        subject = Subject(encoder.to(device), train, test, settings, weights)
        for task in tasks:
            start = time.perf_counter()
            measure = getattr(subject, task)
            figures = measure()
            seconds = round(time.perf_counter() - start, 2)
            line = {**model, "task": task, "figures": figures, "seconds": seconds, **conditions}
            with _writing("output", file):
                append_json(file, line)
            columns[name] |= labelled(task, figures)
            print(f"{name}: {task} ({seconds:.1f} s)", file=sys.stderr, flush=True)
        encoder.cpu()
    print(f"\n{train.title}, {len(test):,} test images\n{lay_out(cells(columns))}\n")
    print(f"{file}: all results")


def load_sets(
    settings: ImageEvaluationSettings,
    dataset: str,
    data_dir: str | None,
    train_list: str | None,
    side: int,
) -> dict[str, ImageSet]:
    """Load the splits by name; features alone need no test images.

    Args:
        settings: how many images, and whether damaged ones are left out.
        dataset: its name or folder.
        data_dir: folder of prepared data.
        train_list: file that chooses the training images.
        side: of the encoders' input, in pixels.

    Raises:
        NoAccuracyError: there is no labelled test split, and something is to be measured.
    """
    skip = settings.skip_corrupt
    train = load_images(dataset, "train", data_dir, skip, side, train_list)
    sets = {"train": train.sample(settings.limit, settings.seed)}
    try:
        test = load_test(sets["train"], dataset, data_dir, skip, side)
        sets["test"] = test.sample(settings.limit, settings.seed)
    except NoAccuracyError as error:
        if settings.measures:
            raise
        print(f"features of the training images alone: {error}", file=sys.stderr)
    for images in sets.values():
        for note in images.notes:
            print(note, file=sys.stderr)
    return sets


@contextmanager
def _writing(parameter: str, file: Path) -> Iterator[None]:
    """Make the folder of a file, and let errors of the system name the parameter."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        reason = error.strerror or error
        raise ParameterError(parameter, f"cannot write {str(file)!r}: {reason}") from error


def data_record(train: ImageSet, test: ImageSet) -> dict[str, Any]:
    """Return the entries of a result that identify its images."""
    return {
        "name": train.name,
        "variant": train.variant,
        "classes": len(train.classes),
        "train_images": len(train),
        "test_images": len(test),
        "corrupt_train_images": train.corrupt,
        "corrupt_test_images": test.corrupt,
        "checksums": [train.checksum(), test.checksum()],
    }


def load_encoders(settings: ImageEvaluationSettings) -> dict[str, ImageEncoder]:
    """Load the model and the encoder to compare it with, by their names in the table."""
    encoders: dict[str, ImageEncoder] = {}
    model = load_encoder(settings.model)
    if settings.compare == UNTRAINED:
        with seeded(settings.seed, torch.device("cpu")):
            encoders[UNTRAINED] = build_encoder(**asdict(model.description))
        encoders[UNTRAINED].input = model.input
    elif settings.compare is not None:
        encoders[settings.compare] = load_encoder(settings.compare)
    return {**encoders, settings.model: model}


def images_of(settings: ImageEvaluationSettings) -> tuple[str, str | None, str | None]:
    """Return data set, folder of prepared data and list of training images.

    They come from the settings, else from the model's training.
    """
    if settings.dataset is not None:
        return settings.dataset, settings.data_dir, None
    file = Path(settings.model) / RECORD
    try:
        trained = find_record(file.parent).settings
        data_dir = settings.data_dir or trained["data_dir"]
        return str(trained["dataset"]), data_dir, trained.get("train_list")
    except (KeyError, TypeError) as error:
        reason = f"{str(file)!r} does not say what the encoder was trained on; name images"
        raise ParameterError("dataset", reason) from error


def input_size_of(encoders: Iterable[ImageEncoder]) -> int:
    """Return the side of the encoders' input in training, in pixels."""
    sides = {encoder.input.image_size for encoder in encoders}
    if len(sides) > 1:
        numbers = " and ".join(map(str, sorted(sides)))
        reason = f"the encoders were trained on images of {numbers} pixels a side"
        raise ParameterError("compare", reason)
    return sides.pop()
