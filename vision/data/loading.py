"""Loading the splits of a data set: small images into memory, larger pictures as files."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import torch
from torch import Tensor

from dystress_text.cli.progress import progress_bar
from dystress_text.errors import DataError, ParameterError
from vision.data import SHAPES
from vision.data.decoding import decode, image_size, pixels_of
from vision.data.images import DecodedImages, EncodedImages, ImageSet, NoAccuracyError
from vision.data.shapes import make_shapes
from vision.data.sources import find_images

MEMORY = 4 * 2**30  # bytes; larger sets are not decoded into memory
SMALL = 96  # images whose shorter side is at most this may be kept in memory
USUAL = 224  # an encoder's side for larger ones
CORRUPT_SHARE = 0.01  # at most this share of the images may be corrupt,
CORRUPT_COUNT = 10  # or this number if it is more
_SAMPLE = 100  # images whose sizes are read
_CHUNK = 500  # images that are checked between two signs of progress


def load_images(
    name_or_path: str,
    split: str = "train",
    data_dir: str | None = None,
    skip_corrupt: bool = False,
    input_size: int = USUAL,
    train_list: str | None = None,
    keep_count: bool = False,
) -> ImageSet:
    """Load a split of a data set.

    Images of one size, whose shorter side has up to 96 pixels, are loaded as they are and cropped
    on the device. All others stay encoded: larger ones, those of several sizes, and images more
    than twice as large as the encoder's input, as crops on the device have no filter against
    aliasing. All random crops are taken from the whole picture; evaluation
    sees the middle square, by :func:`~vision.data.decoding.cut_square`.

    Args:
        name_or_path: one of ``SET_NAMES``, as ``vision/prepare.py`` prepared it; ``shapes``,
            drawn at run time; a folder of images, in class folders or without labels, divided into
            ``train`` and ``test`` (or ``val``) or not; or a folder of parquet files in the hub's
            layout.
        split: ``train`` or ``test``.
        data_dir: folder of prepared data; see :func:`dystress_text.io.paths.data_root`.
        skip_corrupt: count damaged images and leave them out, with a note; this decodes every
            picture once.
        input_size: side of the encoder's input.
        train_list: file that chooses the training images: a path a line, for image files, or an
            array of positions.
        keep_count: replace damaged images by the next whole one of their class, so that a run goes
            on in its order.
    """
    if name_or_path == SHAPES:
        if train_list is not None:
            raise ParameterError("train_list", f"{SHAPES} are drawn: there are no files to name")
        return make_shapes(split)
    encoded = find_images(name_or_path, split, data_dir, train_list)
    if skip_corrupt:
        encoded = _without_corrupt(encoded, keep_count)
    step = math.ceil(len(encoded) / _SAMPLE)
    sizes = {encoded.read(row, image_size) for row in range(0, len(encoded), step)}
    if len(sizes) > 1:
        return encoded
    (size,) = sizes
    encoded = replace(encoded, size=size)
    if min(size) > min(SMALL, 2 * input_size) or len(encoded) * 3 * math.prod(size) > MEMORY:
        return encoded
    return _decoded(encoded, size)


def load_test(
    train: ImageSet,
    name_or_path: str,
    data_dir: str | None = None,
    skip_corrupt: bool = False,
    input_size: int = USUAL,
) -> ImageSet:
    """Load the test split that belongs to training images, with the labels of those.

    Classes are matched by their names; a test split may lack some.

    Args:
        train: the training images.
        name_or_path: as in :func:`load_images`.
        data_dir: folder of prepared data.
        skip_corrupt: count damaged images and leave them out.
        input_size: side of the encoder's input.

    Raises:
        NoAccuracyError: a split, labels or a second class are missing.
        DataError: the test split has a class that training does not have.
    """
    if len(torch.unique(train.targets)) < 2:
        raise NoAccuracyError("dataset", f"the training images of {train.name} are of one class")
    test = load_images(name_or_path, "test", data_dir, skip_corrupt, input_size)
    if test.labels is None:
        raise NoAccuracyError("dataset", f"the test images of {train.name} have no labels")
    unknown = set(test.classes) - set(train.classes)
    if unknown:
        raise DataError(
            f"the test images of {train.name} have classes that the training images do not have, "
            f"such as {min(unknown)}"
        )
    new_label = torch.tensor([train.classes.index(name) for name in test.classes])
    labels = new_label[test.targets]
    return replace(test, labels=labels, classes=train.classes)


def _decoded(encoded: EncodedImages, size: tuple[int, int]) -> ImageSet:
    """Return the set with its images in memory, or as it is if one has another size."""
    pixels = torch.empty(len(encoded), 3, *size, dtype=torch.uint8)
    for row in progress_bar(range(len(encoded)), desc=encoded.name, unit=" images"):
        picture = pixels_of(encoded.picture(row))
        if picture.shape[1:] != size:
            return replace(encoded, size=None)
        pixels[row] = picture
    shared = {name: value for name, value in vars(encoded).items() if name != "size"}
    return DecodedImages(pixels=pixels, **shared)


def _faults(images: EncodedImages) -> dict[int, str]:
    """Return why pictures cannot be decoded, by row."""

    def fault_of(row: int) -> str | None:
        try:
            decode(*images.files[row], enough=1)  # large JPEGs at an eighth
        except DataError as error:
            return str(error)
        return None

    faults = {}
    starts = range(0, len(images), _CHUNK)
    with ThreadPoolExecutor() as pool:
        for start in progress_bar(starts, desc="checking", unit=f" x {_CHUNK} images"):
            rows = range(len(images))[start : start + _CHUNK]
            for row, fault in zip(rows, pool.map(fault_of, rows), strict=True):
                if fault is not None:
                    faults[row] = fault
    return faults


def _without_corrupt(images: EncodedImages, keep_count: bool) -> EncodedImages:
    """Return the set without its damaged pictures, or with others instead, if they are few."""
    faults = _faults(images)
    if not faults:
        return images
    count = len(images)
    message = f"{len(faults):,} of {count:,} images of {images.name} are corrupt"
    first = f"the first: {next(iter(faults.values()))}"
    if len(faults) > max(CORRUPT_COUNT, CORRUPT_SHARE * count) or count - len(faults) < 2:
        most = f"{CORRUPT_SHARE:.0%} or {CORRUPT_COUNT}, and not all but one"
        raise DataError(f"{message}; skip_corrupt leaves out at most {most}; {first}")
    rows = torch.tensor([row for row in range(count) if row not in faults])
    what = "left out"
    if keep_count:
        rows = _replaced(images, rows)
        what = "replaced"
    intact = replace(images.subset(rows), corrupt=len(faults))
    return intact.noting(f"{message} and {what}; {first}")


def _replaced(images: EncodedImages, intact: Tensor) -> Tensor:
    """Return the rows, with the next intact one of its class in place of each damaged one."""
    rows = torch.arange(len(images))
    labels = torch.zeros_like(rows) if images.labels is None else images.labels
    for label in torch.unique(labels):
        of_class = rows[labels == label]
        alike = intact[labels[intact] == label]
        if len(alike) == 0:
            raise DataError(f"all images of a class of {images.name} are corrupt")
        later = torch.searchsorted(alike, of_class) % len(alike)  # after the last, the first
        rows[of_class] = alike[later]
    return rows
