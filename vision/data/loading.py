"""Loading the splits of a data set: small images into memory, larger pictures as they lie on disk."""

from __future__ import annotations

import statistics
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dystress_text.cli.progress import progress_bar
from dystress_text.errors import DataError, UserError
from vision.data.augment import EVALUATION_CROP
from vision.data.decoding import check, decode_square, image_size
from vision.data.images import ImageSet, mean_std
from vision.data.shapes import SHAPES, make_shapes
from vision.data.sources import Source, find_images

MEMORY = 4 * 2**30  # bytes; larger sets are not decoded into memory
SMALL, USUAL = 96, 224  # images up to this side keep it; an encoder's side for larger ones
CORRUPT_SHARE, CORRUPT_COUNT = 0.01, 10  # so many corrupt images may be left out, whichever is more
_HEADERS = 101
_CHUNK = 500  # images that a thread checks at once


def load_images(
    name_or_path: str,
    split: str = "train",
    data_dir: str | None = None,
    size: int | None = None,
    skip_corrupt: bool = False,
    view: int | None = None,
) -> ImageSet:
    """A split of a data set.

    Args:
        name_or_path: ``cifar10``, ``cifar100``, ``tiny_imagenet``, ``imagenet100``, ``imagenet1k`` as
            ``data/prepare.py`` has prepared them; ``cifar10_lt``, ``cifar100_lt``, ``imagenet100_lt``, their
            long-tailed forms of ratio 0.01 and seed 0; ``shapes``, drawn at run time; a folder of
            images, in class folders or without labels, divided into ``train`` and ``test`` (or ``val``) or not; or a
            folder of parquet files in the hub's layout.
        split: ``train`` or ``test``.
        data_dir: folder of prepared data; see :func:`dystress_text.files.places.data_root`.
        size: side of the images, or of the middle squares of pictures; None for that of :func:`keeps_side`.
        skip_corrupt: count damaged images and leave them out, with one warning; this decodes every picture once.
        view: side of the encoder's input, used if ``size`` is None; None for :func:`usual_view`.

    Raises:
        UserError: an unknown name or split, or data that have not been prepared.
        NoSuchSplitError: the data do not have the split.
        DataError: a folder or image is damaged.
    """
    for side in (size, view):
        if side is not None and side < 1:
            raise UserError(f"--image_size: the side of an image must be at least 1 pixel, got {side}")
    if name_or_path == SHAPES:
        return make_shapes(split)
    source = find_images(name_or_path, split, data_dir)
    if size is None:
        side = _median_side(source)
        view = view or usual_view(side)
        small = keeps_side(side, view)
        size = side if small else round(view / EVALUATION_CROP)
    else:
        small = size <= SMALL
    if small and len(source.pictures) * 3 * size * size <= MEMORY:
        return _decoded(source, size, skip_corrupt)
    found = len(source.pictures)
    if skip_corrupt:
        source = _without(source, _faults_of(source))
    return ImageSet(
        None, source.pictures, _label_tensor(source), source.classes, source.name, source.variant, size,
        found - len(source.pictures),
    )  # fmt: skip


def usual_view(side: int) -> int:
    """Default side of the encoder's input: the images' side up to 96 pixels, else 224."""
    return side if side <= SMALL else USUAL


def keeps_side(side: int, view: int) -> bool:
    """Whether images of this side are small: they are loaded as they are, and cropped on the device.

    Others are larger than 96 pixels, or more than twice as large as the encoder's input, so that crops on the device,
    which have no filter, would alias. Their random crops are taken from the whole picture; evaluation sees the middle
    square, after their shorter side became 8/7 of the input: 256 for 224.

    Args:
        side: of the images.
        view: side of the encoder's input.
    """
    return side <= min(SMALL, 2 * view)


def _median_side(source: Source) -> int:
    """The median shorter side of 101 evenly spaced images. Decoding names the damaged ones."""
    pictures = source.pictures
    count = len(pictures)
    sides: list[int] = []
    fault = ""
    for row in sorted({round(place * (count - 1) / (_HEADERS - 1)) for place in range(_HEADERS)}):
        try:
            sides.append(min(image_size(pictures.content(row), pictures.origin(row))))
        except DataError as error:
            fault = fault or str(error)
    if not sides:
        raise DataError(f"{source.name}: none of {count:,} images can be decoded: {fault}")
    return statistics.median_low(sides)


def _decoded(source: Source, side: int, skip_corrupt: bool) -> ImageSet:
    pictures = source.pictures
    images = torch.empty(len(pictures), 3, side, side, dtype=torch.uint8)
    faults: dict[int, str] = {}
    for row in progress_bar(range(len(pictures)), desc=source.name, unit=" images"):
        try:
            images[row] = decode_square(pictures.content(row), side, pictures.origin(row))
        except DataError as error:
            if not skip_corrupt:
                raise DataError(f"{error}; --skip_corrupt leaves such images out") from error
            faults[row] = str(error)
    if faults:
        images = images[[row for row in range(len(images)) if row not in faults]]
        source = _without(source, faults)
    variant = source.variant or _copy_of_pixels(source, side)
    return ImageSet(images, None, _label_tensor(source), source.classes, source.name, variant, side, len(faults))


def _copy_of_pixels(source: Source, side: int) -> str | None:
    """The hub's sets of 32 x 32 are PNG files, so JPEG files are lossy copies."""
    content = source.pictures.content(0)
    jpeg = isinstance(content, bytes) and content.startswith(b"\xff\xd8\xff")
    return "JPEG copy" if jpeg and side == 32 else None


def _faults_of(source: Source) -> dict[int, str]:
    """What is wrong with the damaged pictures, by row."""
    pictures = source.pictures

    def faults_of(rows: range) -> dict[int, str]:
        faults = {}
        for row in rows:
            try:
                check(pictures.content(row), pictures.origin(row))
            except DataError as error:
                faults[row] = str(error)
        return faults

    chunks = [range(start, min(start + _CHUNK, len(pictures))) for start in range(0, len(pictures), _CHUNK)]
    with ThreadPoolExecutor() as pool:
        done = progress_bar(pool.map(faults_of, chunks), total=len(chunks), desc="checking", unit=f" x {_CHUNK} images")
        return {row: fault for faults in done for row, fault in faults.items()}


def _without(source: Source, faults: dict[int, str]) -> Source:
    if not faults:
        return source
    count = len(source.pictures)
    intact = [row for row in range(count) if row not in faults]
    first = next(iter(faults.values()))
    message = f"{len(faults):,} of {count:,} images of {source.name} are corrupt"
    if len(intact) < 2:
        raise DataError(f"{message}, too few are left: {first}")
    if len(faults) > max(CORRUPT_COUNT, CORRUPT_SHARE * count):
        raise DataError(
            f"{message}; --skip_corrupt leaves out at most {CORRUPT_SHARE:.0%} or {CORRUPT_COUNT}. The first: {first}"
        )
    warnings.warn(f"{message} and left out; the first: {first}", stacklevel=4)
    return source.subset(intact)


def _label_tensor(source: Source) -> Tensor | None:
    return None if source.labels is None else torch.tensor(source.labels, dtype=torch.long)


@dataclass(frozen=True)
class Splits:
    """Labelled images for an evaluation.

    Attributes:
        train: the bank of the nearest neighbours, and the training images of classifiers.
        test: the images that are scored.
        view: side of the encoder's input.
        mean: of the training images' channels, of values from 0 to 1.
        std: their standard deviations.
    """

    train: ImageSet
    test: ImageSet
    view: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def describe(self) -> dict[str, Any]:
        """For a record."""
        return {
            "name": self.train.name,
            "variant": self.train.variant,
            "classes": len(self.train.classes),
            "train_images": len(self.train),
            "test_images": len(self.test),
            "corrupt_train_images": self.train.corrupt,
            "corrupt_test_images": self.test.corrupt,
            "image_size": self.view,
            "loaded_size": self.train.size,
            "mean": self.mean,
            "std": self.std,
        }


def load_splits(
    name: str,
    data_dir: str | None = None,
    view: int | None = None,
    limit: int | None = None,
    seed: int = 0,
    skip_corrupt: bool = False,
) -> Splits:
    """Read the two splits; see :func:`load_images`.

    Args:
        name: of the data set, or a folder.
        data_dir: folder of prepared data.
        view: side of the encoder's input; None for :func:`usual_view`.
        limit: images to draw from each split; None for all.
        seed: of that draw.
        skip_corrupt: count damaged images and leave them out.

    Raises:
        UserError: the data do not exist, have no labels, or are of one class.
        DataError: the data are damaged.
    """
    train = load_images(name, "train", data_dir, None, skip_corrupt, view)
    test = load_images(name, "test", data_dir, train.size, skip_corrupt)
    view = view or usual_view(train.size)
    mean, std = mean_std(train)
    train, test = (images.sample(limit, seed) for images in (train, test))
    check_labels(train, test)
    return Splits(train, test, view, mean, std)


def check_labels(train: ImageSet, test: ImageSet) -> None:
    """Refuse images on which no classifier can be trained and tested.

    Raises:
        UserError: labels are missing, of one class, or of other classes in the test split.
    """
    for images, split in ((train, "training"), (test, "test")):
        if images.labels is None:
            raise UserError(f"--dataset: the {split} images of {images.name} have no labels (class folders)")
    assert train.labels is not None
    if train.classes != test.classes:
        raise UserError(
            f"--dataset: {train.name} has {len(train.classes)} classes for training and {len(test.classes)} for the "
            "test, or their names differ; they must be the same"
        )
    if len(torch.unique(train.labels)) < 2:
        raise UserError(f"--dataset: the training images of {train.name} are of one class only; a classifier needs two")
