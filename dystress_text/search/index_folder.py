"""The folder of a saved index: appended to while sentences are encoded, whole or not there, and mapped when it is read.

index.json      format, dtype, number of sentences and dimensions
vectors.npy     the stored vectors; int8 has their scales in scales.npy
probe.npy       the first vectors in fp32, which tell whether a model is the one of the build
sentences.txt   UTF-8; offsets.npy holds the byte where each sentence begins
graph.usearch   only with an approximate index
random_pairs.json  the model's cosines by false-alarm rate, if it has them
manifest.json   sizes and checksums

Vectors are not in a usearch index, whose file is written at once and not appended to: exact search in such a file,
mapped, took twice the time, and its fp32 scores are not those of brute force.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from dystress_text.errors import UserError
from dystress_text.evaluation.random_pairs import RandomPairs
from dystress_text.files.whole import MANIFEST, damage_of, locked, recover, seal
from dystress_text.search.nearest_rows import usearch
from dystress_text.search.stored_vectors import DTYPES, Float32, StoredVectors, width

FORMAT = 2  # of the folder's files
CARD, VECTORS, SCALES, PROBE = "index.json", "vectors.npy", "scales.npy", "probe.npy"
TEXT, OFFSETS, GRAPH = "sentences.txt", "offsets.npy", "graph.usearch"
PROBED = 4  # vectors in the probe


class StoredText(Sequence[str]):
    """The sentences of a saved index, each read when it is asked for.

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
        start, end = (int(offset) for offset in self._offsets[row % len(self) :][:2])
        return self._text[start : end - 1].tobytes().decode()


@dataclass(frozen=True)
class IndexFiles:
    """The mapped files of an index.

    Attributes:
        sentences: n of them.
        stored: their vectors.
        probe: the first vectors before rounding, 1 to 4, (p, dim) fp32.
        graph: usearch's index, or None.
        random_pairs: cosines by false-alarm rate, or None.
    """

    sentences: StoredText
    stored: StoredVectors
    probe: Float32
    graph: Any
    random_pairs: RandomPairs | None


def append(folder: Path, sentences: Sequence[str], stored: StoredVectors) -> None:
    """Write sentences and their vectors behind those of a folder, which may be empty.

    Raises:
        OSError: a file cannot be written.
    """
    lines = [sentence.encode() + b"\n" for sentence in sentences]  # the line feed is for human readers
    with (folder / TEXT).open("ab") as file:
        ends = file.tell() + np.cumsum([len(line) for line in lines])
        file.write(b"".join(lines))
    _append_rows(folder / OFFSETS, ends if (folder / OFFSETS).exists() else np.concatenate([[0], ends]))
    count = _append_rows(folder / VECTORS, stored.codes)
    if stored.scales is not None:
        _append_rows(folder / SCALES, stored.scales)
    card = {"format": FORMAT, "sentences": count, "dim": stored.dim, "dtype": stored.dtype}
    (folder / CARD).write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")


def _append_rows(path: Path, rows: NDArray[Any]) -> int:
    """Append rows, always of the same shape and dtype, to an .npy file; returns how many it then has."""
    present = len(np.load(path, mmap_mode="r", allow_pickle=False)) if path.exists() else 0
    count = present + len(rows)
    header = {"descr": npy.dtype_to_descr(rows.dtype), "fortran_order": False, "shape": (count, *rows.shape[1:])}
    with path.open("r+b" if present else "wb") as file:
        npy.write_array_header_1_0(file, header)  # of the same length whatever the count: NumPy leaves room for it
        file.seek(0, os.SEEK_END)
        file.write(np.ascontiguousarray(rows).data)
    return count


def open_index(folder: Path, check: bool) -> IndexFiles:
    """Map the files of an index.

    Args:
        folder: of the index.
        check: compare the checksums of all files, which reads them once.

    Raises:
        UserError: no index, a damaged one, or one with a graph while usearch is not installed.
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
    return IndexFiles(sentences, stored, probe, graph, RandomPairs.load(folder))


def map_vectors(folder: Path, dtype: str, dim: int) -> StoredVectors:
    """The mapped vectors of an index.

    Raises:
        OSError, ValueError, KeyError: they are missing, or have another shape or dtype.
    """
    # "c" is a private, writable map: torch warns about arrays that cannot be written
    codes = np.load(folder / VECTORS, mmap_mode="c", allow_pickle=False)
    scales = np.load(folder / SCALES, mmap_mode="c", allow_pickle=False) if dtype == "int8" else None
    if codes.dtype != DTYPES[dtype] or codes.shape != (len(codes), width(dim, dtype)):
        raise ValueError(f"{VECTORS} is not what was written")
    if scales is not None and (scales.dtype != np.float32 or scales.shape != (len(codes),)):
        raise ValueError(f"{SCALES} is not what was written")
    return StoredVectors(dtype, codes, dim, scales)


def check_new_folder(folder: Path, overwrite: bool = False) -> None:
    """Check that an index can be written to a folder.

    Raises:
        UserError: it is a file, or holds something other than an index to overwrite.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{str(folder)!r} is a file; name a folder for the index")
    if folder.is_dir() and any(folder.iterdir()) and not (overwrite and (folder / CARD).is_file()):
        raise UserError(f"the folder {str(folder)!r} is not empty; name another one for the index")


def check_index(folder: Path) -> None:
    """Check that a folder holds an index.

    Raises:
        UserError: it does not.
    """
    recover(folder)
    if not (folder / CARD).is_file() or not (folder / MANIFEST).is_file():
        raise UserError(f"{str(folder)!r} holds no index")


@contextmanager
def new_index(folder: Path, overwrite: bool = False) -> Iterator[Path]:
    """A folder to write an index to, which takes the place of ``folder`` when it is complete.

    Until then ``folder`` stays as it was, even after a crash. One program writes at a time.

    Args:
        folder: where the index shall be.
        overwrite: replace an index that is there.

    Raises:
        UserError: the folder cannot be written, holds something else, or another program is writing it.
    """
    place = folder.resolve()
    staging, lock = (place.with_name(f".{place.name}.{suffix}") for suffix in ("writing", "lock"))
    try:
        recover(place)
        check_new_folder(folder, overwrite)
        place.parent.mkdir(parents=True, exist_ok=True)
        with locked(lock, wait=False) as held:
            if not held:
                raise UserError(f"another program is writing the index {str(folder)!r}; try again later")
            try:
                shutil.rmtree(staging, ignore_errors=True)  # left by a program that was killed
                staging.mkdir()
                yield staging
                seal(staging, place)
            finally:
                shutil.rmtree(staging, ignore_errors=True)
                lock.unlink(missing_ok=True)  # while it is held: filelock takes no lock whose file is gone
    except OSError as error:
        raise UserError(f"cannot write the index {str(folder)!r}: {error.strerror or error}") from error
