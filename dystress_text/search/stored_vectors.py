"""Vectors of length 1 as an index stores them: fp32, fp16, int8 with a scale a row, or bits of their signs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from dystress_text.errors import UserError

DTYPES = {"fp32": np.float32, "fp16": np.float16, "int8": np.int8, "binary": np.uint8}
LEVELS = 127  # of an int8 entry on either side of 0

Codes = NDArray[Any]
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Rows = NDArray[np.int64]


def check_dtype(dtype: str) -> None:
    """See whether vectors can be stored so.

    Raises:
        UserError: they cannot; the message names the ways there are.
    """
    if dtype not in DTYPES:
        raise UserError(f"dtype: unknown {dtype!r}; known are {', '.join(DTYPES)}")


@dataclass(frozen=True, eq=False)
class StoredVectors:
    """n vectors of ``dim`` entries.

    int8: each row has a scale of its own, its largest entry by 127, and entries are rounded to the nearest multiple. So
    a row depends on no other one: nothing is calibrated, nothing clipped, and rows that come later change none. Binary:
    a bit an entry, set where it is positive, the first entry in the highest bit of a byte (sentence-transformers'
    ``ubinary``; its ``binary`` is the same less 128).

    What is searched is what is stored: :meth:`block` and :meth:`take` give the rounded vectors, and of bits the vector
    of signs by sqrt(dim), of length 1. A product with a query of length 1 is for fp32, fp16 and int8 the cosine, up to
    rounding; for bits it is the cosine of query and signs, which ranks alike and is smaller.

    Attributes:
        dtype: ``fp32``, ``fp16``, ``int8`` or ``binary``.
        codes: (n, dim), of bits (n, ceil(dim / 8)).
        dim: entries of a vector.
        scales: (n,) fp32 of int8; None otherwise.
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
        """Room for so many vectors."""
        scales = np.empty(rows, np.float32) if dtype == "int8" else None
        return cls(dtype, np.empty((rows, width(dim, dtype)), DTYPES[dtype]), dim, scales)

    def __len__(self) -> int:
        return len(self.codes)

    def __getitem__(self, rows: slice) -> StoredVectors:
        """Some of the rows, without a copy."""
        return StoredVectors(self.dtype, self.codes[rows], self.dim, None if self.scales is None else self.scales[rows])

    def put(self, start: int, other: StoredVectors) -> None:
        """Copy vectors into the rows from ``start``."""
        rows = slice(start, start + len(other))
        self.codes[rows] = other.codes
        if self.scales is not None:
            self.scales[rows] = other.scales

    def joined(self, other: StoredVectors) -> StoredVectors:
        """These vectors and then the other ones, of the same ``dtype`` and size."""
        whole = StoredVectors.empty(len(self) + len(other), self.dim, self.dtype)
        whole.put(0, self)
        whole.put(len(self), other)
        return whole

    def block(self, start: int, stop: int) -> Float32:
        """Rows as fp32, (stop - start, dim), without a copy if they are."""
        codes = self.codes[start:stop]
        if self.dtype == "fp32":
            return codes
        if self.dtype == "binary":
            return self._signs(codes, np.float32)
        floats: Float32 = torch.from_numpy(codes).float().numpy()  # several times as fast as numpy
        if self.scales is not None:
            floats *= self.scales[start:stop, None]
        return floats

    def take(self, rows: Rows) -> Float64:
        """Rows by number, (m,), as fp64, (m, dim)."""
        if self.dtype == "binary":
            return self._signs(self.codes[rows], np.float64)
        taken: Float64 = self.codes[rows].astype(np.float64)
        if self.scales is not None:
            taken *= self.scales[rows, None]
        return taken

    def _signs(self, codes: Codes, dtype: Any) -> NDArray[Any]:
        """The signs that bits, (m, bytes), stand for, as a vector of length 1, (m, dim)."""
        one = dtype(self.dim**-0.5)
        signs: NDArray[Any] = np.unpackbits(codes, axis=1, count=self.dim).astype(dtype)
        signs *= 2 * one
        signs -= one
        return signs


def width(dim: int, dtype: str) -> int:
    """How many numbers a row of codes has."""
    return -(-dim // 8) if dtype == "binary" else dim
