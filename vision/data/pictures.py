"""Encoded pictures of a split, which are read when they are asked for: files, or rows of parquet files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


class Pictures(Protocol):
    """Encoded pictures by their row."""

    def __len__(self) -> int: ...

    def content(self, row: int) -> bytes | Path:
        """The content of an image file, or its path."""

    def origin(self, row: int) -> str:
        """The picture's name in errors."""

    def subset(self, rows: Sequence[int]) -> Pictures:
        """The pictures at ``rows``, in that order."""

    def fingerprint(self) -> Iterable[bytes]:
        """Names and sizes of the pictures, for a checksum."""


@dataclass(frozen=True)
class PictureFiles:
    """Pictures in files of their own."""

    paths: Sequence[Path]

    def __len__(self) -> int:
        return len(self.paths)

    def content(self, row: int) -> Path:
        return self.paths[row]

    def origin(self, row: int) -> str:
        return str(self.paths[row])

    def subset(self, rows: Sequence[int]) -> PictureFiles:
        return PictureFiles([self.paths[row] for row in rows])

    def fingerprint(self) -> Iterable[bytes]:
        return (f"{path.parent.name}/{path.name} {path.stat().st_size}\n".encode() for path in self.paths)


@dataclass(frozen=True)
class PictureRows:
    """Pictures in rows of parquet files.

    Attributes:
        contents: (n,) binary; in memory, or mapped into it from a file.
        shards: the parquet files, in the order of their rows.
        counts: rows of each.
        rows: (m,) the rows that are chosen, in order.
    """

    contents: pa.ChunkedArray
    shards: Sequence[Path]
    counts: Sequence[int]
    rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)

    def content(self, row: int) -> bytes:
        content: bytes = self.contents[int(self.rows[row])].as_py()
        return content

    def origin(self, row: int) -> str:
        place, ends = int(self.rows[row]), np.cumsum(self.counts)
        shard = int(np.searchsorted(ends, place, side="right"))
        return f"{self.shards[shard]}, row {place - (int(ends[shard]) - self.counts[shard])}"

    def subset(self, rows: Sequence[int]) -> PictureRows:
        return PictureRows(self.contents, self.shards, self.counts, self.rows[np.asarray(rows, dtype=np.int64)])

    def fingerprint(self) -> Iterable[bytes]:
        lengths = pc.binary_length(self.contents).to_numpy()
        yield from (f"{path.name} {count}\n".encode() for path, count in zip(self.shards, self.counts, strict=True))
        yield self.rows.tobytes()
        yield lengths.astype(np.int64)[self.rows].tobytes()
