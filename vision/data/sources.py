"""Finding the images of a data set by its name or path, before any is decoded."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import torch

from dystress_text.errors import DataError, ParameterError
from dystress_text.files.places import data_root
from dystress_text.files.prepared_data import CLASSES, image_and_other_names, read_manifest, variant_of
from vision.data.images import ImageSet
from vision.data.long_tail import long_tail_indices
from vision.data.pictures import Pictures, read_parquet

SET_NAMES = (  # as options have them; _lt: a long tail of the training images
    "cifar10", "cifar100", "tiny_imagenet", "imagenet100", "imagenet1k", "cifar10_lt", "cifar100_lt", "imagenet100_lt",
)  # fmt: skip
_SPLITS = {"train": ("train",), "test": ("test", "val", "valid", "validation")}


class NoSuchSplitError(ParameterError):
    """The data set exists, but does not have the split."""


def find_images(name_or_path: str, split: str, data_dir: str | None = None) -> ImageSet:
    """The images of a set by its name, or of a folder of images or of parquet files; none of them is read.

    Raises:
        ParameterError: an unknown name, or data that have not been prepared.
        NoSuchSplitError: the data do not have the split.
        DataError: a folder or file is damaged.
    """
    if (known := name_or_path.replace("-", "_")) in SET_NAMES:
        found = replace(_prepared(known.removesuffix("_lt"), split, data_root(data_dir)), name=known)
        if known.endswith("_lt") and split == "train" and found.labels is not None:
            return found.subset(torch.from_numpy(long_tail_indices(found.labels.numpy())))
        return found
    path = Path(name_or_path)
    if not path.is_dir():  # the name of a folder of prepared data?
        path = data_root(data_dir) / name_or_path
    if not path.is_dir():
        raise ParameterError(
            "dataset",
            f"{name_or_path!r} is neither a folder nor a known data set; known are {', '.join((*SET_NAMES, 'shapes'))}",
        )
    name = path.resolve().name
    if next(path.rglob("*.parquet"), None) is not None:
        return _from_parquet(path, split, name)
    return _from_folder(path, split, name, variant_of(path))


def _prepared(name: str, split: str, root: Path) -> ImageSet:
    folder = root / name.replace("_", "-")
    manifest = read_manifest(folder)
    if manifest is not None and manifest.folder is not None:
        listed = folder / CLASSES
        classes = listed.read_text(encoding="utf-8").split() if listed.is_file() else None
        return _from_folder(Path(manifest.folder), split, name, manifest.variant, classes)
    if not folder.is_dir():
        raise ParameterError(
            "dataset",
            f"{name} has not been prepared ({folder} does not exist). Run dystress prepare {folder.name}, or name a "
            "folder with your own images",
        )
    return _from_parquet(folder, split, name)


def _from_parquet(folder: Path, split: str, name: str) -> ImageSet:
    found = sorted(folder.rglob("*.parquet"))
    named = ([path for path in found if path.name.startswith(prefix)] for prefix in _SPLITS[split])
    files = next((paths for paths in named if paths), [])  # never test and validation together
    if not files:
        raise NoSuchSplitError(
            "dataset", f"{str(folder)!r} has no parquet files of the {split} split ({split}-*.parquet)"
        )
    pictures, labels, classes = read_parquet(files)
    return _checked(ImageSet(None, pictures, labels, classes, name, variant_of(folder)), split, folder)


def _from_folder(root: Path, split: str, name: str, variant: str | None, classes: list[str] | None = None) -> ImageSet:
    """Class folders, or images without classes. ``classes`` selects and orders the class folders."""
    folder = _split_folder(root, split)
    if classes is None:
        # the training split numbers the classes, so that a test split without one of them agrees with it
        numbered = _split_folder(root, "train") if (root / "train").is_dir() else folder
        classes = sorted(path.name for path in numbered.iterdir() if path.is_dir())
        unknown = {path.name for path in folder.iterdir() if path.is_dir()} - set(classes)
        if unknown:
            raise DataError(f"{folder / min(unknown)}: a class that {numbered} does not have")
    files, others = _images_in(folder)
    if files and classes:
        raise DataError(f"{folder} has images next to class folders, such as {files[0].name}; move them into a class")
    labels: list[int] = []
    for label, class_name in enumerate(classes):
        place = folder / class_name
        of_class, more = _images_in(place) if place.is_dir() else ([], [])
        if not of_class and (place.is_dir() or split == "train"):
            raise DataError(f"{place} is a class without images")
        files += of_class
        others += more
        labels += [label] * len(of_class)
    if others:
        message = f"{len(others):,} files in {folder} are passed over, as their endings are not those of images"
        warnings.warn(f"{message}; the first: {others[0]}", stacklevel=3)
    found = ImageSet(
        None, Pictures.of_files(files), torch.tensor(labels) if classes else None, tuple(classes), name, variant
    )
    return _checked(found, split, folder)


def _images_in(folder: Path) -> tuple[list[Path], list[Path]]:
    """The images of a folder, and its other files."""
    images, others = image_and_other_names(folder)
    return [folder / name for name in images], [folder / name for name in others]


def _split_folder(root: Path, split: str) -> Path:
    """``root/train`` and the like. A folder without such folders is a training split as a whole."""
    for name in _SPLITS[split]:
        if (root / name).is_dir():
            return root / name
    divided = [name for names in _SPLITS.values() for name in names if (root / name).is_dir()]
    if split != "train" or divided:
        raise NoSuchSplitError(
            "dataset", f"{str(root)!r} has no {split} split (a folder {' or '.join(_SPLITS[split])})"
        )
    return root


def _checked(found: ImageSet, split: str, folder: Path) -> ImageSet:
    if len(found) == 0:
        raise DataError(f"{folder} has no images")
    if len(found) == 1 and split == "train":
        raise DataError(f"{folder} has one image only; contrastive training needs at least two")
    return found
