"""Parquet files of images in the hub's layout: which are a split's, and what they hold."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from glob import escape
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch

from dystress_text.errors import DataError, ParameterError, reason_of
from dystress_text.io.paths import cache_root
from vision.data.folders import SPLIT_NAMES, names_of_split, split_word
from vision.data.image_files import ImageFiles
from vision.data.images import EncodedImages

_IMAGE_COLUMNS = ("img", "image")
_LABEL_COLUMNS = ("label", "labels", "fine_label", "class", "target")  # CIFAR-100 has coarse ones
_NUMBER = re.compile(r"[-_. ]?(\d+)(?:-of-(\d+))?(?:-[0-9a-f]{16})?$")  # and the hub's hash


def tables_of_split(tables: Sequence[Path], split: str) -> dict[str, list[Path]]:
    """Return the parquet files of a split by its names in them, the preferred one first.

    A set may have several test splits.

    Args:
        tables: all parquet files of a set.
        split: ``train`` or ``test``.

    Raises:
        DataError: numbered files are missing.
        ParameterError: the files are of several configurations.
    """
    by_name: dict[str, list[Path]] = defaultdict(list)
    for path in tables:
        by_name[_split_of(path)].append(path)
    # test-mini is another split than test, but the test split of a set without test
    names = names_of_split(by_name, split) or names_of_split(by_name, split, split_word)
    for name in names:
        _check_complete(name, by_name[name])
    return {name: by_name[name] for name in names}


def _split_of(path: Path) -> str:
    """Return the split in a name such as ``train-00000-of-00005`` or ``train/0000``."""
    name = _NUMBER.sub("", path.stem)
    folder = path.parent.name
    is_inside = not split_word(name) and folder.casefold() in SPLIT_NAMES
    return folder if is_inside else name


def _check_complete(name: str, files: Sequence[Path]) -> None:
    """Reject a split whose files are of several configurations, or not all that there were."""
    folders = {path.parent.parent if path.parent.name == name else path.parent for path in files}
    if len(folders) > 1:  # configurations may share their images
        reason = (
            f"name one of the folders with parquet files: {', '.join(map(str, sorted(folders)))}"
        )
        raise ParameterError("dataset", reason)
    matches = [_NUMBER.search(path.stem) for path in files]
    numbers = sorted(int(match[1]) for match in matches if match)
    totals = {int(match[2]) for match in matches if match and match[2]}
    first = min(numbers, default=0)
    if totals or any(path.stem.isdigit() for path in files):
        first = 0  # as the hub counts
    gaps = numbers and numbers != [*range(first, first + len(files))]
    prefixes = {_NUMBER.sub("", path.stem) for path in files}
    if totals - {len(files)} or (len(prefixes) == 1 and gaps):
        names = ", ".join(map(str, files))
        raise DataError(f"not all files of one numbered set, or of several: {names}")


def _links(files: Sequence[Path]) -> list[Path]:
    """Return links to these files in the folder for their copy; changed files get another one.

    A path may have signs that are patterns, variables or protocols for ``datasets``.
    """
    identity = []
    for path in files:
        stat = path.stat()  # st_ctime, since st_mtime can be set
        identity.append((str(path.resolve()), stat.st_ino, stat.st_size, stat.st_ctime_ns))
    digest = hashlib.sha256(repr(identity).encode()).hexdigest()
    folder = cache_root() / "datasets" / digest[:32]
    folder.mkdir(parents=True, exist_ok=True)
    links = []
    for number, path in enumerate(files):
        link = folder / f"{number}.parquet"
        with suppress(FileExistsError):
            link.symlink_to(path.absolute())
        links.append(link)
    return links


def read_parquet(files: Sequence[Path]) -> EncodedImages:
    """Return the images of parquet files, without a name.

    A row of a parquet file cannot be read without its neighbours. ``datasets`` therefore copies the
    files once to a cache, from where they are mapped into memory. The column's field ``bytes``
    holds image files. Classes are numbers if the files give no names. There are no labels if every
    label is -1, as in test splits on the hub.

    Args:
        files: of a split, in order.

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
        if label is None and _LABEL_COLUMNS[0] in schema.names:
            raise ValueError(
                f"labels are whole numbers, not {schema.field(_LABEL_COLUMNS[0]).type}"
            )
        columns = [image] if label is None else [image, label]
        links = _links(files)
        patterns = [escape(str(link)) for link in links]
        cache = str(links[0].parent)
        stored = datasets.Dataset.from_parquet(patterns, columns=columns, cache_dir=cache)
        contents = pc.struct_field(stored.data.table[image], "bytes")
    except Exception as error:  # the libraries that read tables have many kinds
        reason = reason_of(error.__cause__ or error)
        raise DataError(f"{file} is damaged or has an unexpected layout: {reason}") from error
    if contents.null_count:
        raise DataError(f"{origin} has rows without an image")
    rows = np.arange(len(contents))
    images = EncodedImages(name="", files=ImageFiles(contents, rows, origin))
    values = set() if label is None else {*stored.data.table[label].to_pylist()}
    if values <= {-1}:
        return images
    highest = max(values - {None}, default=-1)
    names = getattr(stored.features[label], "names", None) or range(highest + 1)
    strays = values - {*range(len(names))}
    if strays:
        known = f"one of the classes 0 to {len(names) - 1}"
        raise DataError(f"{origin} has the label {strays.pop()}, which is not {known}")
    labels = torch.tensor(stored.data.table[label].to_pylist())
    return replace(images, labels=labels, classes=tuple(map(str, names)))


def image_rows(file: Path) -> int:
    """Return the rows of a parquet file with images; 0 if it has none or cannot be read."""
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
