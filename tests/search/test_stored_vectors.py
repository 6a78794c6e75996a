"""int8 and binary vectors against sentence-transformers' own; search in them against loops."""

import itertools

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.util.quantization import quantize_embeddings, semantic_search_usearch

from dystress_text.errors import UserError
from dystress_text.files.text_lines import CorpusReport, open_text, read_sentences
from dystress_text.search import nearest_rows
from dystress_text.search.nearest_rows import graph_of, nearest
from dystress_text.search.stored_vectors import StoredVectors


def drawn(rows, dim, seed=0, levels=None):
    """Unit vectors; with levels, of few distinct entries, zeros among them."""
    vectors = np.random.default_rng(seed).standard_normal((rows, dim))
    if levels:
        vectors = np.round(vectors * levels)
    return (vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)).astype(np.float32)


@pytest.mark.parametrize("dim", [1, 8, 13, 64, 70])
def test_bits_are_those_of_sentence_transformers(dim):
    vectors = drawn(50, dim, levels=2)
    assert (vectors == 0).any()
    stored = StoredVectors.of(vectors, "binary")
    assert (stored.codes == quantize_embeddings(vectors, "ubinary")).all()
    assert ((stored.codes.astype(int) - 128).astype(np.int8) == quantize_embeddings(vectors, "binary")).all()
    signs = np.where(vectors > 0, 1, -1) / np.sqrt(dim)
    assert stored.floats(np.arange(50), np.float64) == pytest.approx(signs, abs=1e-15)
    assert stored.floats(slice(3, 9)) == pytest.approx(signs[3:9], abs=1e-6)


def test_int8_is_that_of_sentence_transformers_within_a_level():
    """With the range of one row, its 255 levels are nearly our 254; it rounds down, not to nearest."""
    vectors = drawn(40, 96)
    stored = StoredVectors.of(vectors, "int8")
    restored = stored.floats(np.arange(40), np.float64)
    for vector, mine in zip(vectors, restored, strict=True):
        largest = np.abs(vector).max()
        ranges = np.full((2, 96), largest) * [[-1], [1]]
        theirs = quantize_embeddings(vector[None], "int8", ranges=ranges)[0]
        others = (theirs + 128.0) * 2 * largest / 255 - largest  # as sentence-transformers restores them
        assert np.abs(mine - vector).max() <= largest / 254 * (1 + 1e-5)  # half a level
        assert np.abs(mine - others).max() <= largest / 254 + 2 * largest / 255
        assert np.abs(mine - vector).max() < np.abs(others - vector).max()


def test_int8_of_a_row_depends_on_no_other():
    vectors = np.concatenate([drawn(20, 16), np.zeros((1, 16), np.float32), np.eye(16, dtype=np.float32)[:1]])
    whole = StoredVectors.of(vectors, "int8")
    for row in range(len(vectors)):
        alone = StoredVectors.of(vectors[row : row + 1], "int8")
        assert (alone.codes[0] == whole.codes[row]).all()
        assert alone.scales[0] == whole.scales[row]
    assert (whole.floats(np.array([20])) == 0).all()
    assert whole.floats(np.array([21]))[0, 0] == pytest.approx(1, abs=1e-7)


@pytest.mark.parametrize("dtype", ["fp32", "fp16", "int8", "binary"])
def test_joined_vectors_and_slices(dtype):
    vectors = drawn(30, 10)
    stored = StoredVectors.of(vectors, dtype)
    joined = StoredVectors.of(vectors[:11], dtype).joined(StoredVectors.of(vectors[11:], dtype))
    assert (joined.floats(np.arange(30)) == stored.floats(np.arange(30))).all()
    assert stored.floats(slice(5, 9)) == pytest.approx(stored[5:9].floats(np.arange(4), np.float64), abs=1e-7)
    with pytest.raises(UserError, match="dtype: unknown 'int4'; known are fp32, fp16, int8, binary"):
        StoredVectors.of(vectors, "int4")


def two_stages(vectors, query, top_k, wanted):
    """Hamming distances to all, then the fp32 query with the signs of the nearest, equal ones by row."""
    signs = np.where(vectors > 0, 1, -1)
    distances = (signs != np.where(query > 0, 1, -1)).sum(1)
    candidates = np.argsort(distances, kind="stable")[:wanted]
    scores = {int(row): float(signs[row] @ query.astype(np.float64)) / np.sqrt(len(query)) for row in candidates}
    best = sorted(scores, key=lambda row: (-round(scores[row], 12), row))[:top_k]
    return [scores[row] for row in best], best


@pytest.mark.parametrize("dim", [5, 64, 77])
@pytest.mark.parametrize("top_k", [1, 6, 2000])
def test_binary_search_is_its_two_stages(monkeypatch, dim, top_k):
    monkeypatch.setattr(nearest_rows, "ROWS", 97)
    monkeypatch.setattr(nearest_rows, "QUERIES", 4)
    vectors, queries = drawn(700, dim), drawn(11, dim, seed=1)
    scores, rows = nearest(StoredVectors.of(vectors, "binary"), queries, top_k)
    assert scores.shape == rows.shape == (11, min(top_k, 700))
    for query, of_query, found in zip(queries, scores, rows, strict=True):
        expected, places = two_stages(vectors, query, top_k, nearest_rows.OVERSAMPLING * top_k)
        assert found.tolist() == places
        assert of_query == pytest.approx(expected, abs=1e-12)


def test_binary_scores_rank_as_those_of_sentence_transformers(monkeypatch):
    """With all rows as candidates, since which of those at the same distance are taken differs."""
    pytest.importorskip("usearch")
    monkeypatch.setattr(nearest_rows, "OVERSAMPLING", 400)
    vectors, queries = drawn(2000, 128), drawn(20, 128, seed=1)
    theirs, _ = semantic_search_usearch(
        queries, quantize_embeddings(vectors, "ubinary"), corpus_precision="ubinary", top_k=5, rescore_multiplier=400
    )
    rows = nearest(StoredVectors.of(vectors, "binary"), queries, 5)[1]
    assert rows.tolist() == [[match["corpus_id"] for match in of_query] for of_query in theirs]


@pytest.mark.parametrize(("dtype", "least"), [("fp32", 0.97), ("fp16", 0.97), ("int8", 0.97), ("binary", 0.9)])
def test_graphs_find_what_exact_search_finds(dtype, least):
    pytest.importorskip("usearch")
    stored, queries = StoredVectors.of(drawn(4000, 24), dtype), drawn(100, 24, seed=1)
    rows = nearest(stored, queries, 10)[1]
    near, found = nearest(stored, queries, 10, graph_of(stored, 16, 128))
    assert np.mean([len(set(a) & set(b)) / 10 for a, b in zip(rows.tolist(), found.tolist(), strict=True)]) > least
    for query, of_query, its in zip(queries, near, found, strict=True):
        assert of_query == pytest.approx(stored.floats(its, np.float64) @ query.astype(np.float64), abs=1e-12)


def test_real_sentences_keep_their_neighbours(shared):
    """The first lines of the Wikipedia sample: what int8 and binary lose is small, and no more than was measured."""
    with open_text(shared / "data" / "wiki1m_sample.txt.xz") as stream:
        lines = list(itertools.islice(read_sentences(stream, CorpusReport()), 620))
    model = SentenceTransformer(str(shared / "models" / "bert-mini-wiki"), device="cpu")
    with torch.inference_mode():
        vectors = model.encode(lines, normalize_embeddings=True)
    best = nearest(StoredVectors.of(vectors[:600], "fp32"), vectors[600:], 10)[1]
    for dtype, least in (("fp16", 0.99), ("int8", 0.97), ("binary", 0.5)):
        rows = nearest(StoredVectors.of(vectors[:600], dtype), vectors[600:], 10)[1]
        assert np.mean([len(set(a) & set(b)) / 10 for a, b in zip(best.tolist(), rows.tolist(), strict=True)]) > least
