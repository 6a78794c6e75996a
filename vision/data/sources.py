"""Finding the images of a data set by its name or path, before any is decoded."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dystress_text.errors import DataError, UserError
from dystress_text.files.places import data_root
from dystress_text.files.prepared_data import CLASSES, image_and_other_names, read_manifest, variant_of
from vision.data.long_tail import long_tail_indices
from vision.data.parquet import read_parquet
from vision.data.pictures import PictureFiles, Pictures

SET_NAMES = (  # as options have them; _lt: a long tail of the training images
    "cifar10", "cifar100", "tiny_imagenet", "imagenet100", "imagenet1k", "cifar10_lt", "cifar100_lt", "imagenet100_lt",
)  # fmt: skip
OPTION = "--dataset"

_SPLITS = {"train": ("train",), "test": ("test", "val", "valid", "validation")}


class NoSuchSplitError(UserError):
    """The data set exists, but does not have the split."""


@dataclass(frozen=True)
class Source:
    """The images of a split, not decoded.

    Attributes:
        pictures: the images.
        labels: the class of each image; None without labels.
        classes: their names.
        name: of the data set.
        variant: how the images differ from the published data set.
    """

    pictures: Pictures
    labels: list[int] | None
    classes: tuple[str, ...]
    name: str
    variant: str | None

    def subset(self, rows: list[int]) -> Source:
        """The images of some rows."""
        labels = None if self.labels is None else [self.labels[row] for row in rows]
        return replace(self, pictures=self.pictures.subset(rows), labels=labels)


def find_images(name_or_path: str, split: str, data_dir: str | None = None) -> Source:
    """The images of a set by its name, or of a folder of images or of parquet files.

    Raises:
        UserError: an unknown name or split, or data that have not been prepared.
        NoSuchSplitError: the data do not have the split.
        DataError: a folder or file is damaged.
    """
    if split not in _SPLITS:
        raise UserError(f"--split: unknown split {split!r}; known are {', '.join(_SPLITS)}")
    if (known := name_or_path.replace("-", "_")) in SET_NAMES:
        source = replace(_prepared(known.removesuffix("_lt"), split, data_root(data_dir)), name=known)
        if known.endswith("_lt") and split == "train":
            source = source.subset(long_tail_indices(np.array(source.labels)).tolist())
        return source
    path = Path(name_or_path)
    if not path.is_dir():  # the name of a folder of prepared data?
        path = data_root(data_dir) / name_or_path
    if not path.is_dir():
        raise UserError(
            f"{OPTION}: {name_or_path!r} is neither a folder nor a known data set; known are "
            f"{', '.join((*SET_NAMES, 'shapes'))}"
        )
    name = path.resolve().name
    if next(path.rglob("*.parquet"), None) is not None:
        return _from_parquet(path, split, name)
    return _from_folder(path, split, name, variant_of(path))


def _prepared(name: str, split: str, root: Path) -> Source:
    folder = root / name.replace("_", "-")
    manifest = read_manifest(folder)
    if manifest is not None and manifest.folder is not None:
        listed = folder / CLASSES
        try:
            classes = listed.read_text(encoding="utf-8").split() if listed.is_file() else None
        except UnicodeDecodeError as error:
            raise DataError(f"{listed} is damaged: {error}") from error
        return _from_folder(Path(manifest.folder), split, name, manifest.variant, classes)
    if not folder.is_dir():
        raise UserError(
            f"{OPTION}: {name} has not been prepared ({folder} does not exist). Run dystress prepare "
            f"{folder.name}, or give {OPTION} FOLDER with your own images"
        )
    return _from_parquet(folder, split, name)


def _from_parquet(folder: Path, split: str, name: str) -> Source:
    found = sorted(folder.rglob("*.parquet"))
    named = ([path for path in found if path.name.startswith(prefix)] for prefix in _SPLITS[split])
    files = next((paths for paths in named if paths), [])  # never test and validation together
    if not files:
        raise NoSuchSplitError(
            f"{OPTION}: {str(folder)!r} has no parquet files of the {split} split ({split}-*.parquet)"
        )
    pictures, labels, classes = read_parquet(files)
    return _check_number(Source(pictures, labels, classes, name, variant_of(folder)), split, folder)


def _from_folder(root: Path, split: str, name: str, variant: str | None, classes: list[str] | None = None) -> Source:
    """Class folders, or images without classes. ``classes`` selects and orders the class folders."""
    folder = _split_folder(root, split)
    if classes is None:
        # the training split numbers the classes, so that a test split without one of them agrees with it
        numbered = _split_folder(root, "train") if (root / "train").is_dir() else folder
        classes = sorted(path.name for path in numbered.iterdir() if path.is_dir())
        unknown = {path.name for path in folder.iterdir() if path.is_dir()} - set(classes)
        if unknown:
            raise DataError(f"{folder / min(unknown)}: a class that {numbered} does not have")
    names, other_names = image_and_other_names(folder)
    files, others = [folder / file for file in names], [folder / file for file in other_names]
    if not classes:
        _warn_of_other_files(others, folder)
        return _check_number(Source(PictureFiles(files), None, (), name, variant), split, folder)
    if files:
        raise DataError(f"{folder} has images next to class folders, such as {files[0].name}; move them into a class")
    labels: list[int] = []
    for label, class_name in enumerate(classes):
        place = folder / class_name
        found, more = image_and_other_names(place) if place.is_dir() else ([], [])
        others += [place / file for file in more]
        if not found and (place.is_dir() or split == "train"):
            raise DataError(f"{place} is a class without images")
        files += [place / file for file in found]
        labels += [label] * len(found)
    _warn_of_other_files(others, folder)
    return _check_number(Source(PictureFiles(files), labels, tuple(classes), name, variant), split, folder)


def _warn_of_other_files(others: list[Path], folder: Path) -> None:
    if others:
        message = f"{len(others):,} files in {folder} are passed over, as their endings are not those of images"
        warnings.warn(f"{message}; the first: {others[0]}", stacklevel=4)


def _split_folder(root: Path, split: str) -> Path:
    """``root/train`` and the like. A folder without such folders is a training split as a whole."""
    for name in _SPLITS[split]:
        if (root / name).is_dir():
            return root / name
    divided = [name for names in _SPLITS.values() for name in names if (root / name).is_dir()]
    if split != "train" or divided:
        raise NoSuchSplitError(f"{OPTION}: {str(root)!r} has no {split} split (a folder {' or '.join(_SPLITS[split])})")
    return root


def _check_number(source: Source, split: str, folder: Path) -> Source:
    count = len(source.pictures)
    if count == 0:
        raise DataError(f"{folder} has no images")
    if count == 1 and split == "train":
        raise DataError(f"{folder} has one image only; contrastive training needs at least two")
    return source
