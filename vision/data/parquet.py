"""Pictures and classes of parquet files in the hub's layout."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from dystress_text.errors import DataError
from vision.data.pictures import PictureRows

MEMORY = 4 * 2**30  # bytes; larger sets of parquet files are mapped into memory instead of read
_IMAGE_COLUMNS = ("img", "image")
_LABEL_COLUMNS = ("label", "fine_label")  # CIFAR-100 has coarse ones too


def read_parquet(files: Sequence[Path]) -> tuple[PictureRows, list[int] | None, tuple[str, ...]]:
    """Pictures, their labels or None, and the names of the classes (numbers where the files do not name them).

    Args:
        files: of one split, with a column ``image`` or ``img``, whose field ``bytes`` holds image files, and perhaps
            one of classes, ``label`` or ``fine_label``.

    Raises:
        DataError: a file is damaged, lacks a column or has other columns than the first, or a row has no image or
            class.
    """
    shards = [_shard_of(path) for path in files]
    first = shards[0]
    for shard in shards[1:]:
        if (shard.image, shard.label) != (first.image, first.label):
            raise DataError(f"{shard.path} has columns of other names than {first.path}: {shard}, not {first}")
    table = _table_of(files, first.image, first.label)
    contents = pc.struct_field(table[first.image], "bytes")
    pictures = PictureRows(contents, files, [shard.count for shard in shards], np.arange(len(contents)))
    if contents.null_count:
        raise DataError(f"{pictures.origin(pc.index(pc.is_null(contents), True).as_py())} has no image")
    if first.label is None:
        return pictures, None, ()
    column = table[first.label]
    whole = pa.types.is_integer(column.type) and not column.null_count
    labels: list[int] = column.to_pylist() if whole else []
    named = next((shard.classes for shard in reversed(shards) if shard.classes), ())
    classes = named or tuple(str(label) for label in range(max(labels, default=-1) + 1))
    if not whole or any(not 0 <= label < len(classes) for label in labels):
        raise DataError(f"{files[0].parent} has rows without a class ({files[0].name} or the files after it)")
    return pictures, labels, classes


@dataclass(frozen=True)
class _Shard:
    """What a parquet file says of itself.

    Attributes:
        path: of the file.
        image: the column of images.
        label: the column of classes, or None.
        classes: their names; empty if the file does not say them.
        count: rows.
    """

    path: Path
    image: str
    label: str | None
    classes: tuple[str, ...]
    count: int

    def __str__(self) -> str:
        return f"{self.image!r} and {self.label!r}" if self.label else f"{self.image!r} alone"


def _shard_of(path: Path) -> _Shard:
    with _damage_of(path), pq.ParquetFile(path) as file:
        schema, count = file.schema_arrow, file.metadata.num_rows
        image = next((column for column in _IMAGE_COLUMNS if column in schema.names), None)
        label = next((column for column in _LABEL_COLUMNS if column in schema.names), None)
        if image is None:
            raise DataError(f"{path} has no column of images ({' or '.join(_IMAGE_COLUMNS)})")
        kind = schema.field(image).type
        if not pa.types.is_struct(kind) or kind.get_field_index("bytes") < 0:
            raise DataError(f"{path}: column {image!r} is of type {kind}; it needs a field 'bytes' with image files")
        return _Shard(path, image, label, () if label is None else _class_names(schema, label), count)


def _class_names(schema: pa.Schema, column: str) -> tuple[str, ...]:
    """As ``datasets`` records them in the file; empty without that record."""
    stored = (schema.metadata or {}).get(b"huggingface")
    feature = json.loads(stored)["info"]["features"].get(column, {}) if stored else {}
    return tuple(str(name) for name in feature.get("names", ()))


def _table_of(files: Sequence[Path], image: str, label: str | None) -> pa.Table:
    """The columns of images and, if there is one, of classes of all files.

    A row of a parquet file cannot be read without its neighbours, so random access would read each file many times. A
    large set is therefore copied once, by the hub's library into its cache, to a file that is mapped into memory.
    """
    labels = [] if label is None else [label]
    size = sum(path.stat().st_size for path in files)
    if size <= MEMORY:
        tables = []
        for path in files:
            with _damage_of(path), pq.ParquetFile(path) as file:
                tables.append(file.read([f"{image}.bytes", *labels]).replace_schema_metadata())
        with _damage_of(files[0].parent):
            return pa.concat_tables(tables, promote_options="permissive")
    from datasets import Dataset
    from datasets.config import HF_DATASETS_CACHE
    from datasets.exceptions import DatasetsError

    print(f"{size / 1e9:,.1f} GB of parquet files are copied once to {HF_DATASETS_CACHE} (HF_DATASETS_CACHE)")
    with _damage_of(files[0].parent, DatasetsError):
        stored = Dataset.from_parquet([str(path) for path in files], columns=[image, *labels])
    return stored.data.table


@contextmanager
def _damage_of(place: Path, *more: type[Exception]) -> Iterator[None]:
    """Turn what the libraries raise for a damaged file into one line."""
    usual = (pa.ArrowException, KeyError, TypeError, ValueError, OSError, AttributeError, RecursionError)
    try:
        yield
    except (*usual, *more) as error:
        raise DataError(f"{place} is damaged or of another layout: {' '.join(str(error).split())}") from error
