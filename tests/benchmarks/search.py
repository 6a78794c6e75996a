"""Search: exact search against sentence-transformers' own, the graph against exact search, and the cost of building.

    python tests/benchmarks/search.py exact [--rows 1000000] [--dim 256] [--repeats 5]
    python tests/benchmarks/search.py million [--dtype fp32] [--rows 1000000] [--dim 256] [--repeats 5]
    python tests/benchmarks/search.py corpus --corpus wiki.txt.xz --model out [--sentences 100000] [--index idx]
    python tests/benchmarks/search.py recall --corpus wiki.txt.xz --model out [--sentences 100000] [--index idx]

``exact`` searches random unit vectors: this package's index (fp32 and fp16) and ``semantic_search`` take turns; the
memory of each is measured in a separate process. ``million`` builds an index of such vectors in a folder, from a
generator of sentences, and searches it with 1,000 queries at once: seconds by the clock and peak memory. ``recall``
compares the rows that each dtype finds with those of fp32. ``corpus`` encodes real sentences, or loads their index
from ``--index``, and searches with the 1,000 sentences that follow them in the file. Times of ``exact`` and ``corpus``
are processor time, so other programs on the machine do not count. Figures are medians with their range, for Markdown
tables.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import semantic_search

from dystress_text.files.text_lines import CorpusReport, open_text, read_sentences
from dystress_text.search.nearest_rows import nearest
from dystress_text.search.sentence_index import SentenceIndex, build_index
from dystress_text.search.sentence_vectors import unit_vectors
from dystress_text.search.stored_vectors import DTYPES, StoredVectors

TOP_K, BATCHES, QUERIES = 10, (1, 10, 100), 1000
CONTESTANTS = ("fp32", "fp16", "semantic_search")
Vectors = NDArray[np.floating[Any]]


def seconds_of(work: Callable[..., Any], *arguments: Any, **options: Any) -> float:
    """Processor time of one call."""
    start = time.process_time()
    work(*arguments, **options)
    return time.process_time() - start


def peak_kb() -> int:
    """Peak resident memory so far; getrusage's would begin with the parent process's."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])


def spread(values: list[float], scale: float = 1000) -> str:
    """Median and range, by default in ms."""
    median, low, high = (f * scale for f in (statistics.median(values), min(values), max(values)))
    return f"{median:.3g} ({low:.3g} to {high:.3g})"


def random_vectors(rows: int, dim: int) -> NDArray[np.float32]:
    """Unit vectors, (rows, dim)."""
    vectors = np.random.default_rng(0).standard_normal((rows, dim), dtype=np.float32)
    for start in range(0, rows, 10_000):  # in place
        vectors[start : start + 10_000] /= np.linalg.norm(vectors[start : start + 10_000], axis=1, keepdims=True)
    return vectors


def contestant(name: str, vectors: Vectors) -> Callable[[NDArray[np.float32]], Any]:
    """A search over vectors; fp16 vectors are stored as fp16."""
    if name == "semantic_search":
        corpus = torch.from_numpy(vectors)
        return lambda queries: semantic_search(torch.from_numpy(queries), corpus, top_k=TOP_K)
    stored = StoredVectors("fp16" if vectors.dtype == np.float16 else "fp32", vectors, vectors.shape[1])
    return lambda queries: nearest(stored, queries, TOP_K)


def measure_exact(options: argparse.Namespace) -> None:
    """Time and memory of exact search."""
    if options.memory:
        vectors = random_vectors(options.rows, options.dim)
        queries = vectors[: BATCHES[-1]].copy()
        stored = vectors.astype(np.float16) if options.memory == "fp16" else vectors
        contestant(options.memory, stored[:1000])(queries)
        before = peak_kb()
        contestant(options.memory, stored)(queries)
        print((peak_kb() - before) / 1e3)
        return
    vectors = random_vectors(options.rows, options.dim)
    half = vectors.astype(np.float16)
    searches = {name: contestant(name, half if name == "fp16" else vectors) for name in CONTESTANTS}
    queries = random_vectors(BATCHES[-1] + options.rows, options.dim)[options.rows :]
    ours, theirs = searches["fp32"](queries)[1], searches["semantic_search"](queries)
    same = np.mean([[r["corpus_id"] for r in row] == list(m) for m, row in zip(ours, theirs, strict=True)])
    print(f"{options.rows:,} x {options.dim}; the same rows in the same order for {same:.1%} of the queries")
    memory = {
        name: float(subprocess.check_output([sys.executable, *sys.argv, "--memory", name])) for name in CONTESTANTS
    }
    for batch in BATCHES:
        times: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
        for _ in range(options.repeats):
            for name, search in searches.items():
                times[name].append(seconds_of(search, queries[:batch]))
        for name in CONTESTANTS:
            ratios = [theirs / ours for theirs, ours in zip(times["semantic_search"], times[name], strict=True)]
            print(
                f"| {batch} | {name} | {spread(times[name])} | {spread(ratios, 1)} | {memory[name]:.0f} |", flush=True
            )


def real_sentences(options: argparse.Namespace) -> tuple[SentenceTransformer, list[str], list[str]]:
    """The model, the sentences to index, and 1,000 that follow them as queries."""
    with open_text(options.corpus) as stream:
        lines = list(itertools.islice(read_sentences(stream, CorpusReport()), options.sentences + QUERIES))
    model = SentenceTransformer(options.model, device="cpu")
    return model, lines[: options.sentences], lines[options.sentences :]


class Drawn:
    """Stands in for a model: random vectors, different ones at each call."""

    def __init__(self, dim: int) -> None:
        self.dim, self.random = dim, np.random.default_rng(0)

    def encode(self, sentences: list[str], /, **_: Any) -> NDArray[np.float32]:
        """Vectors, (n, dim)."""
        return self.random.standard_normal((len(sentences), self.dim), dtype=np.float32)


def measure_million(options: argparse.Namespace) -> None:
    """Building and a batch of queries, by the clock, and the peak memory of the process, mapped pages included."""
    model, before = Drawn(options.dim), peak_kb()
    with tempfile.TemporaryDirectory() as scratch:
        sentences = (f"sentence {row}" for row in range(options.rows))
        start = time.perf_counter()
        index = build_index(model, sentences, Path(scratch) / "idx", dtype=options.dtype)
        seconds = time.perf_counter() - start
        print(f"{options.dtype}: built in {seconds:.1f} s; peak {peak_kb() / 1e6:.2f} GB, {before / 1e6:.2f} before")
        queries = random_vectors(QUERIES, options.dim)
        clock, processor = [], []
        for _ in range(options.repeats):
            start = time.perf_counter()
            processor.append(seconds_of(index.nearest, queries, TOP_K))
            clock.append(time.perf_counter() - start)
        load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
        print(f"{QUERIES:,} queries: {spread(clock, 1)} s by the clock, {spread(processor, 1)} s of processor time")
        print(f"peak {peak_kb() / 1e6:.2f} GB, {torch.get_num_threads()} threads; load {load}")


def measure_recall(options: argparse.Namespace) -> None:
    """Recall of each dtype against fp32, its size on disk and its time."""
    model, sentences, queries = real_sentences(options)
    vectors = unit_vectors(model, queries, 64)
    with tempfile.TemporaryDirectory() as scratch:
        if options.index is None:
            index = SentenceIndex.build(model, sentences, folder=Path(scratch) / "fp32")
        else:
            index = SentenceIndex.load(options.index, model)
        best = index.nearest(vectors, TOP_K)
        for dtype in DTYPES:
            stored = StoredVectors.of(index.stored.floats(slice(None)), dtype)
            replace(index, stored=stored).save(Path(scratch) / f"as-{dtype}")
            loaded = SentenceIndex.load(Path(scratch) / f"as-{dtype}", model)
            scores, rows = loaded.nearest(vectors, TOP_K)
            recall = np.mean([len(set(a) & set(b)) / TOP_K for a, b in zip(best[1], rows, strict=True)])
            first = np.mean(best[1][:, 0] == rows[:, 0])
            size = sum(file.stat().st_size for file in (Path(scratch) / f"as-{dtype}").glob("[sv]*s.npy"))
            times = [seconds_of(loaded.nearest, vectors[: BATCHES[1]], TOP_K) for _ in range(options.repeats)]
            print(
                f"| {dtype} | {size / 1e6:.1f} | {recall:.4f} | {first:.4f} | {np.abs(scores - best[0]).max():.4f} | "
                f"{spread(times)} |",
                flush=True,
            )


def measure_corpus(options: argparse.Namespace) -> None:
    """Building, exact and approximate search on real sentences."""
    model, sentences, queries = real_sentences(options)
    with tempfile.TemporaryDirectory() as scratch:
        chosen = sentences[: options.build]
        model.encode(chosen[:100])
        before = peak_kb()
        building, encoding = [], []
        for turn in range(options.repeats):
            folder = Path(scratch) / str(turn)
            building.append(seconds_of(SentenceIndex.build, model, chosen, folder=folder))
            encoding.append(seconds_of(model.encode, chosen, batch_size=64, show_progress_bar=False))
        peak = (peak_kb() - before) / 1e3
        ratio = [whole / bare for whole, bare in zip(building, encoding, strict=True)]
        print(f"build, {len(chosen):,} sentences: {spread(building, 1)} s, {peak:.0f} MB more at the peak")
        print(f"build / model.encode: {spread(ratio, 1)}")
        if options.index is None:
            index = SentenceIndex.build(model, sentences, folder=Path(scratch) / "all")
        else:
            opening = seconds_of(SentenceIndex.load, options.index, model)
            unchecked = seconds_of(SentenceIndex.load, options.index, model, check=False)
            print(f"load: {opening * 1e3:.0f} ms, unchecked {unchecked * 1e3:.1f} ms")
            index = SentenceIndex.load(options.index, model)
        print(f"{len(index.sentences):,} sentences, {index.vectors.shape[1]} dimensions")
        vectors = np.asarray(model.encode(queries, normalize_embeddings=True))
        start = time.process_time()
        graph = index.approximate()
        print(f"graph: {time.process_time() - start:.1f} s, {graph.graph.memory_usage / 1e6:.0f} MB")
        exact, found = index.nearest(vectors, TOP_K)[1], graph.nearest(vectors, TOP_K)[1]
        recall = np.mean([len(set(a) & set(b)) / TOP_K for a, b in zip(exact, found, strict=True)])
        print(f"recall@{TOP_K} of {len(queries):,} queries: {recall:.4f}")
        for batch in BATCHES:
            times: dict[str, list[float]] = {"exact": [], "approximate": []}
            for turn in range(options.repeats * 3):
                some = vectors[turn * batch % 900 :][:batch]
                for name, built in (("exact", index), ("approximate", graph)):
                    times[name].append(seconds_of(built.nearest, some, TOP_K))
            for name, values in times.items():
                print(f"| {batch} | {name} | {spread(values)} |", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    measures = {"exact": measure_exact, "million": measure_million, "recall": measure_recall, "corpus": measure_corpus}
    parser.add_argument("what", choices=measures)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--dtype", choices=DTYPES, default="fp32", help="of `million`")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--memory", choices=CONTESTANTS, help=argparse.SUPPRESS)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("--model")
    parser.add_argument("--sentences", type=int, default=100_000)
    parser.add_argument("--build", type=int, default=5_000, help="sentences for timing the build")
    parser.add_argument("--index", type=Path)
    options = parser.parse_args()
    measures[options.what](options)


if __name__ == "__main__":
    main()
