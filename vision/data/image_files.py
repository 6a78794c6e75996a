"""Encoded images of a split, read when they are needed: files, or rows of parquet files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from glob import escape
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from torch import Tensor

from dystress_text.errors import DataError, reason_of
from dystress_text.io.paths import cache_root

_IMAGE_COLUMNS = ("img", "image")
_LABEL_COLUMNS = ("label", "fine_label")  # CIFAR-100 has coarse ones too


@dataclass(frozen=True)
class ImageFiles:
    """Encoded images by their row."""

    contents: Sequence[Path] | pa.ChunkedArray  # paths, or a column of files, perhaps mapped
    rows: NDArray[np.int64]  # the chosen rows of the contents, in order
    origin: str = ""  # the folder of the paths, or the column's files for errors

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> tuple[bytes | Path, str]:
        """Return the content or the path of an image file, and its name in errors."""
        stored_row = int(self.rows[row])
        found = self.contents[stored_row]
        if isinstance(found, Path):
            return found, str(found)
        return found.as_py(), f"{self.origin}, row {stored_row}"

    def subset(self, rows: Sequence[int]) -> ImageFiles:
        """Return the files at ``rows``, in that order."""
        return replace(self, rows=self.rows[np.asarray(rows, dtype=np.int64)])

    def fingerprint(self) -> Iterable[bytes]:
        """Return the files' names, or the column's rows and the lengths of their content."""
        if isinstance(self.contents, pa.ChunkedArray):
            lengths = pc.binary_length(self.contents).to_numpy().astype(np.int64)
            return self.rows.tobytes(), lengths[self.rows].tobytes()
        paths = (self.contents[row] for row in self.rows)
        return (os.fsencode(f"{path.parent.name}/{path.name}\n") for path in paths)


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
        name = _first_of(_LABEL_COLUMNS, schema.names)
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
        names = pq.read_schema(files[0]).names
        image = _first_of(_IMAGE_COLUMNS, names)
        label = _first_of(_LABEL_COLUMNS, names)
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


def _first_of(known: Sequence[str], names: Sequence[str]) -> str | None:
    for name in known:
        if name in names:
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
