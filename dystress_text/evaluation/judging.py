"""Relevance judgements by a person, on the first documents found by several models and BM25.

The folder contains a collection in BEIR's layout, and ``judge.json`` with the documents shown and
the answers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from dystress_text.errors import ParameterError
from dystress_text.evaluation.lexical import LexicalBaseline
from dystress_text.evaluation.retrieval import JUDGE, QRELS
from dystress_text.evaluation.text_encoder import Encoder, load_model
from dystress_text.evaluation.text_sets import checksum_of
from dystress_text.io.atomic import append_json, atomic_folder, write_json, write_text

DEPTH = 5  # documents of each model
RELEVANT = "r"
SKIPPED = "s"
ANSWERS = {RELEVANT: "relevant", "n": "not relevant", SKIPPED: "skipped"}
README = """# Relevance judgements

For each query, the first {depth} documents of BM25 and of each of these models were shown, without
names: {models}. A hybrid's dense model counts as one of them.

Only what was shown is judged. Rankings leave out all other documents, and those that were skipped:
the first {depth} of each model keep their order, and none is unjudged. Use this folder for these
models alone, as what another model finds first may not have been shown:

    dystress evaluate --model {models} --retrieval {folder}
"""


@dataclass
class Judging:
    """The documents to judge, and the answers so far.

    Attributes:
        models: the sorted checksums of the models.
        texts: the checksum of queries and documents.
        shown: the pairs to judge, in order: the index of a query and that of a document.
        answers: one key of :data:`ANSWERS` for each pair judged so far, in the same order.
    """

    models: list[str]
    texts: str
    shown: list[list[int]]
    answers: str = ""

    @property
    def left(self) -> int:
        """The number of documents that are not judged yet."""
        return len(self.shown) - len(self.answers)

    def save(self, folder: Path, answers: str) -> None:
        """Replace the answers; write them and the judgements."""
        self.answers = answers
        write_json(folder / JUDGE, asdict(self))
        lines = ["query-id\tcorpus-id\tscore"]
        for (query, document), answer in zip(self.shown, answers, strict=False):
            if answer != SKIPPED:
                lines.append(f"q{query}\tc{document}\t{int(answer == RELEVANT)}")
        write_text(folder / QRELS[0], "\n".join(lines) + "\n")


def open_judging(
    folder: Path, models: Sequence[str], queries: Sequence[str], documents: Sequence[str]
) -> Judging:
    """Start judging in a new folder, or continue in the folder of the same models and texts.

    Args:
        folder: a folder that does not exist, or that this function made.
        models: folders or hub names of sentence-transformers models.
        queries: distinct texts.
        documents: distinct texts.

    Raises:
        ParameterError: two models are the same, or the folder has other content.
    """
    encoders = {}  # by the checksum of the model
    for name in models:
        encoder, metadata = load_model(name, None)
        checksum = checksum_of({**metadata, "model": None})
        if checksum in encoders:
            raise ParameterError("model", f"{name!r} repeats a model; name each once")
        encoders[checksum] = encoder
    new = Judging(sorted(encoders), checksum_of((queries, documents)), [])
    if not folder.exists():
        searchers: list[Encoder] = [LexicalBaseline(), *encoders.values()]
        searchers += [encoder.dense for encoder in encoders.values() if encoder.dense is not None]
        pools: list[set[int]] = [set() for _ in queries]
        for searcher in searchers:
            for pool, hits in zip(pools, searcher.search(queries, documents, DEPTH), strict=True):
                pool.update(index for index, _ in hits)
        draw = np.random.default_rng(0)
        for query, pool in enumerate(pools):
            new.shown += [[query, index] for index in draw.permutation(sorted(pool)).tolist()]
        with atomic_folder(folder) as staging:
            for file, texts in (("corpus.jsonl", documents), ("queries.jsonl", queries)):
                rows = [{"_id": f"{file[0]}{i}", "text": text} for i, text in enumerate(texts)]
                append_json(staging / file, *rows)
            readme = README.format(depth=DEPTH, models=" ".join(models), folder=folder.name)
            write_text(staging / "README.md", readme)
            new.save(staging, "")
    try:
        judging = Judging(**json.loads((folder / JUDGE).read_text(encoding="utf-8")))
    except (OSError, TypeError, ValueError) as error:
        reason = f"{str(folder)!r} exists and is no folder of dystress judge; name another"
        raise ParameterError("output", reason) from error
    if (judging.models, judging.texts) != (new.models, new.texts):
        reason = f"{str(folder)!r} judges other models or texts; name another folder"
        raise ParameterError("output", reason)
    return judging
