"""Finding the images of a data set by its name or path, before any is decoded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import torch

from dystress_text.errors import DataError, ParameterError
from dystress_text.io.paths import data_root
from dystress_text.io.prepared_data import CLASSES, read_manifest, variant_of
from vision.data import SET_NAMES
from vision.data.folders import (
    SPLIT_NAMES,
    SPLITS,
    files_below,
    files_in,
    folder_names,
    is_divided,
    names_of_split,
    split_word,
)
from vision.data.image_files import ImageFiles
from vision.data.images import EncodedImages, NoAccuracyError
from vision.data.long_tail import RATIO, long_tail_indices
from vision.data.parquet_files import image_rows, read_parquet, tables_of_split
from vision.data.train_list import listed

# how further splits begin, as STL-10 and SVHN have them
_UNLABELLED = ("unlabel", "unsupervised", "extra")


def find_images(
    name_or_path: str, split: str, data_dir: str | None = None, train_list: str | None = None
) -> EncodedImages:
    """Find the images of a split without reading any.

    Args:
        name_or_path: a known set, or a folder of images or of parquet files.
        split: ``train`` or ``test``.
        data_dir: folder of prepared data.
        train_list: file that chooses the training images.
    """
    if not name_or_path:  # of "" pathlib makes the working directory
        raise ParameterError("dataset", "is empty; name a set or a folder")
    known = name_or_path.replace("-", "_")
    name = known if known in SET_NAMES else None
    root = data_root(data_dir)
    folder = _folder_of(name_or_path, name, root)
    images = _read(folder, split)
    if len(images) == 0:
        raise DataError("; ".join([f"{folder} has no images", *images.notes]))
    images = replace(images, name=name or folder.resolve().name, variant=variant_of(folder))
    labels = images.labels
    if split == "train" and train_list is not None:
        images = listed(images, Path(train_list))
    elif split == "train" and labels is not None and known.endswith("_lt") and name is not None:
        tail = images.subset(torch.from_numpy(long_tail_indices(labels.numpy())))
        images = tail.with_variant(f"long tail of ratio {RATIO}")
    return replace(images, files_id=images.checksum())


def _folder_of(name_or_path: str, name: str | None, root: Path) -> Path:
    """Return the folder of a known set, or the user's own, or one of prepared data."""
    if name is not None:
        folder = root / name.removesuffix("_lt").replace("_", "-")
        problem = (
            f"{folder.name} has not been prepared ({folder} does not exist). Run python "
            f"vision/prepare.py {folder.name}, or name a folder with your own images"
        )
    else:
        folder = Path(name_or_path)
        if not folder.is_dir():
            folder = root / name_or_path
        known = ", ".join(SET_NAMES)
        problem = (
            f"{name_or_path!r} is neither a folder nor a known data set; known are {known}, shapes"
        )
    if not folder.is_dir():
        raise ParameterError("dataset", problem)
    return folder


def _read(folder: Path, split: str) -> EncodedImages:
    """Return a split of a folder, or of the folder that prepared data point to."""
    manifest = read_manifest(folder)
    if manifest is not None and manifest.folder is not None:
        classes: list[str] = []
        file = folder / CLASSES
        if file.is_file():
            classes = file.read_text("utf-8").split()
        return read_folder(Path(manifest.folder), split, classes)
    pictures, others = files_below(folder)
    tables = [path for path in others if path.suffix == ".parquet"]
    if not tables:
        return read_folder(folder, split)
    if pictures and sum(map(image_rows, tables)) <= len(pictures):
        images = read_folder(folder, split)
        unread = tables
    else:
        images = _from_parquet(folder, tables, split)
        unread = pictures
    if not unread:
        return images
    reason = "of pictures and parquet files in one folder, those with more images are read"
    return images.noting(f"{len(unread):,} files are not read, such as {unread[0]}: {reason}")


def _from_parquet(folder: Path, tables: Sequence[Path], split: str) -> EncodedImages:
    files_of = tables_of_split(tables, split)
    read = cache(lambda name: read_parquet(files_of[name]))
    names = [*files_of]
    name, notes = _one_split(folder, names, split, lambda name: read(name).labels is not None)
    return replace(read(name), notes=notes)


def _one_split(
    root: Path, names: Sequence[str], split: str, has_labels: Callable[[str], bool]
) -> tuple[str, tuple[str, ...]]:
    """Return that of the names of a split which is read, and notes.

    Published test splits often have no labels: the first with labels is read.

    Raises:
        NoAccuracyError: there is none.
        DataError: several may be the training split.
    """
    if not names:
        name = SPLITS[split][0]
        reason = f"no {split} split, a folder {name} or files {name}-*.parquet"
        if split == "train":
            reason += "; move its other images there"
        raise NoAccuracyError("dataset", f"{str(root)!r} has {reason}")
    known = " and ".join(names)
    if len(names) == 1:
        return names[0], ()
    if split == "train":
        raise DataError(f"{known} of {root} may be the training split; keep one")
    chosen = next(filter(has_labels, names), names[0])
    return chosen, (f"of {known}, {chosen} is the test split: the first with labels, if any",)


def read_folder(root: Path, split: str, chosen: Sequence[str] = ()) -> EncodedImages:
    """Return the images of class folders, all or the chosen ones, or images without classes.

    Images next to folders have no class, so that those below the folders have none either.
    """
    folder, notes = _split_folder(root, split)
    classes = folder_names(folder)
    images, ignored = files_in(folder)
    if classes and chosen:
        # a test split may lack chosen classes
        classes = [name for name in chosen if split == "train" or name in classes]
    elif classes and images:
        beside = f"images next to folders, such as {images[0].name}"
        notes += (f"{folder} has {beside}: no classes, and all images are read without labels",)
        classes = []
    files: list[Path] = []
    labels: list[int] = []
    if not classes:
        files, ignored = files_below(folder)
    for label, name in enumerate(classes):
        if is_divided(folder_names(folder / name)):
            raise ParameterError("dataset", f"{folder / name} has splits; name it, or move them")
        images, others = files_below(folder / name)
        if not images:
            known = "no images of a known ending, such as .jpg,"
            raise DataError(f"{folder / name} has {known} and {len(others):,} other files")
        files += images
        ignored += others
        labels += [label] * len(images)
    if ignored:
        reason = "their endings are not those of images"
        first = f"The first: {ignored[0]}"
        notes += (f"{len(ignored):,} files in {folder} are ignored: {reason}. {first}",)
    contents = ImageFiles(files, np.arange(len(files)), str(folder))
    return EncodedImages(
        name="",
        files=contents,
        labels=torch.tensor(labels) if classes else None,
        classes=tuple(classes),
        notes=notes,
    )


def _split_folder(root: Path, split: str) -> tuple[Path, tuple[str, ...]]:
    """Return ``root/train`` and the like, and notes; an undivided root is the training split.

    Folders are splits only where all other folders with images are splits, too: a class may be
    called train. Longer names, such as train_images, are splits only where all folders have such.
    """
    names = folder_names(root)
    splits = [
        name for name in names if name.casefold() in SPLIT_NAMES and files_below(root / name)[0]
    ]
    if not splits and all(map(split_word, names)) and is_divided(names, split_word):
        splits = names
    others = [name for name in names if name not in splits]
    classes = []
    if splits:
        classes = [
            name
            for name in others
            if not name.casefold().startswith(_UNLABELLED) and files_below(root / name)[0]
        ]
    nested = any(folder_names(root / name) for name in splits)
    notes: tuple[str, ...] = ()
    if classes and not nested:
        notes = (f"{root / splits[0]} is not read as a split, because of {classes[0]}",)
        splits = []
    elif classes and not is_divided(splits):
        reason = f"{root / splits[0]} may be a split, or a class like {classes[0]}"
        raise ParameterError("dataset", f"{reason}; rename it, or move the others away")
    if not splits and split == "train":
        return root, notes
    of_split = names_of_split(splits, split, split_word)
    name, notes = _one_split(root, of_split, split, lambda name: bool(folder_names(root / name)))
    if split == "train":
        others += [path.name for path in files_in(root)[0][:1]]
        notes = tuple(f"{root / other} is not read, as it lies next to {name}" for other in others)
    return root / name, notes
