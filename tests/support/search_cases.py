"""A collection for search, and vectors for texts."""

import json
import zlib

import numpy as np
import torch
from conftest import make_sentences


def random_vectors(texts):
    """Return a random vector for each text, the same for equal texts, (n, 8)."""
    vectors = []
    for text in texts:
        generator = torch.Generator().manual_seed(zlib.crc32(text.encode()))
        vectors.append(torch.randn(8, generator=generator))
    return torch.stack(vectors)


def make_collection(folder, documents=150, queries=12, seed=0):
    """Write a collection with grades 0 to 2; the last query has no judgement."""
    draw = np.random.default_rng(seed)
    texts = make_sentences(documents + queries, seed=seed)
    (folder / "qrels").mkdir(parents=True)
    with (folder / "corpus.jsonl").open("w") as corpus:
        for i, text in enumerate(texts[:documents]):
            title = f"t{i}\u2028" if i % 2 else ""
            row = {"_id": f"d{i}", "title": title, "text": text}
            corpus.write(json.dumps(row, ensure_ascii=False) + "\n\n")
    with (folder / "queries.jsonl").open("w") as file:
        for i, text in enumerate(texts[documents:]):
            file.write(json.dumps({"_id": f"q{i}", "text": text}) + "\n")
    with (folder / "qrels" / "test.tsv").open("w") as qrels:
        qrels.write("query-id\tcorpus-id\tscore\nq0\td5\t0\n")
        for i in range(queries - 1):
            for j in draw.choice(documents, 1 + 4 * (i % 5), replace=False):
                if j != 5:
                    qrels.write(f"q{i}\td{j}\t{1 + j % 2}\n")
    return folder
