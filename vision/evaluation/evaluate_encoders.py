"""Evaluate image encoders: load them and the images, measure, append results, print a table."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

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
    """Write features and run the tasks that the settings name, then print a table.

    Each task of an encoder appends a line to the result file when it ends.

    Raises:
        ParameterError: an option cannot be satisfied. No encoder has run by then.
    """
    class_weights = parse_class_weights(settings.class_weights)
    encoders = load_encoders(settings)
    settings, train_list = with_images_of_training(settings)
    sets = load_sets(settings, train_list, input_size_of(encoders.values()))
    train = sets["train"]
    tasks = settings.measures
    if "knn" in tasks and settings.k is not None and settings.k > len(train):
        bank = f"{len(train):,}"
        reason = f"{settings.k} neighbours of a bank of {bank} images; give 1 to {bank}"
        raise ParameterError("k", reason)
    weights = weights_of(class_weights, train.classes)
    data = Path(str(settings.dataset)).resolve()
    file = settings.output or Path(settings.model) / f"vision-{data.name}.jsonl"
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
    conditions = {
        "settings": {**asdict(settings), "class_weights": class_weights},
        "data": {
            "name": train.name,
            "variant": train.variant,
            "classes": len(train.classes),
            "train_images": len(train),
            "test_images": len(test),
            "corrupt_train_images": train.corrupt,
            "corrupt_test_images": test.corrupt,
            "checksums": [train.checksum(), test.checksum()],
        },
        "device": str(device),
        "versions": versions("scikit-learn", "numpy", "pillow", "kornia"),
    }
    columns: dict[str, Column] = {}
    for name, encoder in encoders.items():
        columns[name] = {}
        model = {
            "model": name,
            "weights": fingerprint(encoder),
            "network": asdict(encoder.description),
            "input": asdict(encoder.input),
        }
        subject = Subject(encoder.to(device), train, test, settings, weights)
        for task in tasks:
            start = time.perf_counter()
            with seeded(settings.seed, device):  # so that all encoders see the same views
                figures = getattr(subject, task)()
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
    settings: ImageEvaluationSettings, train_list: str | None, side: int
) -> dict[str, ImageSet]:
    """Load the splits ``train`` and ``test``; writing features needs no test images.

    Args:
        settings: data set, how many images, and whether damaged ones are left out.
        train_list: file that chooses the training images.
        side: side of the encoders' input, in pixels.

    Raises:
        NoAccuracyError: there is no labelled test split, and something is to be measured.
    """
    dataset = str(settings.dataset)
    data_dir = settings.data_dir
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
    """Make the folder of a file; an OSError inside becomes a ParameterError."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        reason = error.strerror or error
        raise ParameterError(parameter, f"cannot write {str(file)!r}: {reason}") from error


def load_encoders(settings: ImageEvaluationSettings) -> dict[str, ImageEncoder]:
    """Load the model, and any encoder to compare it with, by name in the table."""
    encoders: dict[str, ImageEncoder] = {}
    model = load_encoder(settings.model)
    if settings.compare == UNTRAINED:
        with seeded(settings.seed, torch.device("cpu")):
            encoders[UNTRAINED] = build_encoder(**asdict(model.description))
        encoders[UNTRAINED].input = model.input
    elif settings.compare is not None:
        encoders[settings.compare] = load_encoder(settings.compare)
    return {**encoders, settings.model: model}


def with_images_of_training(
    settings: ImageEvaluationSettings,
) -> tuple[ImageEvaluationSettings, str | None]:
    """Return the settings with a data set, and the file that chooses its training images, if any.

    If the settings name no data set, both are those that the model was trained on.
    """
    if settings.dataset is not None:
        return settings, None
    folder = Path(settings.model)
    trained = find_record(folder).settings
    try:
        dataset = str(trained["dataset"])
        data_dir = settings.data_dir or trained["data_dir"]
    except KeyError as error:
        file = str(folder / RECORD)
        reason = f"{file!r} does not say what the encoder was trained on; name images"
        raise ParameterError("dataset", reason) from error
    return replace(settings, dataset=dataset, data_dir=data_dir), trained.get("train_list")


def input_size_of(encoders: Iterable[ImageEncoder]) -> int:
    """Return the side of the images that all encoders were trained on, in pixels."""
    side, *others = sorted({encoder.input.image_size for encoder in encoders})
    if others:
        reason = f"the encoders were trained on images of {side} and {others[0]} pixels a side"
        raise ParameterError("compare", reason)
    return side
