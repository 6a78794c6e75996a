"""An index of sentences and their vectors, to search, save and load."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dystress_text.errors import UserError
from dystress_text.evaluation.random_pairs import MOST_SENTENCES, RandomPairs, random_pairs
from dystress_text.files.whole import MANIFEST
from dystress_text.search.index_folder import (
    GRAPH,
    PROBE,
    PROBED,
    IndexFiles,
    append,
    map_vectors,
    new_index,
    open_index,
)
from dystress_text.search.nearest_rows import extend_graph, graph_of, nearest, usearch
from dystress_text.search.sentence_vectors import CHUNK, Encoder, encoded, unit_vectors
from dystress_text.search.stored_vectors import Float32, Float64, RowNumbers, StoredVectors, check_dtype
from dystress_text.training.run_folder import RANDOM_PAIRS

SAME_MODEL = 0.05  # largest distance of a sentence's unit vectors now and at the build: a cosine of 0.999


class Match(NamedTuple):
    """A sentence that was found.

    Attributes:
        sentence: as it was indexed.
        score: the product of the query's vector and the stored one: their cosine similarity, up to the rounding of
            stored vectors. With ``binary`` the cosine of query and signs, which ranks alike and is smaller.
        row: its number among the indexed sentences, from 0.
        false_alarm: the share of random pairs of sentences with at least this score, at least the finest that the
            index's :class:`~dystress_text.evaluation.random_pairs.RandomPairs` can tell. None if it has none, and with
            ``binary``.
    """

    sentence: str
    score: float
    row: int
    false_alarm: float | None = None


@dataclass(frozen=True, eq=False)
class SentenceIndex:
    """Sentences and their vectors, searched by similarity.

    Attributes:
        model: encodes the queries; it has encoded the sentences.
        sentences: n of them; those of a saved index are read from disk one by one.
        stored: their vectors; those of a saved index are mapped from disk.
        probe: the first vectors in fp32, 1 to 4, (p, dim), by which a saved index recognises its model.
        graph: usearch's index of the vectors, for approximate search; None for exact search.
        random_pairs: the model's cosines by false-alarm rate; None if it has none.
    """

    model: Encoder
    sentences: Sequence[str]
    stored: StoredVectors
    probe: Float32
    graph: Any = None
    random_pairs: RandomPairs | None = None

    @property
    def vectors(self) -> NDArray[Any]:
        """The stored numbers: unit vectors, (n, dim), fp32 or fp16; int8 entries; bits, (n, ceil(dim / 8))."""
        return self.stored.codes

    @classmethod
    def build(
        cls,
        model: Encoder,
        sentences: Sequence[str],
        batch_size: int = 64,
        progress: bool = False,
        dtype: str = "fp32",
        folder: str | Path | None = None,
        random_pairs: RandomPairs | None = None,
    ) -> SentenceIndex:
        """Encode sentences.

        Args:
            model: a ``SentenceTransformer``, or anything with its ``encode``.
            sentences: any text, line feeds included.
            batch_size: sentences that the model encodes at a time.
            progress: show a progress bar.
            dtype: ``fp32``, ``fp16`` (half the size), ``int8`` (a quarter) or ``binary`` (1/32); see
                :class:`~dystress_text.search.stored_vectors.StoredVectors`.
            folder: write the index there while encoding, so the vectors need no memory; see :func:`build_index`.
            random_pairs: of the model, ``RandomPairs.load(Path("out"))``; without it there is no search by false-alarm
                rate.

        Raises:
            UserError: there is no sentence, a vector is not finite, ``dtype`` is unknown, or the folder cannot be
                written or is not empty.
        """
        if folder is not None:
            return build_index(model, sentences, folder, batch_size, progress, dtype, random_pairs)
        check_dtype(dtype)
        start, stored, probe = 0, None, None
        for chunk, vectors in encoded(model, sentences, batch_size, progress):
            if stored is None or probe is None:
                stored, probe = StoredVectors.empty(len(sentences), vectors.shape[1], dtype), vectors[:PROBED].copy()
            stored.put(start, StoredVectors.of(vectors, dtype))
            start += len(chunk)
        assert stored is not None  # ``encoded`` raises an error if there is no sentence
        assert probe is not None
        return cls(model, list(sentences), stored, probe, random_pairs=random_pairs)

    def add(self, sentences: Sequence[str], batch_size: int = 64, progress: bool = False) -> SentenceIndex:
        """A new index in memory with more sentences behind these, without a graph.

        :func:`add_to_index` adds to a saved index without reading it into memory.

        Raises:
            UserError: see :meth:`build`.
        """
        more = SentenceIndex.build(self.model, sentences, batch_size, progress, self.stored.dtype)
        sentences = [*self.sentences, *more.sentences]
        return replace(self, sentences=sentences, stored=self.stored.joined(more.stored), graph=None)

    def approximate(self, connectivity: int = 16, breadth: int = 128) -> SentenceIndex:
        """The same index with a graph (HNSW, by usearch), which finds most of the nearest sentences in far less time.

        Scores stay those of exact search. The graph holds a copy of the stored vectors, fp32 as fp16.

        Args:
            connectivity: neighbours of a sentence in the graph.
            breadth: candidates compared for each vector that is added.

        Raises:
            UserError: usearch is not installed.
        """
        return replace(self, graph=graph_of(self.stored, connectivity, breadth))

    def search(
        self,
        queries: str | Sequence[str],
        top_k: int = 5,
        threshold: float | None = None,
        batch_size: int = 64,
        false_alarm: float | None = None,
    ) -> list[list[Match]]:
        """The most similar sentences to each query, the best first; equal scores in the order of their rows.

        Args:
            queries: one or many.
            top_k: most matches of a query; all sentences if there are fewer.
            threshold: leave out matches with a lower score.
            batch_size: queries that the model encodes at a time.
            false_alarm: leave out matches with a score that more than this share of random pairs of sentences has.

        Returns:
            A list for each query.

        Raises:
            UserError: the model's vectors are not finite, or have another size; the index cannot tell scores by their
                false-alarm rate, or not at this one.
            ValueError: ``top_k`` is below 1.
        """
        queries = [queries] if isinstance(queries, str) else queries
        if not queries:
            return []
        least = -np.inf if false_alarm is None else self.threshold(false_alarm)  # first: encoding takes a while
        least = max(least, -np.inf if threshold is None else threshold)
        return self.matches(unit_vectors(self.model, list(queries), batch_size), top_k, least)

    def threshold(self, false_alarm: float) -> float:
        """The score that this share of random pairs of sentences reaches.

        Raises:
            UserError: the index cannot tell, or not at this rate.
        """
        if self.stored.dtype == "binary":
            raise UserError("--false_alarm: scores of a binary index are no cosines; build it as fp32, fp16 or int8")
        if self.random_pairs is None:
            raise UserError(
                "--false_alarm: the index does not hold the cosines of random pairs; "
                "`dystress calibrate --index FOLDER` adds them"
            )
        return self.random_pairs.threshold(false_alarm)

    def matches(self, queries: Float32, top_k: int, threshold: float | None = None) -> list[list[Match]]:
        """:meth:`search` for unit vectors, (q, dim)."""
        scores, rows = self.nearest(queries, top_k)
        rates = np.full(scores.shape, None)
        if self.random_pairs is not None and self.stored.dtype != "binary":
            rates = self.random_pairs.rates_of(scores)
        least = -np.inf if threshold is None else threshold
        return [
            [Match(self.sentences[r], s, r, rate) for s, r, rate in zip(*of_query, strict=True) if s >= least]
            for of_query in zip(scores.tolist(), rows.tolist(), rates.tolist(), strict=True)
        ]

    def nearest(self, queries: Float32, top_k: int) -> tuple[Float64, RowNumbers]:
        """:meth:`search` for unit vectors, (q, dim): scores (products in fp64) and rows, both (q, min(top_k, n))."""
        return nearest(self.stored, queries, top_k, self.graph)

    def save(self, folder: str | Path, overwrite: bool = False) -> None:
        """Write the index, without the model, to a new or empty folder, which is there when it is complete.

        Args:
            folder: of the index.
            overwrite: replace an index that is there.

        Raises:
            UserError: the folder cannot be written, or holds something.
        """
        with new_index(Path(folder), overwrite) as staging:
            for start in range(0, len(self.stored), CHUNK):
                rows = slice(start, start + CHUNK)
                append(staging, self.sentences[rows], self.stored[rows])
            np.save(staging / PROBE, self.probe, allow_pickle=False)
            if self.random_pairs is not None:
                self.random_pairs.save(staging)
            if self.graph is not None:
                self.graph.save(str(staging / GRAPH))

    @classmethod
    def load(cls, folder: str | Path, model: Encoder, check: bool = True) -> SentenceIndex:
        """An index from disk; its files are mapped, not read into memory.

        Args:
            folder: of the index.
            model: the one that the index was built with.
            check: compare checksums of all files, which reads them once, and the first vectors with the model's.

        Raises:
            UserError: no index, a damaged one, one of another model, or one with a graph while usearch is missing.
        """
        files = open_index(Path(folder), check)
        if check:
            _check_model(files, model, Path(folder))
        return cls(model, files.sentences, files.stored, files.probe, files.graph, files.random_pairs)


def build_index(
    model: Encoder,
    sentences: Iterable[str],
    folder: str | Path,
    batch_size: int = 64,
    progress: bool = False,
    dtype: str = "fp32",
    random_pairs: RandomPairs | None = None,
) -> SentenceIndex:
    """:meth:`SentenceIndex.build` into a folder; the sentences may be a generator and are not held in memory.

    Raises:
        UserError: see there.
    """
    check_dtype(dtype)
    with new_index(Path(folder)) as staging:
        for chunk, vectors in encoded(model, sentences, batch_size, progress):
            if not (staging / PROBE).exists():
                np.save(staging / PROBE, vectors[:PROBED], allow_pickle=False)
                if random_pairs is not None:
                    random_pairs.save(staging)
            append(staging, chunk, StoredVectors.of(vectors, dtype))
    return SentenceIndex.load(folder, model, check=False)


def add_to_index(
    model: Encoder, sentences: Iterable[str], folder: str | Path, batch_size: int = 64, progress: bool = False
) -> SentenceIndex:
    """Add sentences to a saved index, behind those that it has, and to its graph.

    The index stays as it was until a complete new one takes its place. A graph is held in memory; sentences and vectors
    are not.

    Args:
        model: the one that the index was built with.
        sentences: texts; they may be a generator.
        folder: of the index.
        batch_size: sentences that the model encodes at a time.
        progress: show a progress bar.

    Raises:
        UserError: see :meth:`SentenceIndex.build` and :meth:`SentenceIndex.load`.
    """
    folder = Path(folder)
    with new_index(folder, overwrite=True) as staging:
        files = open_index(folder, check=True)
        _check_model(files, model, folder)
        _copy_files(folder, staging, without=(MANIFEST, GRAPH))
        for chunk, vectors in encoded(model, sentences, batch_size, progress):
            append(staging, chunk, StoredVectors.of(vectors, files.stored.dtype))
        if files.graph is not None:
            graph = usearch().Index.restore(str(folder / GRAPH))  # in memory, not mapped: it grows
            extend_graph(graph, map_vectors(staging, files.stored.dtype, files.stored.dim), len(files.stored))
            graph.save(str(staging / GRAPH))
    return SentenceIndex.load(folder, model, check=False)


def calibrate_index(folder: str | Path) -> RandomPairs:
    """Give a saved index the cosines of random pairs of its own sentences, and return them; no model is needed.

    Raises:
        UserError: no index, a damaged or a binary one, one with few sentences, or it cannot be written.
    """
    folder = Path(folder)
    files = open_index(folder, check=True)
    if files.stored.dtype == "binary":
        raise UserError("--index: scores of a binary index are no cosines; build it as fp32, fp16 or int8")
    count = len(files.stored)
    rows = np.sort(np.random.default_rng(0).permutation(count)[:MOST_SENTENCES])
    distinct = dict(zip((files.sentences[row] for row in rows), rows, strict=True))
    found = random_pairs(files.stored.floats(np.array(list(distinct.values()))), f"the index {folder.resolve().name}")
    with new_index(folder, overwrite=True) as staging:
        _copy_files(folder, staging, without=(MANIFEST, RANDOM_PAIRS))
        found.save(staging)
    return found


def _copy_files(folder: Path, staging: Path, without: Sequence[str]) -> None:
    for file in folder.iterdir():
        if file.name not in without and not file.name.startswith("."):
            shutil.copyfile(file, staging / file.name)


def _check_model(files: IndexFiles, model: Encoder, folder: Path) -> None:
    """Check that the model gives the first sentences the vectors that they had at the build."""
    vectors = unit_vectors(model, files.sentences[: len(files.probe)], batch_size=1)
    if vectors.shape != files.probe.shape:
        raise UserError(
            f"the index {str(folder)!r} was built with another model: its vectors have {files.probe.shape[1]} "
            f"dimensions, this model's {vectors.shape[1]}"
        )
    if np.linalg.norm(vectors - files.probe, axis=1).max() > SAME_MODEL:
        raise UserError(
            f"the index {str(folder)!r} was built with another model: this one gives other vectors for its sentences"
        )
