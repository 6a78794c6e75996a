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
from vision.data.folders import SPLITS, files_below, folder_names, image_names
from vision.data.image_files import ImageFiles
from vision.data.images import EncodedImages, NoAccuracyError
from vision.data.long_tail import RATIO, long_tail_indices
from vision.data.parquet_files import image_rows, read_parquet, tables_of_split
from vision.data.train_list import listed

_UNLABELLED = {
    "unlabeled",
    "unlabelled",
    "unsupervised",
    "extra",
}  # further splits, as STL-10 and SVHN have them


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
    known = name_or_path.replace("-", "_")
    name = known if known in SET_NAMES else None
    root = data_root(data_dir)
    folder = _folder_of(name_or_path, name, root)
    images = _read(folder, split)
    if len(images) == 0:
        raise DataError(f"{folder} has no images")
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
        return _from_folder(Path(manifest.folder), split, classes)
    pictures, others = files_below(folder)
    tables = [path for path in others if path.suffix == ".parquet"]
    if not tables:
        return _from_folder(folder, split)
    if pictures and sum(map(image_rows, tables)) <= len(pictures):
        images = _from_folder(folder, split)
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
    if not files_of:
        wanted = f"parquet files of the {split} split ({split}-*.parquet)"
        raise NoAccuracyError("dataset", f"{str(folder)!r} has no {wanted}")
    read = cache(lambda name: read_parquet(files_of[name]))
    name, notes = _preferred([*files_of], lambda name: read(name).labels is not None)
    return replace(read(name), notes=tuple(notes))


def _preferred(names: Sequence[str], has_labels: Callable[[str], bool]) -> tuple[str, list[str]]:
    """Return the first of the test splits that has labels, else the first, and a note of others.

    Published test splits often have no labels.
    """
    if len(names) == 1:
        return names[0], []
    chosen = next(filter(has_labels, names), names[0])
    known = ", ".join(names)
    return chosen, [f"of {known}, {chosen} is the test split: the first with labels, if any"]


def _from_folder(root: Path, split: str, chosen: Sequence[str] = ()) -> EncodedImages:
    """Return the images of class folders, all or the chosen ones, or images without classes.

    Images next to folders have no class, so that those below the folders have none either.
    """
    folder, notes = _split_folder(root, split)
    sources = [folder / name for name in folder_names(folder)]
    if sources and chosen:
        known = {*sources}
        # a test split may lack chosen classes
        sources = [folder / name for name in chosen]
        sources = [source for source in sources if split == "train" or source in known]
    elif sources and image_names(folder):
        note = f"{folder} has images next to folders, so that those are no classes: all images"
        notes.append(f"{note} are read, without labels")
        sources = []
    classes: list[str] = []
    files: list[Path] = []
    ignored: list[Path] = []
    labels: list[int] = []
    for source in sources or [folder]:
        images, others = files_below(source)
        if not images:
            problem = f"{source} has no images"
            if others:
                problem += f" of a known ending, such as .jpg; it has {others[0].name}"
            raise DataError(problem)
        files += images
        ignored += others
        labels += [len(classes)] * len(images)
        classes.append(source.name)
    if ignored:
        notes.append(
            f"{len(ignored):,} files in {folder} are ignored: their endings are not those of "
            f"images. The first: {ignored[0]}"
        )
    contents = ImageFiles(files, np.arange(len(files)), str(folder))
    images_found = EncodedImages(name="", files=contents, notes=tuple(notes))
    if not sources:
        return images_found
    return replace(images_found, labels=torch.tensor(labels), classes=tuple(classes))


def _split_folder(root: Path, split: str) -> tuple[Path, list[str]]:
    """Return ``root/train`` and the like, and notes; an undivided root is the training split.

    Folders are splits only where all other folders with images are splits, too: a class may be
    called train.
    """
    names = {kind: _split_names(root, kind) for kind in SPLITS}
    splits = names["train"] + names["test"]
    others = [name for name in folder_names(root) if name not in splits] if splits else []
    classes = [name for name in others if name.casefold() not in _UNLABELLED]
    classes = [name for name in classes if files_below(root / name)[0]]
    nested = any(folder_names(root / name) for name in splits)
    if classes and nested and not all(names.values()):
        reason = f"{root / splits[0]} may be a split, or a class like {classes[0]}"
        raise ParameterError("dataset", f"{reason}; rename it, or move the others away")
    notes: list[str] = []
    if classes and not nested:
        notes.append(f"{root / splits[0]} is not read as a split, because of {classes[0]}")
        splits = []
    if not splits and split == "train":
        return root, notes
    if not splits or not names[split]:
        problem = f"{str(root)!r} has no {split} split (a folder {SPLITS[split][0]})"
        if splits:
            problem += f"; it has only {splits[0]}; move the other images or class folders to train"
        raise NoAccuracyError("dataset", problem)
    name = names[split][0]
    if split == "test":
        name, notes = _preferred(names[split], lambda name: bool(folder_names(root / name)))
    elif len(names[split]) > 1:
        both = " and ".join(names[split])
        raise DataError(f"{root} has {both}; keep one for the training split")
    else:
        others += image_names(root)[:1]
        notes = [f"{root / other} is not read, as it lies next to {name}" for other in others]
    return root / name, notes


def _split_names(root: Path, split: str) -> list[str]:
    """Return the names of a split's folders, the preferred one first."""
    known = SPLITS[split]
    names = [name for name in folder_names(root) if name.casefold() in known]
    return sorted(names, key=lambda name: known.index(name.casefold()))
