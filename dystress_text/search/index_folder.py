"""The folder of a saved index: written as sentences and vectors come, complete or not there, mapped when it is read.

index.json      format, dtype, number of sentences and dimensions
vectors.npy     as stored; int8 has scales.npy beside it
probe.npy       the first vectors in fp32, by which another model is known
sentences.txt   UTF-8, and offsets.npy says where each begins
graph.usearch   of an approximate index
manifest.json   sizes and checksums
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from dystress_text.errors import UserError
from dystress_text.files.whole import MANIFEST, damage_of, recover, seal
from dystress_text.search.nearest_rows import usearch
from dystress_text.search.stored_vectors import DTYPES, Float32, StoredVectors, width

FORMAT = 2  # of the folder
CARD, VECTORS, SCALES, PROBE = "index.json", "vectors.npy", "scales.npy", "probe.npy"
TEXT, OFFSETS, GRAPH = "sentences.txt", "offsets.npy", "graph.usearch"
PROBED = 4  # vectors kept in fp32


class StoredText(Sequence[str]):
    """The sentences of a saved index, each read as it is asked for.

    Raises:
        ValueError: the files do not belong together.
    """

    def __init__(self, folder: Path) -> None:
        self._offsets = np.load(folder / OFFSETS, mmap_mode="r", allow_pickle=False)  # (n + 1,)
        self._text = np.memmap(folder / TEXT, dtype=np.uint8, mode="r")
        if self._offsets[-1] != len(self._text):
            raise ValueError(f"{TEXT} is not what was written")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return [self[i] for i in range(*row.indices(len(self)))]
        if not -len(self) <= row < len(self):
            raise IndexError(row)
        start, end = (int(place) for place in self._offsets[row % len(self) :][:2])
        return self._text[start : end - 1].tobytes().decode()


@dataclass(frozen=True)
class IndexFiles:
    """What a folder holds, mapped.

    Attributes:
        sentences: n of them.
        stored: their vectors.
        probe: the first of them as they were, 1 to 4, (p, dim) fp32.
        graph: usearch's, or None.
    """

    sentences: StoredText
    stored: StoredVectors
    probe: Float32
    graph: Any


class IndexWriter:
    """Writes sentences and their vectors behind those that a folder has; closing it makes the files whole.

    Args:
        folder: new, or with the files of an index that is added to.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._text = (folder / TEXT).open("ab")
        self._offsets = _GrowingArray(folder / OFFSETS)
        self._vectors, self._scales = _GrowingArray(folder / VECTORS), _GrowingArray(folder / SCALES)
        self._card: dict[str, Any] = {}

    def __enter__(self) -> IndexWriter:
        return self

    def write(self, sentences: Sequence[str], stored: StoredVectors) -> None:
        """Append sentences with their vectors."""
        lines = [sentence.encode() + b"\n" for sentence in sentences]  # a line feed behind each is for human readers
        ends = self._text.tell() + np.cumsum([len(line) for line in lines])
        self._text.write(b"".join(lines))
        self._offsets.append(ends if self._offsets.rows else np.concatenate([[0], ends]))
        self._vectors.append(stored.codes)
        if stored.scales is not None:
            self._scales.append(stored.scales)
        self._card = {"format": FORMAT, "sentences": self._vectors.rows, "dim": stored.dim, "dtype": stored.dtype}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in (self._text, self._offsets, self._vectors, self._scales):
            file.close()
        if kind is None and self._card:
            (self._folder / CARD).write_text(json.dumps(self._card, indent=1) + "\n", encoding="utf-8")


class _GrowingArray:
    """An .npy file that rows are appended to. numpy leaves room in its header for the number of rows to grow."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        self._header: dict[str, Any] = {}
        self.rows = 0
        if path.exists():
            array = np.load(path, mmap_mode="r", allow_pickle=False)
            self._file = self._begin(array, "ab")
            self.rows = len(array)

    def append(self, rows: NDArray[Any]) -> None:
        """Write rows, of the same kind each time, at the end."""
        if self._file is None:
            self._file = self._begin(rows, "wb")
            self._write_header(self._file)
        self._file.write(np.ascontiguousarray(rows).data)
        self.rows += len(rows)

    def close(self) -> None:
        """Write how many rows there are."""
        if self._file is not None:
            self._file.close()
            with self._path.open("r+b") as file:
                self._write_header(file)

    def _begin(self, rows: NDArray[Any], mode: Literal["ab", "wb"]) -> BinaryIO:
        self._header = {"descr": npy.dtype_to_descr(rows.dtype), "fortran_order": False, "shape": rows.shape[1:]}
        return self._path.open(mode)

    def _write_header(self, file: BinaryIO) -> None:
        npy.write_array_header_1_0(file, self._header | {"shape": (self.rows, *self._header["shape"])})


def open_index(folder: Path, check: bool) -> IndexFiles:
    """Map the files of an index.

    Args:
        folder: where they are.
        check: compare checksums of all files, which reads them once.

    Raises:
        UserError: no index, a damaged one, or one with a graph without usearch.
    """
    check_index(folder)
    damage = damage_of(folder) if check else None
    if damage is not None:
        raise UserError(f"the index {str(folder)!r} is damaged: {damage}")
    try:
        card = json.loads((folder / CARD).read_text(encoding="utf-8"))
        if card["format"] != FORMAT:
            raise UserError(
                f"the index {str(folder)!r} has format {card['format']}, this version reads {FORMAT}: build it again"
            )
        count, dim = card["sentences"], card["dim"]
        stored = map_vectors(folder, card["dtype"], dim)
        probe = np.load(folder / PROBE, allow_pickle=False)
        sentences = StoredText(folder)
        if (
            count < 1
            or (len(stored), len(sentences)) != (count, count)
            or (probe.shape, probe.dtype) != ((len(probe), dim), np.float32)
            or not 1 <= len(probe) <= count
        ):
            raise ValueError("its files do not belong together")
        graph = usearch().Index.restore(str(folder / GRAPH), view=True) if (folder / GRAPH).is_file() else None
    except (OSError, ValueError, KeyError, TypeError, IndexError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"the index {str(folder)!r} is damaged: {reason}") from error
    return IndexFiles(sentences, stored, probe, graph)


def map_vectors(folder: Path, dtype: str, dim: int) -> StoredVectors:
    """The vectors of an index, mapped.

    Raises:
        OSError, ValueError, KeyError: they are not there, or others.
    """
    # "c" is a private map: torch wants arrays that could be written
    codes = np.load(folder / VECTORS, mmap_mode="c", allow_pickle=False)
    scales = np.load(folder / SCALES, mmap_mode="c", allow_pickle=False) if dtype == "int8" else None
    if codes.dtype != DTYPES[dtype] or codes.shape != (len(codes), width(dim, dtype)):
        raise ValueError(f"{VECTORS} is not what was written")
    if scales is not None and (scales.dtype != np.float32 or scales.shape != (len(codes),)):
        raise ValueError(f"{SCALES} is not what was written")
    return StoredVectors(dtype, codes, dim, scales)


def check_new_folder(folder: Path, overwrite: bool = False) -> None:
    """See whether an index can be written to a folder.

    Raises:
        UserError: it holds something, and that is no index to overwrite.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{str(folder)!r} is a file; name a folder for the index")
    if folder.is_dir() and any(folder.iterdir()) and not (overwrite and (folder / CARD).is_file()):
        raise UserError(f"the folder {str(folder)!r} is not empty; name another one for the index")


def check_index(folder: Path) -> None:
    """See whether a folder holds an index.

    Raises:
        UserError: it does not.
    """
    recover(folder)
    if not (folder / CARD).is_file() or not (folder / MANIFEST).is_file():
        raise UserError(f"{str(folder)!r} holds no index")


@contextmanager
def new_index(folder: Path, overwrite: bool = False) -> Iterator[Path]:
    """A folder to write an index to, which takes the place of ``folder`` when it is complete.

    Whatever happens before that, a crash included, ``folder`` is as it was. One program writes at a time.

    Args:
        folder: where the index shall be.
        overwrite: replace an index that is there.

    Raises:
        UserError: the folder cannot be written, holds something else, or is being written by another program.
    """
    place = folder.resolve()
    staging = place.with_name(f".{place.name}.writing")
    try:
        recover(place)
        check_new_folder(folder, overwrite)
        staging.mkdir(parents=True, exist_ok=True)
        lock = os.open(staging, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(lock), staging.stat()):
                raise BlockingIOError  # the other program has just finished
        except BlockingIOError:
            os.close(lock)
            raise UserError(f"another program is writing the index {str(folder)!r}; try again later") from None
        try:
            for left in staging.iterdir():  # of a program that was killed
                left.unlink()
            yield staging
            seal(staging, place)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
            os.close(lock)
    except OSError as error:
        raise UserError(f"cannot write the index {str(folder)!r}: {error.strerror or error}") from error
