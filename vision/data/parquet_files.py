"""Parquet files of images in the hub's layout: those of a split, and their columns."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from glob import escape
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from dystress_text.errors import DataError, ParameterError, reason_of
from dystress_text.io.paths import cache_root
from vision.data.images import EncodedImages, ImageFiles
from vision.data.splits import choose_split, exact_splits, names_of_split, split_word

_IMAGE_COLUMNS = ("img", "image")
_LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "target")  # CIFAR-100 has coarse ones
_NUMBER = re.compile(r"[-_. ]?(\d+)(?:-of-(\d+))?(?:-[0-9a-f]{16})?$")  # and the hub's hash


def read_tables(root: Path, files: Sequence[Path], split: str) -> EncodedImages:
    """Read the images of a split from parquet files; the caller names the set.

    Args:
        root: folder of the set.
        files: all parquet files of the set.
        split: ``train`` or ``test``.

    Raises:
        DataError: numbered files are missing, or a file cannot be used.
        ParameterError: the files are of several configurations.
    """
    by_name: dict[str, list[Path]] = defaultdict(list)
    for path in files:
        by_name[_split_of(path)].append(path)

    def names_of(split: str) -> list[str]:
        # test-mini is another split than test, but the test split of a set without test
        return names_of_split(exact_splits(by_name), split) or names_of_split(by_name, split)

    names = names_of(split)
    for name in names:
        _check_complete(name, by_name[name])
    unread = [by_name[name][0] for name in by_name if name not in names + names_of("test")]
    read = cache(lambda name: read_parquet(by_name[name]))
    name, notes = choose_split(
        root, names, split, lambda name: read(name).labels is not None, unread
    )
    return replace(read(name), notes=notes)


def _split_of(path: Path) -> str:
    """Return the split in a name such as ``train-00000-of-00005`` or ``train/0000``."""
    name = _NUMBER.sub("", path.stem)
    folder = path.parent.name
    is_inside = not split_word(name) and exact_splits([folder])
    return folder if is_inside else name


def _check_complete(name: str, files: Sequence[Path]) -> None:
    """Reject a split whose files belong to several configurations, or of which some are missing."""
    folders = {path.parent.parent if path.parent.name == name else path.parent for path in files}
    if len(folders) > 1:  # configurations may share their images
        known = ", ".join(map(str, sorted(folders)))
        raise ParameterError("dataset", f"name one of the folders with parquet files: {known}")
    stems = [path.stem for path in files]
    matches = [*filter(None, map(_NUMBER.search, stems))]
    numbers = sorted(int(match[1]) for match in matches)
    totals = {int(match[2]) for match in matches if match[2]}
    first = min(numbers, default=0)
    if totals or any(map(str.isdigit, stems)):
        first = 0  # as the hub counts
    gaps = numbers and numbers != [*range(first, first + len(files))]
    prefixes = {_NUMBER.sub("", stem) for stem in stems}
    if totals - {len(files)} or (len(prefixes) == 1 and gaps):
        listed = ", ".join(map(str, files))
        reason = "the numbers of these files have gaps, or belong to several sets"
        raise DataError(f"{reason}; keep all files of one set: {listed}")


def read_parquet(files: Sequence[Path]) -> EncodedImages:
    """Read the images in parquet files; the caller names the set.

    A row of a parquet file cannot be read without its neighbours. ``datasets`` therefore copies the
    files once to a cache, from where they are mapped into memory. The column's field ``bytes``
    holds image files. Classes are numbers if the files give no names. There are no labels if every
    label is -1, as in test splits on the hub.

    Args:
        files: the files of a split, in order.

    Raises:
        DataError: a file is damaged or has no column of images, or a label is not a class.
    """
    import datasets  # slow to import

    datasets.disable_progress_bars()
    origin = f"{files[0]} to {files[-1].name}" if len(files) > 1 else str(files[0])
    try:
        for file in reversed(files):  # the first is the last
            schema = pq.read_schema(file)
        image, label = columns_of(schema)
        if image is None:
            raise ValueError(f"no column of images ({' or '.join(_IMAGE_COLUMNS)})")
        if label is None and "label" in schema.names:
            raise ValueError(f"labels are whole numbers, not {schema.field('label').type}")
        columns = [image] if label is None else [image, label]
        links = _link_in_cache(files)
        patterns = [escape(str(link)) for link in links]
        stored = datasets.Dataset.from_parquet(
            patterns, columns=columns, cache_dir=str(links[0].parent)
        )
        table = stored.data.table
        contents = pc.struct_field(table[image], "bytes")
    except Exception as error:  # the libraries that read tables have many kinds
        reason = reason_of(error.__cause__ or error)
        raise DataError(f"{file} is damaged or has an unexpected layout: {reason}") from error
    if contents.null_count:
        raise DataError(f"{origin} has rows without an image")
    images = EncodedImages(name="", files=ImageFiles(contents, np.arange(len(contents)), origin))
    labels = [] if label is None else table[label].to_pylist()
    values = set(labels)
    if values <= {-1}:
        return images
    highest = max(values - {None}, default=-1)
    names = getattr(stored.features[label], "names", None) or range(highest + 1)
    strays = values - {*range(len(names))}
    if strays:
        known = f"one of the classes 0 to {len(names) - 1}"
        raise DataError(f"{origin} has the label {strays.pop()}, which is not {known}")
    return replace(images, labels=torch.tensor(labels), classes=tuple(map(str, names)))


def _link_in_cache(files: Sequence[Path]) -> list[Path]:
    """Link to the files from a cache folder; changed files have another folder.

    Their own paths may contain characters that ``datasets`` reads as patterns, variables or
    protocols.
    """
    identity = []
    for path in files:
        stat = path.stat()  # st_ctime, since st_mtime can be set
        identity.append((str(path.resolve()), stat.st_ino, stat.st_size, stat.st_ctime_ns))
    digest = hashlib.sha256(repr(identity).encode()).hexdigest()
    folder = cache_root() / "datasets" / digest[:32]
    folder.mkdir(parents=True, exist_ok=True)
    links = [folder / f"{number}.parquet" for number in range(len(files))]
    for link, path in zip(links, files, strict=True):
        with suppress(FileExistsError):
            link.symlink_to(path.absolute())
    return links


def count_images(file: Path) -> int:
    """Return the number of images in a parquet file; 0 if it cannot be read."""
    try:
        metadata = pq.read_metadata(file)
        image, _ = columns_of(metadata.schema.to_arrow_schema())
        return metadata.num_rows if image else 0
    except (pa.ArrowException, OSError):
        return 0


def columns_of(schema: pa.Schema) -> tuple[str | None, str | None]:
    """Return the names of the columns of images and of labels; None for one that is missing."""
    structs = {field.name for field in schema if pa.types.is_struct(field.type)}
    integers = {field.name for field in schema if pa.types.is_integer(field.type)}
    image = next(filter(structs.__contains__, _IMAGE_COLUMNS), None)
    label = next(filter(integers.__contains__, _LABEL_COLUMNS), None)
    return image, label
