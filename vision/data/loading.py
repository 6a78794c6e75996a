"""Finding and loading a split: small images into memory, larger pictures as files."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from dystress_text.cli.progress import progress_bar
from dystress_text.errors import DataError, ParameterError
from dystress_text.io.paths import data_root
from dystress_text.io.prepared_data import CLASSES, read_manifest, variant_of
from vision.data import SET_NAMES, SHAPES
from vision.data.decoding import decode, image_size, pixels_of
from vision.data.folders import list_files, read_folder
from vision.data.images import DECODERS, DecodedImages, EncodedImages, ImageSet, NoAccuracyError
from vision.data.parquet_files import count_images, read_tables
from vision.data.shapes import make_shapes
from vision.data.subsets import RATIO, long_tail_indices, select_listed

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

    Images of one size whose shorter side has up to 96 pixels are decoded into memory and cropped on
    the device. All others stay encoded: larger ones, those of several sizes, and images more than
    twice as large as the encoder's input, since crops on the device have no filter against
    aliasing. Random crops are taken from the whole picture; evaluation sees the middle square, by
    :func:`~vision.data.decoding.cut_square`.

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
        keep_count: replace a damaged image by the next intact one of its class, so that a resumed
            run sees its samples in the same order.
    """
    if name_or_path == SHAPES:
        if train_list is not None:
            reason = f"does not apply to {SHAPES}, which are generated"
            raise ParameterError("train_list", reason)
        return make_shapes(split)
    encoded = find_images(name_or_path, split, data_dir, train_list)
    if skip_corrupt:
        encoded = _drop_corrupt(encoded, keep_count)
    step = math.ceil(len(encoded) / _SAMPLE)
    sizes = {encoded.read(row, image_size) for row in range(0, len(encoded), step)}
    if len(sizes) > 1:
        return encoded
    (size,) = sizes
    encoded = replace(encoded, size=size)
    if min(size) > min(SMALL, 2 * input_size) or len(encoded) * 3 * math.prod(size) > MEMORY:
        return encoded
    return _decode_all(encoded, size)


def load_test(
    train: ImageSet,
    name_or_path: str,
    data_dir: str | None = None,
    skip_corrupt: bool = False,
    input_size: int = USUAL,
) -> ImageSet:
    """Load the test split that belongs to training images, with their class indices.

    Classes are matched by name; a test split may lack some.

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
    label_in_training = torch.tensor([train.classes.index(name) for name in test.classes])
    return replace(test, labels=label_in_training[test.labels], classes=train.classes)


def find_images(
    name_or_path: str, split: str, data_dir: str | None = None, train_list: str | None = None
) -> EncodedImages:
    """Find the images of a split, without decoding any.

    Args:
        name_or_path: a known set, or a folder of images or of parquet files.
        split: ``train`` or ``test``.
        data_dir: folder of prepared data.
        train_list: file that chooses the training images.
    """
    if not name_or_path:  # of "" pathlib makes the working directory
        raise ParameterError("dataset", "is empty; name a set or a folder")
    root = data_root(data_dir)
    known = name_or_path.replace("-", "_")
    if known in SET_NAMES:
        name = known
        folder = root / name.removesuffix("_lt").replace("_", "-")
        problem = (
            f"{folder.name} has not been prepared ({folder} does not exist). Run python "
            f"vision/prepare.py {folder.name}, or name a folder with your own images"
        )
    else:
        folder = Path(name_or_path)
        if not folder.is_dir():
            folder = root / name_or_path
        name = folder.resolve().name
        sets = ", ".join(SET_NAMES)
        problem = (
            f"{name_or_path!r} is neither a folder nor a known data set; known are {sets}, shapes"
        )
    if not folder.is_dir():
        raise ParameterError("dataset", problem)
    images = _read_split(folder, split)
    if len(images) == 0:
        raise DataError("; ".join([f"{folder} has no images", *images.notes]))
    images = replace(images, name=name, variant=variant_of(folder))
    is_long_tail = known in SET_NAMES and known.endswith("_lt")
    if split == "train" and train_list is not None:
        images = select_listed(images, Path(train_list))
    elif split == "train" and is_long_tail and images.labels is not None:
        tail = images.subset(long_tail_indices(images.labels.numpy()))
        images = tail.with_variant(f"long tail of ratio {RATIO}")
    return replace(images, files_id=images.checksum())


def _read_split(folder: Path, split: str) -> EncodedImages:
    """Return a split of a folder, or of the folder that prepared data point to."""
    manifest = read_manifest(folder)
    if manifest is not None and manifest.folder is not None:
        classes: list[str] = []
        file = folder / CLASSES
        if file.is_file():
            classes = file.read_text("utf-8").split()
        return read_folder(Path(manifest.folder), split, classes)
    pictures, others = list_files(folder)
    tables = [path for path in others if path.suffix == ".parquet"]
    if not tables:
        return read_folder(folder, split)
    if pictures and sum(map(count_images, tables)) <= len(pictures):
        images = read_folder(folder, split)
        unread = tables
    else:
        images = read_tables(folder, tables, split)
        unread = pictures
    if not unread:
        return images
    reason = "of pictures and parquet files in one folder, those with more images are read"
    return images.with_note(f"{len(unread):,} files are not read, such as {unread[0]}: {reason}")


def _decode_all(encoded: EncodedImages, size: tuple[int, int]) -> ImageSet:
    """Return the set with its images in memory, or as it is if one has another size."""
    pixels = torch.empty(len(encoded), 3, *size, dtype=torch.uint8)
    for row in progress_bar(range(len(encoded)), desc=encoded.name, unit=" images"):
        picture = pixels_of(encoded.picture(row))
        if picture.shape[1:] != size:
            return replace(encoded, size=None)
        pixels[row] = picture
    shared = {name: value for name, value in vars(encoded).items() if name != "size"}
    return DecodedImages(pixels=pixels, **shared)


def _drop_corrupt(images: EncodedImages, keep_count: bool) -> EncodedImages:
    """Leave out damaged images, or replace them; raise an error if there are many."""
    faults = _find_faults(images)
    if not faults:
        return images
    count = len(images)
    message = f"{len(faults):,} of {count:,} images of {images.name} are corrupt"
    first = f"the first: {next(iter(faults.values()))}"
    if len(faults) > max(CORRUPT_COUNT, CORRUPT_SHARE * count) or count - len(faults) < 2:
        most = f"{CORRUPT_SHARE:.0%} or {CORRUPT_COUNT}, and not all but one"
        raise DataError(f"{message}; `skip_corrupt` leaves out at most {most}; {first}")
    intact = np.delete(np.arange(count), [*faults])
    rows = intact
    outcome = "left out"
    if keep_count:
        rows = _replace_rows(images, intact, np.array([*faults]))
        outcome = "replaced"
    kept = replace(images.subset(rows), corrupt=len(faults))
    return kept.with_note(f"{message} and {outcome}; {first}")


def _replace_rows(
    images: EncodedImages, intact: NDArray[np.int64], damaged: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return all rows, with the next intact one of its class in place of each damaged one."""
    rows = np.arange(len(images))
    labels = np.zeros(len(images)) if images.labels is None else images.labels.numpy()
    # class by class, as a pass over a million labels for each image would take minutes
    for label in np.unique(labels[damaged]):
        of_class = damaged[labels[damaged] == label]
        alike = intact[labels[intact] == label]
        if len(alike) == 0:
            raise DataError(f"all images of a class of {images.name} are corrupt")
        later = np.searchsorted(alike, of_class) % len(alike)  # after the last, the first
        rows[of_class] = alike[later]
    return rows


def _find_faults(images: EncodedImages) -> dict[int, str]:
    """Decode all images; map the row of each that fails to the reason."""

    def fault_of(row: int) -> str | None:
        try:
            decode(*images.files[row], enough=1)  # large JPEGs at an eighth
        except DataError as error:
            return str(error)
        return None

    faults = {}
    starts = range(0, len(images), _CHUNK)
    for start in progress_bar(starts, desc="checking", unit=f" x {_CHUNK} images"):
        rows = range(start, min(start + _CHUNK, len(images)))
        for row, fault in zip(rows, DECODERS.map(fault_of, rows), strict=True):
            if fault is not None:
                faults[row] = fault
    return faults
