"""The stored vectors nearest to queries: exact, in two stages for sign bits, or among a graph's candidates.

Exact search uses neither sentence-transformers' ``semantic_search``, which needs all vectors as fp32 in memory, nor
usearch's, which takes memory for all n x q distances (1.5 GB for 100,000 vectors and 1,000 queries). Both give fp32
scores, and put equal vectors in any order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dystress_text.cli.extras import require
from dystress_text.errors import UserError
from dystress_text.search.stored_vectors import Float32, Float64, RowNumbers, StoredVectors

ROWS, QUERIES = 4096, 256  # of a block of exact search: its fp32 copy and its scores stay in the processor's cache
RESCORED = 4096  # pairs of vectors multiplied in fp64 at a time
OVERSAMPLING = 10  # candidates by Hamming distance for each match
# metric and dtype of a graph; an int8 row's scale does not change its angle
_GRAPHS = {"fp32": ("ip", "f16"), "fp16": ("ip", "f16"), "int8": ("cos", "i8"), "binary": ("hamming", "b1")}


def nearest(stored: StoredVectors, queries: Float32, top_k: int, graph: Any = None) -> tuple[Float64, RowNumbers]:
    """The rows with the highest scores for each query; equal scores in the order of their rows.

    Args:
        stored: n vectors.
        queries: of length 1, (q, dim).
        top_k: number of rows; all if there are fewer.
        graph: see :func:`graph_of`; None compares all vectors: exactly, or sign bits by their Hamming distance first.

    Returns:
        Scores (products in fp64) and rows, both (q, min(top_k, n)).

    Raises:
        ValueError: ``top_k`` is below 1.
        UserError: the queries have another size.
    """
    if top_k < 1:
        raise ValueError(f"top_k must be at least 1, got {top_k}")
    if queries.shape[1] != stored.dim:
        raise UserError(f"queries have {queries.shape[1]} dimensions, the index has {stored.dim}")
    top_k = min(top_k, len(stored))
    found = [_nearest(stored, queries[i : i + QUERIES], top_k, graph) for i in range(0, len(queries), QUERIES)]
    scores, rows = zip(*found, strict=True)
    return np.concatenate(scores), np.concatenate(rows)


def _nearest(stored: StoredVectors, queries: Float32, top_k: int, graph: Any) -> tuple[Float64, RowNumbers]:
    wanted = min(top_k * (OVERSAMPLING if stored.dtype == "binary" else 2), len(stored))
    candidates = None if graph is None else _of_graph(graph, stored, queries, wanted)
    if candidates is None and stored.dtype != "binary":
        return _exact(stored, queries, top_k)
    if candidates is None:
        candidates = _by_hamming(stored, queries, wanted)
    query = np.repeat(np.arange(len(queries)), wanted)
    return _best(query, _scores(stored, queries, query, candidates.ravel()), candidates.ravel(), top_k)


def _exact(stored: StoredVectors, queries: Float32, top_k: int) -> tuple[Float64, RowNumbers]:
    """The rows with the highest exact scores.

    Products in fp32 only choose candidates. Every row within the rounding error of the k-th best so far is multiplied
    again in fp64, entry by entry, so equal vectors have equal scores wherever they stand.
    """
    rounding = stored.dim * 2.0**-23  # bounds the error of a product of unit vectors in fp32, in any order of summation
    return _blockwise(
        len(stored),
        len(queries),
        top_k,
        lambda start, stop: queries @ stored.floats(slice(start, stop)).T,  # (q, block)
        lambda query, row, _: _scores(stored, queries, query, row),
        rounding,
    )


def _by_hamming(stored: StoredVectors, queries: Float32, top_k: int) -> RowNumbers:
    """The rows, (q, top_k), whose sign bits differ from the queries' in the fewest places.

    Counting bits takes 1/8 of the time of a product of unpacked signs for 100 queries, 1/200 for one.
    """
    bits = StoredVectors.of(queries, "binary").codes  # (q, bytes)
    whole = bits.shape[1] // 8 * 8  # bytes that 8-byte words cover; the rest is compared byte by byte

    def agreement(start: int, stop: int) -> Float32:
        codes = np.ascontiguousarray(stored.codes[start:stop])
        differing = np.zeros((len(bits), len(codes)), np.uint16)  # (q, block)
        for columns, kind in ((slice(0, whole), np.uint64), (slice(whole, None), np.uint8)):
            asked = np.ascontiguousarray(bits[:, columns]).view(kind).T  # (words, q)
            words = np.ascontiguousarray(np.ascontiguousarray(codes[:, columns]).view(kind).T)  # (words, block)
            for query_word, stored_words in zip(asked, words, strict=True):
                differing += np.bitwise_count(query_word[:, None] ^ stored_words)
        return np.negative(differing, dtype=np.float32)

    return _blockwise(len(stored), len(bits), top_k, agreement, lambda _, __, found: found.astype(np.float64), 0)[1]


def _blockwise(
    count: int,
    queries: int,
    top_k: int,
    quick: Callable[[int, int], Float32],
    exact: Callable[[RowNumbers, RowNumbers, Float32], Float64],
    error: float,
) -> tuple[Float64, RowNumbers]:
    """The best ``top_k`` of ``count`` rows for each query, block by block.

    Args:
        count: number of rows.
        queries: number of queries.
        top_k: rows for each query, at most ``count``.
        quick: scores of the rows ``start`` to ``stop``, (q, block).
        exact: scores of pairs, from the numbers of queries and rows and the quick scores, (m,) each.
        error: largest error of a quick score.
    """
    scores = np.full((queries, top_k), -np.inf)
    rows = np.full((queries, top_k), count)
    best_query = np.repeat(np.arange(queries), top_k)  # of the best so far
    for start in range(0, count, ROWS):
        block = quick(start, min(start + ROWS, count))  # (q, block)
        bound = scores[:, -1].astype(np.float32) - np.float32(error)
        query, place = _where(block > bound[:, None])  # an equal score loses to an earlier row
        if len(query) > len(best_query) and block.shape[1] > top_k:  # the first block, or one that is better throughout
            kth = np.partition(block, -top_k, axis=1)[:, -top_k]
            query, place = _where((block > bound[:, None]) & (block >= (kth - np.float32(2 * error))[:, None]))
        if len(query):
            new = exact(query, place + start, block[query, place])
            scores, rows = _best(
                np.concatenate([best_query, query]),
                np.concatenate([scores.ravel(), new]),
                np.concatenate([rows.ravel(), place + start]),
                top_k,
            )
    return scores, rows


def _where(chosen: NDArray[np.bool_]) -> tuple[RowNumbers, RowNumbers]:
    """Same as ``np.nonzero`` of a matrix, in a fifth of its time."""
    query, place = np.divmod(np.flatnonzero(chosen), chosen.shape[1])
    return query, place


def _scores(stored: StoredVectors, queries: Float32, query: RowNumbers, row: RowNumbers) -> Float64:
    """Products in fp64 of pairs, (m,), given by their numbers, (m,) each."""
    scores = np.empty(len(query))
    for start in range(0, len(query), RESCORED):
        pairs = slice(start, start + RESCORED)
        vectors = stored.floats(row[pairs], np.float64)
        scores[pairs] = (queries[query[pairs]].astype(np.float64) * vectors).sum(axis=1)
    return scores


def _best(query: RowNumbers, scores: Float64, rows: RowNumbers, top_k: int) -> tuple[Float64, RowNumbers]:
    """The best ``top_k`` of each query's candidates (at least as many), equal ones by row: (m,) each to (q, top_k)."""
    order = np.lexsort((rows, -scores, query))
    first = np.flatnonzero(np.diff(query[order], prepend=-1))  # where each query's candidates begin
    chosen = order[first[:, None] + np.arange(top_k)]  # (q, top_k)
    return scores[chosen], rows[chosen]


# the graph


def graph_of(stored: StoredVectors, connectivity: int, breadth: int) -> Any:
    """usearch's graph (HNSW) of stored vectors; it holds a copy of them, fp32 as fp16.

    Args:
        stored: the vectors.
        connectivity: neighbours of a vector in the graph.
        breadth: candidates compared for each vector that is added.

    Raises:
        UserError: usearch is not installed.
    """
    metric, dtype = _GRAPHS[stored.dtype]
    size = stored.codes.shape[1] * 8 if stored.dtype == "binary" else stored.dim
    graph = usearch().Index(ndim=size, metric=metric, dtype=dtype, connectivity=connectivity, expansion_add=breadth)
    extend_graph(graph, stored, 0)
    return graph


def extend_graph(graph: Any, stored: StoredVectors, start: int) -> None:
    """Add the vectors from row ``start`` on to the graph."""
    graph.add(np.arange(start, len(stored), dtype=np.uint64), stored.codes[start:])


def _of_graph(graph: Any, stored: StoredVectors, queries: Float32, wanted: int) -> RowNumbers | None:
    """Candidates, (q, wanted); None if the graph finds fewer, because no path leads to a part of it."""
    graph.expansion_search = max(64, 2 * wanted)
    keys = np.atleast_2d(graph.search(StoredVectors.of(queries, stored.dtype).codes, wanted).keys).astype(np.int64)
    return None if keys.shape[1] < wanted or (keys >= len(stored)).any() else keys


def usearch() -> Any:
    """The module of approximate search.

    Raises:
        UserError: it is not installed.
    """
    require("search", "approximate search")
    import usearch.index

    return usearch.index
