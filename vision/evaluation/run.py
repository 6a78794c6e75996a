"""An evaluation of image encoders, from loading them to the result file."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from dystress_text.cli.text_table import lay_out
from dystress_text.errors import ParameterError
from dystress_text.io.atomic import to_json, versions
from dystress_text.training.accelerator import disable_tf32, single_process_device
from dystress_text.training.run_folder import RECORD, read_json, read_record, write_evaluation
from dystress_text.training.run_record import RunRecord
from vision.data.augment import crop_of
from vision.data.images import ImageSet, mean_std
from vision.data.loading import load_images, load_test, usual_input_size
from vision.evaluation.fine_tuning import parse_class_weights, weights_of
from vision.evaluation.measures import Subject
from vision.evaluation.paper import FINE_TUNED, UNNAMED, dataset_name, results_of
from vision.evaluation.settings import TASKS, UNTRAINED, EvaluationSettings
from vision.evaluation.table import cells
from vision.resnet import ImageEncoder, ImageInput, build_encoder, fingerprint, load_encoder

_MERGED = ("encoders", "weights", "paper", "results")  # parts of a record by encoder


def run(settings: EvaluationSettings) -> bool:
    """Evaluate: write the result file after each measure, and print a table; True when all is
    done.
    """
    class_weights = parse_class_weights(settings.class_weights)
    encoders = load_encoders(settings)
    dataset, data_dir, train_list = images_of(settings)
    train, test, image_input = load_splits(
        settings, dataset, data_dir, train_list, input_size_of(encoders)
    )
    if "knn" in settings.tasks and settings.k > len(train):  # refused before any encoder runs
        bank = f"{len(train):,}"
        reason = f"{settings.k} neighbours of a bank of {bank} images; give 1 to {bank}"
        raise ParameterError("k", reason)
    weights = weights_of(class_weights, train.classes)
    inputs = {name: _input_of(encoder, image_input) for name, encoder in encoders.items()}
    papers = papers_of(settings, encoders, dataset)
    device = single_process_device()
    disable_tf32()
    results: dict[str, dict[str, Any]] = {name: {} for name in encoders}
    content: dict[str, Any] = {
        "settings": asdict(settings)
        | {"dataset": dataset, "data_dir": data_dir, "class_weights": class_weights},
        "data": data_record(train, test, image_input),
        "encoders": {
            name: {**asdict(encoder.description), "input": asdict(inputs[name])}
            for name, encoder in encoders.items()
        },
        "weights": {name: fingerprint(encoder) for name, encoder in encoders.items()},
        "device": str(device),
        "versions": versions("scikit-learn", "numpy", "pillow", "kornia"),
        "paper": papers,
        "results": results,
    }
    file = settings.output or Path(settings.model) / f"vision-{Path(dataset).name}.json"
    before = read_json(file) if file.is_file() else {}
    # shows now, not at the end, that the file cannot be written
    write_evaluation(file, merged(before, content))
    for name, encoder in encoders.items():
        subject = Subject(encoder.to(device), train, test, inputs[name], settings, weights)
        for task in settings.tasks:
            start = time.perf_counter()
            found = getattr(subject, task)()
            seconds = round(time.perf_counter() - start, 2)
            results[name][task] = {
                "data_variant": train.variant,
                **{option: content["settings"][option] for option in ("seed", *TASKS[task])},
                **found,
                "seconds": seconds,
            }
            print(f"{name}: {task} ({seconds:.1f} s)", file=sys.stderr, flush=True)
            write_evaluation(file, merged(before, content))
        encoder.cpu()
    report(results, train, len(test), papers)
    print(f"{file}: all results")
    return True


def _input_of(encoder: ImageEncoder, known: ImageInput) -> ImageInput:
    """Normalise as in training; where that is not known, by the mean and deviation of these
    images.
    """
    if encoder.input is None:
        return known
    return replace(known, mean=encoder.input.mean, std=encoder.input.std)


def merged(before: Mapping[str, Any], content: Mapping[str, Any]) -> dict[str, Any]:
    """New results with those that a file had: of the same images and weights together, all others
    under ``others``.
    """
    merged = json.loads(to_json(content))
    others = []
    newest = {name: part for name, part in before.items() if name != "others"}
    for block in (newest, *before.get("others", [])):
        if _of_the_same(block, merged):
            for part in _MERGED:
                merged[part] = _merged(block.get(part, {}), merged[part])
        elif block:
            others.append(block)
    return {**merged, "others": others}


def _of_the_same(block: Mapping[str, Any], content: Mapping[str, Any]) -> bool:
    """Whether two results are of the same images, and of the same weights by each name."""
    then = block.get("weights")
    if not then or block["data"] != content["data"]:
        return False
    return all(then.get(name, weights) == weights for name, weights in content["weights"].items())


def _merged(old: Any, new: Any) -> Any:
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return new
    return {**old, **{name: _merged(old.get(name), value) for name, value in new.items()}}


def load_splits(
    settings: EvaluationSettings,
    dataset: str,
    data_dir: str | None,
    train_list: str | None,
    input_size: int | None,
) -> tuple[ImageSet, ImageSet, ImageInput]:
    """Labelled images for training and test, and the input of an encoder that has not been trained
    on others.
    """
    skip = settings.skip_corrupt
    train = load_images(dataset, "train", data_dir, None, skip, input_size, train_list)
    side = input_size or usual_input_size(train.size)
    image_input = ImageInput(side, crop_of(train.size, side), *mean_std(train))
    train = train.sample(settings.limit, settings.seed)
    test = load_test(train, dataset, data_dir, skip).sample(settings.limit, settings.seed)
    return train, test, image_input


def data_record(train: ImageSet, test: ImageSet, image_input: ImageInput) -> dict[str, Any]:
    """The images, for the record."""
    return {
        "name": train.name,
        "variant": train.variant,
        "classes": len(train.classes),
        "train_images": len(train),
        "test_images": len(test),
        "corrupt_train_images": train.corrupt,
        "corrupt_test_images": test.corrupt,
        "checksums": [train.checksum(), test.checksum()],
        "image_size": image_input.image_size,
        "loaded_size": train.size,
        "mean": image_input.mean,
        "std": image_input.std,
    }


def report(
    results: Mapping[str, Mapping[str, Any]],
    train: ImageSet,
    tested: int,
    papers: Mapping[str, Mapping[str, Any]],
) -> None:
    """Print the table, and in what a run differs from the paper's rows."""
    columns = dict(results)
    for paper in papers.values():
        columns |= paper["rows"]
    print(f"\n{train.title}, {tested:,} test images\n{lay_out(cells(columns, train.variant))}\n")
    for name, paper in papers.items():
        if paper["differs"]:
            print(f"{name} differs from the row in {paper['differs']}")


def papers_of(
    settings: EvaluationSettings, encoders: Iterable[str], dataset: str
) -> dict[str, dict[str, Any]]:
    """By encoder, the figures of the paper's rows that its preset stands for, and in which options
    the run differs.

    Of a row on other images than in training, only fine-tuning is comparable.
    """
    found: dict[str, dict[str, Any]] = {}
    for name in encoders:
        record = RunRecord.from_json({} if name == UNTRAINED else read_record(Path(name)))
        same = dataset_name(dataset) == dataset_name(str(record.settings.get("dataset")))
        tasks = {*settings.tasks, UNNAMED[0]} if same else {FINE_TUNED[0]} & {*settings.tasks}
        rows = results_of(record.paper.rows, dataset, tasks)
        if rows:
            found[name] = {"rows": rows, "differs": record.paper.differs}
    return found


def load_encoders(settings: EvaluationSettings) -> dict[str, ImageEncoder]:
    """The model and the encoder to compare it with, by their names in the table. The random state
    is unchanged.
    """
    encoders: dict[str, ImageEncoder] = {}
    with torch.random.fork_rng(devices=[]):  # weights are drawn before they are read
        model = load_encoder(settings.model)
        if settings.compare == UNTRAINED:
            torch.default_generator.manual_seed(settings.seed)
            encoders[UNTRAINED] = build_encoder(**asdict(model.description))
            encoders[UNTRAINED].input = model.input
        elif settings.compare is not None:
            encoders[settings.compare] = load_encoder(settings.compare)
    return {**encoders, settings.model: model}


def images_of(settings: EvaluationSettings) -> tuple[str, str | None, str | None]:
    """Data set, folder of prepared data and list of training images: of the settings, else of the
    model's training.
    """
    if settings.dataset is not None:
        return settings.dataset, settings.data_dir, None
    file = Path(settings.model) / RECORD
    try:
        trained = read_record(file.parent)["settings"]
        data_dir = settings.data_dir or trained["data_dir"]
        return str(trained["dataset"]), data_dir, trained.get("train_list")
    except (KeyError, TypeError) as error:
        said = f"{str(file)!r} does not say what the encoder was trained on; name images"
        raise ParameterError("dataset", said) from error


def input_size_of(encoders: Mapping[str, ImageEncoder]) -> int | None:
    """Side of the encoders' input in training; None where it is not known."""
    sides = {encoder.input.image_size for encoder in encoders.values() if encoder.input is not None}
    if len(sides) > 1:
        said = " and ".join(map(str, sorted(sides)))
        reason = f"the encoders were trained on images of {said} pixels a side"
        raise ParameterError("compare", reason)
    return next(iter(sides), None)
