"""How fast the corpus builder reads text, in MB of text a second of wall clock and of processor time.

    python tests/benchmarks/corpus_builder.py SENTENCES [--megabytes 200] [--workers 2] [--kind wiki]

SENTENCES is a text file, plain or .xz, one sentence a line. Its sentences are joined into paragraphs of one to eight
and, for ``wiki`` and ``json``, documents of five paragraphs in WikiExtractor's forms; where there are too few, they are
repeated with a number behind each one's first word.
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
import resource
import tempfile
import textwrap
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

PARAGRAPHS = 5


def make_paragraphs(source: Path) -> Iterator[str]:
    """Endless paragraphs of one to eight sentences."""
    chance = random.Random(0)
    for turn in count():
        with (lzma.open if source.suffix == ".xz" else open)(source, "rt", encoding="utf-8") as stream:
            sentences = (line.strip() for line in stream)
            if turn:
                sentences = (f"{s.partition(' ')[0]} {turn} {s.partition(' ')[2]}" for s in sentences)
            while chosen := [s for s, _ in zip(sentences, range(chance.randint(1, 8)), strict=False)]:
                yield " ".join(chosen)


def write_input(source: Path, kind: str, size: int, path: Path) -> None:
    """Text of one kind with at least ``size`` bytes."""
    paragraphs = make_paragraphs(source)
    with path.open("w", encoding="utf-8") as sink:
        written = number = 0
        while written < size:
            texts = [next(paragraphs) for _ in range(PARAGRAPHS)]
            title = f"Document {(number := number + 1)}"
            if kind == "wiki":
                head = f'<doc id="{number}" url="https://example.org/{number}" title="{title}">\n{title}\n\n'
                document = head + "\n".join(texts) + "\n</doc>\n"
            elif kind == "json":
                document = json.dumps({"id": str(number), "title": title, "text": "\n".join(texts)}) + "\n"
            elif kind == "wrapped":
                document = "".join(textwrap.fill(text, 78) + "\n\n" for text in texts)
            else:
                document = "".join(f"{text}\n" for text in texts)
            written += len(document.encode())
            sink.write(document)


def main() -> None:
    """Measure and print one line and its JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sentences", type=Path)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--kind", choices=["wiki", "json", "lines", "wrapped"], default="wiki")
    options = parser.parse_args()
    from dystress_text.preparation.corpus_builder import (  # here: workers import this file, and need no torch
        CorpusBuildSettings,
        build_corpus,
    )

    with tempfile.TemporaryDirectory() as folder:
        source, output = Path(folder, "input"), Path(folder, "corpus.txt")
        write_input(options.sentences, options.kind, options.megabytes * 10**6, source)
        used = time.process_time()
        start = time.perf_counter()
        report = build_corpus([source], output, CorpusBuildSettings(workers=options.workers), progress=False)
        wall = time.perf_counter() - start
        used = time.process_time() - used
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    used += children.ru_utime + children.ru_stime
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    size = report.bytes_read / 1e6
    print("\n".join(report.summary()))
    print(
        f"{options.kind}, {options.workers} workers: {size / wall:.1f} MB/s of wall clock, {size / used:.1f} MB/s of "
        f"processor time; peak memory of the main process {peak:.0f} MB"
    )
    print(json.dumps({"seconds": wall, "cpu_seconds": used, "peak_mb": peak, **report.to_json()}))


if __name__ == "__main__":
    main()
