"""Encoded images of a split, read when they are needed: files, or rows of parquet files."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


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
        content = self.contents[int(self.rows[row])]
        if not isinstance(content, Path):
            content = content.as_py()
        return content, self.name(row)

    def name(self, row: int) -> str:
        """Return the path of an image file, or the files of the column and its row."""
        stored_row = int(self.rows[row])
        if isinstance(self.contents, pa.ChunkedArray):
            return f"{self.origin}, row {stored_row}"
        return str(self.contents[stored_row])

    def subset(self, rows: NDArray[np.int64]) -> ImageFiles:
        """Return the files at ``rows``, in that order."""
        return replace(self, rows=self.rows[rows])

    def fingerprint(self) -> Iterable[bytes]:
        """Return the files' names, or the column's rows and the lengths of their content."""
        if isinstance(self.contents, pa.ChunkedArray):
            lengths = pc.binary_length(self.contents).to_numpy().astype(np.int64)
            return self.rows.tobytes(), lengths[self.rows].tobytes()
        paths = (self.contents[row] for row in self.rows)
        return (os.fsencode(f"{path.parent.name}/{path.name}\n") for path in paths)
