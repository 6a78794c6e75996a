"""Unit vectors as an index stores them: fp32, fp16, int8 with a scale for each row, or the bits of their signs.

sentence-transformers' ``quantize_embeddings`` makes the same bits, but importing it takes seconds. Its int8 takes the
ranges of its columns from all vectors, which a streamed build does not have, and rounds down instead of to nearest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dystress_text.errors import UserError

DTYPES = {"fp32": np.float32, "fp16": np.float16, "int8": np.int8, "binary": np.uint8}
LEVELS = 127  # largest absolute value of an int8 entry

Codes = NDArray[Any]
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
RowNumbers = NDArray[np.int64]


def check_dtype(dtype: str) -> None:
    """Check the name of a way to store vectors.

    Raises:
        UserError: the name is unknown.
    """
    if dtype not in DTYPES:
        raise UserError(f"dtype: unknown {dtype!r}; known are {', '.join(DTYPES)}")


@dataclass(frozen=True, eq=False)
class StoredVectors:
    """n vectors of ``dim`` entries.

    int8: a row's scale is its largest absolute entry / 127, and each entry is rounded to the nearest multiple of it. A
    row depends on no other row, so nothing is calibrated or clipped, and later rows change no earlier ones. Binary: one
    bit for each entry, set where the entry is positive; the first entry is the highest bit of a byte
    (sentence-transformers' ``ubinary``; its ``binary`` is the same minus 128).

    Search uses the rounded vectors that :meth:`floats` gives; bits stand for the vector of signs / sqrt(dim), of
    length 1. The product with a unit query is the cosine, up to rounding, for fp32, fp16 and int8. For bits it is the
    cosine of query and signs, which ranks alike and is smaller.

    Attributes:
        dtype: ``fp32``, ``fp16``, ``int8`` or ``binary``.
        codes: (n, dim); bits (n, ceil(dim / 8)).
        dim: entries of a vector.
        scales: (n,) fp32 for int8; None otherwise.
    """

    dtype: str
    codes: Codes
    dim: int
    scales: Float32 | None = None

    @classmethod
    def of(cls, vectors: Float32, dtype: str) -> StoredVectors:
        """Round vectors, (n, dim), to ``dtype``.

        Raises:
            UserError: unknown ``dtype``.
        """
        check_dtype(dtype)
        dim = vectors.shape[1]
        if dtype == "binary":
            return cls(dtype, np.packbits(vectors > 0, axis=1), dim)
        if dtype == "int8":
            scales = np.abs(vectors).max(axis=1) / np.float32(LEVELS)  # (n,)
            codes = np.rint(vectors / np.where(scales > 0, scales, 1)[:, None])  # (n, dim)
            return cls(dtype, codes.astype(np.int8), dim, scales)
        return cls(dtype, vectors.astype(DTYPES[dtype], copy=False), dim)

    @classmethod
    def empty(cls, rows: int, dim: int, dtype: str) -> StoredVectors:
        """Uninitialised memory for ``rows`` vectors."""
        scales = np.empty(rows, np.float32) if dtype == "int8" else None
        return cls(dtype, np.empty((rows, width(dim, dtype)), DTYPES[dtype]), dim, scales)

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: slice) -> StoredVectors:
        """Some of the rows, without a copy."""
        return StoredVectors(self.dtype, self.codes[rows], self.dim, None if self.scales is None else self.scales[rows])

    def put(self, start: int, other: StoredVectors) -> None:
        """Copy ``other`` into the rows from ``start``."""
        rows = slice(start, start + len(other))
        self.codes[rows] = other.codes
        if self.scales is not None:
            self.scales[rows] = other.scales

    def joined(self, other: StoredVectors) -> StoredVectors:
        """These vectors followed by ``other``, of the same ``dtype`` and size."""
        whole = StoredVectors.empty(len(self) + len(other), self.dim, self.dtype)
        whole.put(0, self)
        whole.put(len(self), other)
        return whole

    def floats(self, rows: slice | RowNumbers, dtype: type[np.floating[Any]] = np.float32) -> NDArray[Any]:
        """Rows in fp32 or fp64, (m, dim); a slice of fp32 vectors is not copied."""
        codes = self.codes[rows]
        if self.dtype == "binary":
            codes = np.unpackbits(codes, axis=1, count=self.dim)
        # to fp32 torch is several times as fast as NumPy, to fp64 slower
        floats: NDArray[Any] = torch.from_numpy(codes).float().numpy() if dtype is np.float32 else codes.astype(dtype)
        if self.dtype == "binary":
            unit = dtype(self.dim**-0.5)
            floats *= 2 * unit
            floats -= unit
        elif self.scales is not None:
            floats *= self.scales[rows, None]
        return floats


def width(dim: int, dtype: str) -> int:
    """Entries of a row of codes."""
    return -(-dim // 8) if dtype == "binary" else dim
