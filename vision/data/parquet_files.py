"""Parquet files of images in the hub's layout: which are a split's, and what they hold."""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from torch import Tensor

from dystress_text.errors import DataError, ParameterError, reason_of
from dystress_text.io.paths import cache_root
from vision.data.folders import SPLITS
from vision.data.image_files import ImageFiles

_IMAGE_COLUMNS = ("img", "image")
_LABEL_COLUMNS = ("label", "fine_label")  # CIFAR-100 has coarse ones too
# names of labels in some sets, and of other numbers and texts in others
_OTHER_LABEL_COLUMNS = ("labels", "class", "target")
_NAMES = "|".join(name for known in SPLITS.values() for name in known)
_KNOWN_NAME = re.compile(rf"({_NAMES})(?![a-z])", re.IGNORECASE)
_SHARD = re.compile(r"(.*?)[-_. ]?(\d+)(?:-of-(\d+))?(?:-[0-9a-f]{16})?")


class _Shard(NamedTuple):
    """A file of a split."""

    path: Path
    split: str
    folder: Path  # of all splits of a configuration
    number: int | None = None
    total: int | None = None


def _shard(path: Path) -> _Shard:
    """Describe a file such as ``train-00000-of-00005`` or ``train/0000``."""
    parts = _SHARD.fullmatch(path.stem)
    split = path.stem if parts is None else parts[1]
    folder = path.parent
    if _known_name(split) is None and folder.name.casefold() == _known_name(folder.name):
        split = folder.name
        folder = folder.parent
    if parts is None:
        return _Shard(path, split, folder)
    return _Shard(path, split, folder, int(parts[2]), int(parts[3]) if parts[3] else None)


def tables_of_split(tables: Sequence[Path], split: str) -> dict[str, list[Path]]:
    """Return the parquet files of a split by its names in them, the preferred one first.

    A set may have several test splits.

    Args:
        tables: all parquet files of a set.
        split: ``train`` or ``test``.

    Raises:
        DataError: files are missing, or of several splits or exports.
        ParameterError: the files are of several configurations.
    """
    by_name: dict[str, list[_Shard]] = defaultdict(list)
    for path in tables:
        shard = _shard(path)
        by_name[shard.split].append(shard)
    names = []
    for known in SPLITS[split]:
        names += [name for name in by_name if _known_name(name) == known]
    # test-mini is another split than test, but the test split of a set without test
    names = [name for name in names if name.casefold() in SPLITS[split]] or names
    if split == "train" and len(names) > 1:
        raise DataError(f"{' and '.join(names)} may be the training split; keep one")
    return {name: _files(by_name[name]) for name in names}


def _known_name(text: str) -> str | None:
    """Return the known name of a split that a text is or begins with, such as train-clean."""
    match = _KNOWN_NAME.match(text)
    return None if match is None else match[1].casefold()


def _files(shards: Sequence[_Shard]) -> list[Path]:
    """Return the files of all shards of a split, or raise an error if some are missing."""
    folders = sorted({str(shard.folder) for shard in shards})
    if len(folders) > 1:  # configurations may share their images
        reason = f"name one of the folders with parquet files: {', '.join(folders)}"
        raise ParameterError("dataset", reason)
    numbers = [shard.number for shard in shards if shard.number is not None]
    totals = {shard.total for shard in shards if shard.total is not None}
    if not totals and 0 in numbers:
        totals = {max(numbers) + 1}
    if totals and (len(shards) not in totals or sorted(numbers) != [*range(len(shards))]):
        names = ", ".join(shard.path.name for shard in shards)
        raise DataError(f"{folders[0]} has {names}: not one complete set of numbered files")
    return [shard.path for shard in shards]


def _cache(files: Sequence[Path]) -> str:
    """Return the folder for a copy of these files; changed files get another one."""
    identity = []
    for path in files:
        stat = path.stat()  # st_ctime, since st_mtime can be set
        identity.append((str(path.resolve()), stat.st_ino, stat.st_size, stat.st_ctime_ns))
    digest = hashlib.sha256(repr(identity).encode()).hexdigest()
    return str(cache_root() / "datasets" / digest[:32])


def read_labels(files: Sequence[Path]) -> tuple[Tensor | None, tuple[str, ...]]:
    """Return the labels of the rows and the names of the classes.

    Args:
        files: parquet files of a split, in order.

    Returns:
        Labels (rows,) and the names of the classes, which are numbers if the files give no names.
        None and no names without a column of labels, or if every label is -1, as in test splits on
        the hub.

    Raises:
        DataError: a file is damaged, or a label is not a class.
    """
    import datasets  # slow to import

    origin = _origin(files)
    with _naming(files):
        schema = pq.read_schema(files[0])
        name = _label_column(schema)
        if name is None:
            return None, ()
        tables = [pq.ParquetFile(file).read(columns=[name]) for file in files]
        column = pa.concat_tables(tables, promote_options="permissive")[name]
        feature = datasets.Features.from_arrow_schema(schema)[name]
    if not pa.types.is_integer(column.type):
        raise DataError(f"{origin}: labels are whole numbers, and column {name} has {column.type}")
    labels = column.to_pylist()
    if labels and set(labels) == {-1}:
        return None, ()
    if column.null_count:
        raise DataError(f"{origin} has rows without a class")
    names = getattr(feature, "names", None) or range(max(labels, default=-1) + 1)
    last = len(names) - 1
    if labels and (min(labels) < 0 or max(labels) > last):
        raise DataError(f"{origin} has labels outside the classes 0 to {last}")
    return torch.tensor(labels), tuple(map(str, names))


def read_parquet(files: Sequence[Path]) -> ImageFiles:
    """Return the images of parquet files.

    A row of a parquet file cannot be read without its neighbours. ``datasets`` therefore copies the
    files once to a cache, from where they are mapped into memory. The column's field ``bytes``
    holds image files.

    Args:
        files: of a split, in order.

    Raises:
        DataError: a file is damaged, or has no column of images.
    """
    import datasets  # slow to import

    datasets.disable_progress_bars()
    with _naming(files):
        schema = pq.read_schema(files[0])
        image = _image_column(schema)
        label = _label_column(schema)
        if image is None:
            raise ValueError(f"no column of images ({' or '.join(_IMAGE_COLUMNS)})")
        columns = [image]
        if label is not None:  # unused, but the copies of 0.2 have it
            columns.append(label)
        patterns = [escape(str(path.absolute())) for path in files]
        stored = datasets.Dataset.from_parquet(patterns, columns=columns, cache_dir=_cache(files))
        contents = pc.struct_field(stored.data.table[image], "bytes")
    if contents.null_count:
        raise DataError(f"{_origin(files)} has rows without an image")
    return ImageFiles(contents, np.arange(len(contents)), _origin(files))


def image_rows(file: Path) -> int:
    """Return the rows of a parquet file with images; 0 if it has none or cannot be read."""
    try:
        schema = pq.read_schema(file)
        return pq.read_metadata(file).num_rows if _image_column(schema) else 0
    except (pa.ArrowException, OSError, ValueError):
        return 0


def _image_column(schema: pa.Schema) -> str | None:
    """Return the column of files: one of the known names, else the only one with bytes."""
    with_bytes = []
    for entry in schema:
        if pa.types.is_struct(entry.type) and entry.type.get_field_index("bytes") >= 0:
            with_bytes.append(entry.name)
    for name in _IMAGE_COLUMNS:
        if name in with_bytes:
            return name
    return with_bytes[0] if len(with_bytes) == 1 else None


def _label_column(schema: pa.Schema) -> str | None:
    for name in _LABEL_COLUMNS:
        if name in schema.names:
            return name
    for name in _OTHER_LABEL_COLUMNS:
        if name in schema.names and pa.types.is_integer(schema.field(name).type):
            return name
    return None


def _origin(files: Sequence[Path]) -> str:
    first = str(files[0])
    if len(files) == 1:
        return first
    return f"{first} to {files[-1].name}"


@contextmanager
def _naming(files: Sequence[Path]) -> Iterator[None]:
    """Turn an error inside the context into a DataError that names the damaged file."""
    file = files[0]
    try:
        for file in files:
            pq.read_schema(file)
        yield
    except Exception as error:  # the libraries that read tables have many kinds
        reason = reason_of(error.__cause__ or error)
        raise DataError(f"{file} is damaged or has an unexpected layout: {reason}") from error
