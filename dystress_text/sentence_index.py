"""Sentences and their vectors as an index that is searched, saved and loaded."""

from __future__ import annotations

import json
import shutil
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from dystress_text.errors import UserError
from dystress_text.progress import progress_bar
from dystress_text.sealed import MANIFEST, damage_of, seal

FORMAT = 1  # of the folder
CARD, VECTORS, TEXT, OFFSETS, GRAPH = "index.json", "vectors.npy", "sentences.txt", "offsets.npy", "graph.usearch"
DTYPES = {"fp32": np.float32, "fp16": np.float16}
INSTALL = "pip install usearch"

CHUNK = 10_000  # sentences encoded at a time
ROWS, QUERIES = 4096, 256  # vectors in a block of exact search: its fp32 copy and its scores stay in the cache
RESCORED = 4096  # pairs of vectors multiplied in fp64 at a time
SAME_MODEL = 0.05  # farthest that a sentence's unit vector may lie from the stored one: a cosine of 0.999

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]


class Encoder(Protocol):
    """What encodes sentences: a ``SentenceTransformer``, or anything with its ``encode``."""

    def encode(self, sentences: list[str], /, *, batch_size: int, show_progress_bar: bool) -> Any:
        """Vectors of sentences, (n, dim)."""


class Match(NamedTuple):
    """A sentence that was found.

    Attributes:
        sentence: as it was indexed.
        score: its cosine similarity to the query.
        row: its number among the indexed sentences, from 0.
    """

    sentence: str
    score: float
    row: int


@dataclass(frozen=True)
class SentenceIndex:
    """Sentences and their vectors, to be searched by similarity.

    Attributes:
        model: encodes the queries, as it has encoded the sentences.
        sentences: n of them; from a saved index, read from disk one by one as they are asked for.
        vectors: (n, dim), of length 1, fp32 or fp16; of a saved index, mapped from disk.
        graph: usearch's index of the vectors, for approximate search; None for exact search.
    """

    model: Encoder
    sentences: Sequence[str]
    vectors: NDArray[np.floating[Any]]
    graph: Any = None

    @classmethod
    def build(
        cls,
        model: Encoder,
        sentences: Sequence[str],
        batch_size: int = 64,
        progress: bool = False,
        dtype: str = "fp32",
        folder: str | Path | None = None,
    ) -> SentenceIndex:
        """Encode sentences.

        Args:
            model: a ``SentenceTransformer``, or anything with its ``encode``.
            sentences: any text, line feeds included.
            batch_size: sentences that the model reads at a time.
            progress: show a progress bar.
            dtype: ``fp32``, or ``fp16`` for half the size.
            folder: write the index there while encoding, so that the vectors need no memory; as :meth:`save`.

        Raises:
            UserError: no sentence, vectors that are not finite, or a folder that cannot be written or is not empty.
        """
        if folder is None:
            return cls(model, list(sentences), _encode(model, sentences, batch_size, progress, dtype))
        with _new_index(Path(folder)) as staging:
            vectors = _encode(model, sentences, batch_size, progress, dtype, staging / VECTORS)
            _write_text(staging, sentences, vectors)
        return cls.load(folder, model, check=False)

    def add(self, sentences: Sequence[str], batch_size: int = 64, progress: bool = False) -> SentenceIndex:
        """A new index with more sentences behind these; it is exact until :meth:`approximate` is asked for again.

        Raises:
            UserError: as :meth:`build`.
        """
        more = _encode(self.model, sentences, batch_size, progress, _name_of(self.vectors))
        return SentenceIndex(self.model, [*self.sentences, *sentences], np.concatenate([self.vectors, more]))

    def approximate(self, connectivity: int = 16, breadth: int = 128) -> SentenceIndex:
        """The same index with a graph (HNSW, by usearch) that finds most of the nearest sentences in far less time.

        Scores stay exact. The graph holds a copy of the vectors in fp16.

        Args:
            connectivity: neighbours of a sentence in the graph.
            breadth: candidates kept while the graph is built.

        Raises:
            UserError: usearch is not installed.
        """
        graph = usearch().Index(
            ndim=self.vectors.shape[1], metric="ip", dtype="f16", connectivity=connectivity, expansion_add=breadth
        )
        for start in range(0, len(self.vectors), CHUNK):
            block = _fp32(self.vectors[start : start + CHUNK])
            graph.add(np.arange(start, start + len(block), dtype=np.uint64), block)
        return SentenceIndex(self.model, self.sentences, self.vectors, graph)

    def search(
        self, queries: str | Sequence[str], top_k: int = 5, threshold: float | None = None, batch_size: int = 64
    ) -> list[list[Match]]:
        """The most similar sentences to each query, the best first, equally similar ones in the order of their rows.

        Args:
            queries: one or many.
            top_k: matches a query at most; all sentences if there are fewer.
            threshold: leave out what is less similar.
            batch_size: queries that the model reads at a time.

        Returns:
            One list a query.

        Raises:
            UserError: the model's vectors are not finite or of another size.
            ValueError: ``top_k`` is below 1.
        """
        queries = [queries] if isinstance(queries, str) else queries
        if not queries:
            return []
        scores, rows = self.nearest(_unit(self.model, list(queries), batch_size), top_k)
        least = -np.inf if threshold is None else threshold
        return [
            [Match(self.sentences[r], s, r) for s, r in zip(*of_query, strict=True) if s >= least]
            for of_query in zip(scores.tolist(), rows.tolist(), strict=True)
        ]

    def nearest(self, queries: NDArray[np.float32], top_k: int) -> tuple[Floats, Rows]:
        """As :meth:`search`, from vectors of length 1, (q, dim), to scores and rows, both (q, min(top_k, n)).

        Scores are products in fp64.
        """
        if top_k < 1:
            raise ValueError(f"top_k must be at least 1, got {top_k}")
        if queries.shape[1] != self.vectors.shape[1]:
            raise UserError(f"queries have {queries.shape[1]} dimensions, the index has {self.vectors.shape[1]}")
        top_k = min(top_k, len(self.vectors))
        search = _exact if self.graph is None else self._by_graph
        found = [search(self.vectors, queries[i : i + QUERIES], top_k) for i in range(0, len(queries), QUERIES)]
        scores, rows = zip(*found, strict=True)
        return np.concatenate(scores), np.concatenate(rows)

    def _by_graph(
        self, vectors: NDArray[np.floating[Any]], queries: NDArray[np.float32], top_k: int
    ) -> tuple[Floats, Rows]:
        """From the graph's candidates, some more than asked for, those with the best exact scores."""
        wanted = min(2 * top_k, len(vectors))
        self.graph.expansion_search = max(64, 2 * wanted)
        keys = np.atleast_2d(self.graph.search(queries, wanted).keys).astype(np.int64)  # (q, wanted)
        if keys.shape[1] < top_k or (keys >= len(vectors)).any():  # a part of the graph that no path leads to
            return _exact(vectors, queries, top_k)
        query = np.repeat(np.arange(len(queries)), wanted)
        scores = _scores(vectors, queries, query, keys.ravel())
        return _best(query, scores, keys.ravel(), top_k)

    def save(self, folder: str | Path, overwrite: bool = False) -> None:
        """Write the index, without the model, to a new or empty folder, which takes its name when it is complete.

        Args:
            folder: where to.
            overwrite: replace an index that is there.

        Raises:
            UserError: the folder cannot be written, or holds something.
        """
        with _new_index(Path(folder), overwrite) as staging:
            np.save(staging / VECTORS, self.vectors, allow_pickle=False)
            _write_text(staging, self.sentences, self.vectors)
            if self.graph is not None:
                self.graph.save(str(staging / GRAPH))

    @classmethod
    def load(cls, folder: str | Path, model: Encoder, check: bool = True) -> SentenceIndex:
        """An index from disk, mapped and not read, so that it takes no memory of its own.

        Args:
            folder: what :meth:`save` has written.
            model: the one that the index was built with.
            check: compare checksums of all files, which reads them once, and vectors of two sentences with the model's.

        Raises:
            UserError: no index, a damaged one, one of another model, or one with a graph without usearch.
        """
        folder = Path(folder)
        check_index(folder)
        damage = damage_of(folder) if check else None
        if damage is not None:
            raise UserError(f"the index {str(folder)!r} is damaged: {damage}")
        try:
            card = json.loads((folder / CARD).read_text(encoding="utf-8"))
            if card["format"] != FORMAT:
                raise UserError(f"the index {str(folder)!r} has format {card['format']}, this version reads {FORMAT}")
            # "c" is a private map: torch wants arrays that could be written
            vectors = np.load(folder / VECTORS, mmap_mode="c", allow_pickle=False)
            sentences = _StoredText(folder)
            if vectors.shape != (card["sentences"], card["dim"]) or len(sentences) != card["sentences"]:
                raise ValueError("its files do not belong together")
        except (OSError, ValueError, KeyError, TypeError) as error:
            reason = " ".join(str(error).split())
            raise UserError(f"the index {str(folder)!r} is damaged: {reason}") from error
        graph = usearch().Index.restore(str(folder / GRAPH), view=True) if (folder / GRAPH).is_file() else None
        index = cls(model, sentences, vectors, graph)
        if check:
            index._check_model(folder)
        return index

    def _check_model(self, folder: Path) -> None:
        rows = [0, len(self.sentences) - 1]
        own = _unit(self.model, [self.sentences[row] for row in rows], batch_size=1)
        stored = _fp32(self.vectors[rows])
        if own.shape != stored.shape:
            raise UserError(
                f"the index {str(folder)!r} was built with another model: its vectors have {stored.shape[1]} "
                f"dimensions, this model's {own.shape[1]}"
            )
        if np.linalg.norm(own - stored, axis=1).max() > SAME_MODEL:
            raise UserError(
                f"the index {str(folder)!r} was built with another model: this one has other vectors for its sentences"
            )


class _StoredText(Sequence[str]):
    """The sentences of a saved index, each read as it is asked for."""

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


def _write_text(staging: Path, sentences: Sequence[str], vectors: NDArray[np.floating[Any]]) -> None:
    """The files of an index beside its vectors and graph."""
    offsets = array("q", [0])
    with (staging / TEXT).open("wb") as file:
        for sentence in sentences:  # a line feed behind each is for human readers
            offsets.append(offsets[-1] + file.write(sentence.encode() + b"\n"))
    np.save(staging / OFFSETS, np.frombuffer(offsets, dtype=np.int64), allow_pickle=False)
    card = {"format": FORMAT, "sentences": len(sentences), "dim": vectors.shape[1], "dtype": _name_of(vectors)}
    (staging / CARD).write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")


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
    if not (folder / CARD).is_file() or not (folder / MANIFEST).is_file():
        raise UserError(f"{str(folder)!r} holds no index")


@contextmanager
def _new_index(folder: Path, overwrite: bool = False) -> Iterator[Path]:
    """A folder to write an index to, which takes the place of ``folder`` when it is complete."""
    staging = folder.with_name(f".{folder.name}.writing")
    try:
        check_new_folder(folder, overwrite)
        shutil.rmtree(staging, ignore_errors=True)  # of a program that was killed
        staging.mkdir(parents=True)
        yield staging
        seal(staging, folder)
    except OSError as error:
        raise UserError(f"cannot write the index {str(folder)!r}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _encode(
    model: Encoder, sentences: Sequence[str], batch_size: int, progress: bool, dtype: str, file: Path | None = None
) -> NDArray[np.floating[Any]]:
    """Unit vectors, (n, dim), in memory or mapped to a file."""
    if dtype not in DTYPES:
        raise UserError(f"dtype: unknown {dtype!r}; known are {', '.join(DTYPES)}")
    if isinstance(sentences, str) or not sentences:
        raise UserError("no sentences to index" if not sentences else "a list of sentences is needed, got one text")
    vectors: NDArray[np.floating[Any]] | None = None
    with progress_bar(None, progress, desc="encoding", unit=" sentences", total=len(sentences)) as bar:
        for start in range(0, len(sentences), CHUNK):
            chunk = _unit(model, list(sentences[start : start + CHUNK]), batch_size)
            if vectors is None:
                shape = (len(sentences), chunk.shape[1])
                if file is None:
                    vectors = np.empty(shape, DTYPES[dtype])
                else:
                    vectors = np.lib.format.open_memmap(file, mode="w+", dtype=DTYPES[dtype], shape=shape)
            vectors[start : start + len(chunk)] = chunk
            bar.update(len(chunk))
    assert vectors is not None
    if isinstance(vectors, np.memmap):
        vectors.flush()
    return vectors


def _unit(model: Encoder, sentences: list[str], batch_size: int) -> NDArray[np.float32]:
    """Vectors of length 1, (n, dim), fp32; a zero vector stays one."""
    encoded = model.encode(sentences, batch_size=batch_size, show_progress_bar=False)
    vectors = np.asarray(encoded.float().cpu() if isinstance(encoded, torch.Tensor) else encoded, dtype=np.float32)
    if vectors.ndim != 2 or len(vectors) != len(sentences):
        raise UserError(f"the model gives an array of shape {vectors.shape} for {len(sentences)} sentences")
    if not np.isfinite(vectors).all():
        raise UserError("the model gives vectors with NaN or infinite entries")
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    unit: NDArray[np.float32] = (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)
    return unit


def _exact(vectors: NDArray[np.floating[Any]], queries: NDArray[np.float32], top_k: int) -> tuple[Floats, Rows]:
    """The best rows by exact score, block by block.

    Products in fp32 only choose candidates: whatever comes within rounding error of the k-th best so far is multiplied
    again in fp64, entry by entry, so that equal vectors have equal scores wherever they stand.
    """
    count, dim = queries.shape
    rounding = np.float32(dim * 2.0**-23)  # of a product of unit vectors in fp32, in any order of summation
    scores = np.full((count, top_k), -np.inf)
    rows = np.full((count, top_k), len(vectors))
    kept = np.repeat(np.arange(count), top_k)
    for start in range(0, len(vectors), ROWS):
        products = queries @ _fp32(vectors[start : start + ROWS]).T  # (q, block)
        bound = scores[:, -1].astype(np.float32) - rounding
        query, place = np.nonzero(products >= bound[:, None])
        if len(query) > len(kept) and products.shape[1] > top_k:  # the first block, or one that is better throughout
            kth = np.partition(products, -top_k, axis=1)[:, -top_k]
            query, place = np.nonzero(products >= np.maximum(bound, kth - 2 * rounding)[:, None])
        if len(query):
            new = _scores(vectors, queries, query, place + start)
            scores, rows = _best(
                np.concatenate([kept, query]),
                np.concatenate([scores.ravel(), new]),
                np.concatenate([rows.ravel(), place + start]),
                top_k,
            )
    return scores, rows


def _scores(vectors: NDArray[np.floating[Any]], queries: NDArray[np.float32], query: Rows, row: Rows) -> Floats:
    """Products in fp64 of queries and vectors, pair by pair: (m,) numbers of either to (m,)."""
    scores = np.empty(len(query))
    for start in range(0, len(query), RESCORED):
        pairs = slice(start, start + RESCORED)
        scores[pairs] = (queries[query[pairs]].astype(np.float64) * vectors[row[pairs]]).sum(axis=1)
    return scores


def _best(query: Rows, scores: Floats, rows: Rows, top_k: int) -> tuple[Floats, Rows]:
    """The best ``top_k`` of each query's candidates (at least as many), equal ones by row: (m,) each to (q, top_k)."""
    order = np.lexsort((rows, -scores, query))
    first = np.flatnonzero(np.diff(query[order], prepend=-1))  # where each query's candidates begin
    chosen = order[first[:, None] + np.arange(top_k)]  # (q, top_k)
    return scores[chosen], rows[chosen]


def _fp32(vectors: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """In fp32, without a copy if it is; torch converts fp16 several times as fast as numpy."""
    return vectors if vectors.dtype == np.float32 else torch.from_numpy(vectors).float().numpy()


def _name_of(vectors: NDArray[np.floating[Any]]) -> str:
    return next(name for name, dtype in DTYPES.items() if vectors.dtype == dtype)


def usearch() -> Any:
    """The module of approximate search.

    Raises:
        UserError: it is not installed.
    """
    try:
        import usearch.index as module
    except ImportError as error:
        raise UserError(f"approximate search needs usearch, the `search` extra: {INSTALL}") from error
    return module
