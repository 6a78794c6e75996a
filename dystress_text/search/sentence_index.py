"""Sentences and their vectors as an index that is searched, saved and loaded."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from dystress_text.errors import UserError
from dystress_text.files.whole import MANIFEST
from dystress_text.search.index_folder import (
    GRAPH,
    PROBE,
    PROBED,
    IndexFiles,
    IndexWriter,
    map_vectors,
    new_index,
    open_index,
)
from dystress_text.search.nearest_rows import extend_graph, graph_of, nearest, usearch
from dystress_text.search.sentence_vectors import CHUNK, Encoder, encoded, unit_vectors
from dystress_text.search.stored_vectors import Float32, Float64, Rows, StoredVectors, check_dtype

SAME_MODEL = 0.05  # farthest that a sentence's unit vector may lie from the one at the build: a cosine of 0.999


class Match(NamedTuple):
    """A sentence that was found.

    Attributes:
        sentence: as it was indexed.
        score: the product of the query's vector and the stored one: their cosine similarity, rounded as the stored
            vectors are. Of ``binary`` the cosine of the query and the signs, which ranks alike and is smaller.
        row: its number among the indexed sentences, from 0.
    """

    sentence: str
    score: float
    row: int


@dataclass(frozen=True, eq=False)
class SentenceIndex:
    """Sentences and their vectors, to be searched by similarity.

    Attributes:
        model: encodes the queries, as it has encoded the sentences.
        sentences: n of them; from a saved index, read from disk one by one as they are asked for.
        stored: their vectors; of a saved index, mapped from disk.
        probe: the first vectors in fp32, 1 to 4, (p, dim), by which a saved index knows its model.
        graph: usearch's index of the vectors, for approximate search; None for exact search.
    """

    model: Encoder
    sentences: Sequence[str]
    stored: StoredVectors
    probe: Float32
    graph: Any = None

    @property
    def vectors(self) -> NDArray[Any]:
        """What is stored: vectors of length 1, (n, dim), fp32 or fp16; int8's entries; bits, (n, ceil(dim / 8))."""
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
    ) -> SentenceIndex:
        """Encode sentences.

        Args:
            model: a ``SentenceTransformer``, or anything with its ``encode``.
            sentences: any text, line feeds included.
            batch_size: sentences that the model reads at a time.
            progress: show a progress bar.
            dtype: ``fp32``, ``fp16`` (half the size), ``int8`` (a quarter) or ``binary`` (1/32); see
                :class:`~dystress_text.search.stored_vectors.StoredVectors`.
            folder: write the index there while encoding, so that the vectors need no memory; as :meth:`save`.

        Raises:
            UserError: no sentence, vectors that are not finite, an unknown ``dtype``, or a folder that cannot be
                written or is not empty.
        """
        if folder is not None:
            return build_index(model, sentences, folder, batch_size, progress, dtype)
        check_dtype(dtype)
        start, stored, probe = 0, None, None
        for chunk, vectors in encoded(model, sentences, batch_size, progress):
            if stored is None or probe is None:
                stored, probe = StoredVectors.empty(len(sentences), vectors.shape[1], dtype), vectors[:PROBED].copy()
            stored.put(start, StoredVectors.of(vectors, dtype))
            start += len(chunk)
        assert stored is not None  # otherwise there was no sentence, an error
        assert probe is not None
        return cls(model, list(sentences), stored, probe)

    def add(self, sentences: Sequence[str], batch_size: int = 64, progress: bool = False) -> SentenceIndex:
        """A new index with more sentences behind these, in memory; it is exact until :meth:`approximate` is asked for.

        :func:`add_to_index` adds to a saved index without reading it into memory.

        Raises:
            UserError: as :meth:`build`.
        """
        more = SentenceIndex.build(self.model, sentences, batch_size, progress, self.stored.dtype)
        return SentenceIndex(
            self.model,
            [*self.sentences, *more.sentences],
            self.stored.joined(more.stored),
            self.probe,
        )

    def approximate(self, connectivity: int = 16, breadth: int = 128) -> SentenceIndex:
        """The same index with a graph (HNSW, by usearch) that finds most of the nearest sentences in far less time.

        Scores are those of :meth:`search` without it. The graph holds a copy of the stored vectors, of fp32 in fp16.

        Args:
            connectivity: neighbours of a sentence in the graph.
            breadth: candidates kept while the graph is built.

        Raises:
            UserError: usearch is not installed.
        """
        return replace(self, graph=graph_of(self.stored, connectivity, breadth))

    def search(
        self, queries: str | Sequence[str], top_k: int = 5, threshold: float | None = None, batch_size: int = 64
    ) -> list[list[Match]]:
        """The most similar sentences to each query, the best first, equally similar ones in the order of their rows.

        Args:
            queries: one or many.
            top_k: matches a query at most; all sentences if there are fewer.
            threshold: leave out what has a lower score.
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
        return self.matches(unit_vectors(self.model, list(queries), batch_size), top_k, threshold)

    def matches(self, queries: Float32, top_k: int, threshold: float | None = None) -> list[list[Match]]:
        """As :meth:`search`, from vectors of length 1, (q, dim)."""
        scores, rows = self.nearest(queries, top_k)
        least = -np.inf if threshold is None else threshold
        return [
            [Match(self.sentences[r], s, r) for s, r in zip(*of_query, strict=True) if s >= least]
            for of_query in zip(scores.tolist(), rows.tolist(), strict=True)
        ]

    def nearest(self, queries: Float32, top_k: int) -> tuple[Float64, Rows]:
        """As :meth:`search`, from vectors of length 1, (q, dim), to scores and rows, both (q, min(top_k, n)).

        Scores are products in fp64.
        """
        return nearest(self.stored, queries, top_k, self.graph)

    def save(self, folder: str | Path, overwrite: bool = False) -> None:
        """Write the index, without the model, to a new or empty folder, which takes its name when it is complete.

        Args:
            folder: where to.
            overwrite: replace an index that is there.

        Raises:
            UserError: the folder cannot be written, or holds something.
        """
        with new_index(Path(folder), overwrite) as staging:
            with IndexWriter(staging) as writer:
                for start in range(0, len(self.stored), CHUNK):
                    rows = slice(start, start + CHUNK)
                    writer.write(self.sentences[rows], self.stored[rows])
            np.save(staging / PROBE, self.probe, allow_pickle=False)
            if self.graph is not None:
                self.graph.save(str(staging / GRAPH))

    @classmethod
    def load(cls, folder: str | Path, model: Encoder, check: bool = True) -> SentenceIndex:
        """An index from disk, mapped and not read, so that it takes no memory of its own.

        Args:
            folder: what :meth:`save` has written.
            model: the one that the index was built with.
            check: compare checksums of all files, which reads them once, and the first vectors with the model's.

        Raises:
            UserError: no index, a damaged one, one of another model, or one with a graph without usearch.
        """
        files = open_index(Path(folder), check)
        if check:
            _check_model(files, model, Path(folder))
        return cls(model, files.sentences, files.stored, files.probe, files.graph)


def build_index(
    model: Encoder,
    sentences: Iterable[str],
    folder: str | Path,
    batch_size: int = 64,
    progress: bool = False,
    dtype: str = "fp32",
) -> SentenceIndex:
    """:meth:`SentenceIndex.build` into a folder, of sentences that need not be held in memory: they may be a generator.

    Raises:
        UserError: as there.
    """
    check_dtype(dtype)
    with new_index(Path(folder)) as staging, IndexWriter(staging) as writer:
        for chunk, vectors in encoded(model, sentences, batch_size, progress):
            if not (staging / PROBE).exists():
                np.save(staging / PROBE, vectors[:PROBED], allow_pickle=False)
            writer.write(chunk, StoredVectors.of(vectors, dtype))
    return SentenceIndex.load(folder, model, check=False)


def add_to_index(
    model: Encoder, sentences: Iterable[str], folder: str | Path, batch_size: int = 64, progress: bool = False
) -> SentenceIndex:
    """Add sentences to a saved index, behind those that it has; a graph takes them too.

    The index stays as it was until a complete new one takes its place. Neither sentences nor vectors are held in
    memory; a graph is.

    Args:
        model: the one that the index was built with.
        sentences: any iterable of texts.
        folder: of the index.
        batch_size: sentences that the model reads at a time.
        progress: show a progress bar.

    Raises:
        UserError: as :meth:`SentenceIndex.build` and :meth:`SentenceIndex.load`.
    """
    folder = Path(folder)
    with new_index(folder, overwrite=True) as staging:
        files = open_index(folder, check=True)
        _check_model(files, model, folder)
        for file in folder.iterdir():
            if file.name not in (MANIFEST, GRAPH) and not file.name.startswith("."):
                shutil.copyfile(file, staging / file.name)
        with IndexWriter(staging) as writer:
            for chunk, vectors in encoded(model, sentences, batch_size, progress):
                writer.write(chunk, StoredVectors.of(vectors, files.stored.dtype))
        if files.graph is not None:
            graph = usearch().Index.restore(str(folder / GRAPH))  # read, not mapped, so that it can grow
            extend_graph(graph, map_vectors(staging, files.stored.dtype, files.stored.dim), len(files.stored))
            graph.save(str(staging / GRAPH))
    return SentenceIndex.load(folder, model, check=False)


def _check_model(files: IndexFiles, model: Encoder, folder: Path) -> None:
    """See whether the model gives the first sentences the vectors that they had."""
    own = unit_vectors(model, files.sentences[: len(files.probe)], batch_size=1)
    if own.shape != files.probe.shape:
        raise UserError(
            f"the index {str(folder)!r} was built with another model: its vectors have {files.probe.shape[1]} "
            f"dimensions, this model's {own.shape[1]}"
        )
    if np.linalg.norm(own - files.probe, axis=1).max() > SAME_MODEL:
        raise UserError(
            f"the index {str(folder)!r} was built with another model: this one has other vectors for its sentences"
        )
