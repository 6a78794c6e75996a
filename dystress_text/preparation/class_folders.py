"""The labelled sets of the paper's fine-tuning, copied from their own layouts into SPLIT/CLASS/IMAGE."""

from __future__ import annotations

import csv
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from scipy.io import loadmat
from scipy.io.matlab import MatReadError

from dystress_text.cli.progress import progress_bar
from dystress_text.errors import DataError, reason_of
from dystress_text.files.prepared_data import Manifest
from dystress_text.preparation.data_sets import Request


class Labelled(NamedTuple):
    """An image of a set: where it lies, its split, its class, and its name in the class's folder."""

    file: Path
    split: str
    class_name: str
    name: str


class LabelledSet(NamedTuple):
    """A published set: how its images are read from the unpacked download, its classes, and its images by split."""

    read: Callable[[Path], Iterator[Labelled]]
    classes: tuple[str, ...]
    counts: dict[str, int]


def _mura(source: Path) -> Iterator[Labelled]:
    """``train/XR_WRIST/patient00006/study1_positive/image1.png``; each image has its study's label."""
    for split, folder in (("train", source / "train"), ("test", source / "valid")):
        for image in sorted(folder.glob("XR_*/patient*/study*_*/image*.png")):
            name = "-".join(image.relative_to(folder).parts)
            yield Labelled(image, split, image.parent.name.partition("_")[2], name)


def _chaoyang(source: Path) -> Iterator[Labelled]:
    """``train.json`` and ``test.json``: lists of ``{"name": "train/IMAGE.JPG", "label": 0 to 3}``."""
    for split in ("train", "test"):
        for row in json.loads((source / f"{split}.json").read_text(encoding="utf-8")):
            file = source / row["name"]
            yield Labelled(file, split, dict(enumerate(_CHAOYANG))[row["label"]], file.name)


def _isic2016(source: Path) -> Iterator[Labelled]:
    """Two folders of images, and two tables without a head: image, then benign or malignant, or 0.0 or 1.0."""
    for split, part in (("train", "Training"), ("test", "Test")):
        start = f"ISBI2016_ISIC_Part3_{part}"
        with (source / f"{start}_GroundTruth.csv").open(newline="", encoding="utf-8") as table:
            for image, label in csv.reader(table):
                file = source / f"{start}_Data" / f"{image}.jpg"
                yield Labelled(file, split, {"0.0": "benign", "1.0": "malignant"}.get(label, label), file.name)


def _mhist(source: Path) -> Iterator[Labelled]:
    """``annotations.csv`` and the folder ``images``."""
    with (source / "annotations.csv").open(newline="", encoding="utf-8") as table:
        for row in csv.DictReader(table):
            file = source / "images" / row["Image Name"]
            yield Labelled(file, row["Partition"], row["Majority Vote Label"], file.name)


def _flowers(source: Path) -> Iterator[Labelled]:
    """``jpg/image_00001.jpg``, the class of each image in ``imagelabels.mat``, and the splits in ``setid.mat``."""
    labels = loadmat(source / "imagelabels.mat")["labels"].ravel()
    splits = loadmat(source / "setid.mat")
    for split, key in (("train", "trnid"), ("val", "valid"), ("test", "tstid")):
        for number in splits[key].ravel():
            file = source / "jpg" / f"image_{number:05}.jpg"
            yield Labelled(file, split, f"{labels[number - 1]:03}", file.name)


_CHAOYANG = ("normal", "serrated", "adenocarcinoma", "adenoma")  # as its files number them
LABELLED_SETS = {  # data/README.md says where each number was found
    "mura": LabelledSet(_mura, ("negative", "positive"), {"train": 36_808, "test": 3_197}),
    "chaoyang": LabelledSet(_chaoyang, _CHAOYANG, {"train": 4_021, "test": 2_139}),
    "isic2016": LabelledSet(_isic2016, ("benign", "malignant"), {"train": 900, "test": 379}),
    "mhist": LabelledSet(_mhist, ("HP", "SSA"), {"train": 2_175, "test": 977}),
    "flowers102": LabelledSet(
        _flowers, tuple(f"{number:03}" for number in range(1, 103)), {"train": 1_020, "val": 1_020, "test": 6_149}
    ),
}


def class_folders(name: str, request: Request, staging: Path) -> Manifest:
    """Copy a set's images into class folders.

    Raises:
        DataError: no source, another layout, or counts that are not the set's and no variant is named.
    """
    published, source = LABELLED_SETS[name], request.source
    if source is None:
        raise DataError(f"{name}: --from FOLDER must name the unpacked download; data/README.md says where it is from")
    try:
        images = list(published.read(source))
    except (OSError, KeyError, IndexError, TypeError, ValueError, csv.Error, MatReadError) as error:
        raise DataError(f"{name}: {source} is of another layout: {reason_of(error)}") from error
    for image in images:
        if image.split not in published.counts or image.class_name not in published.classes:
            raise DataError(f"{name}: {image.file} is of {image.split}/{image.class_name}, which the set does not have")
    counts = dict(Counter(image.split for image in set(images)))  # a row that is there twice counts once
    request.compare(name, source, f"{counts} images", f"{published.counts}")
    for image in progress_bar(images, desc=name, unit=" images"):
        folder = staging / image.split / image.class_name
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(image.file, folder / image.name)
    return Manifest(name, str(source), request.variant, counts=counts)
