"""A collection for search."""

import json

import numpy as np
from conftest import make_sentences


def make_collection(folder, documents=150, queries=12, seed=0):
    """Documents, queries, of which one has no judgement, and judgements of 0 and 1; BEIR's own
    place of the qrels.
    """
    draw, texts = np.random.default_rng(seed), make_sentences(documents + queries, seed=seed)
    (folder / "qrels").mkdir(parents=True)
    rows = [
        {"_id": f"d{i}", "title": f"t{i}\u2028" * (i % 2), "text": x}
        for i, x in enumerate(texts[:documents])
    ]
    (folder / "corpus.jsonl").write_text(
        "".join(json.dumps(row, ensure_ascii=False) + "\n\n" for row in rows)
    )
    rows = [{"_id": f"q{i}", "text": text} for i, text in enumerate(texts[documents:])]
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = ["query-id\tcorpus-id\tscore", "q0\td5\t0"]
    for i in range(queries - 1):
        lines += [
            f"q{i}\td{j}\t{1 + j % 2}"
            for j in draw.choice(documents, 1 + 4 * (i % 5), replace=False)
            if j != 5
        ]
    (folder / "qrels" / "test.tsv").write_text("\n".join(lines) + "\n")
    return folder
