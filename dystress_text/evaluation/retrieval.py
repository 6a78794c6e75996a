"""Search as a measure: collections in BEIR's layout, scored by sentence-transformers' InformationRetrievalEvaluator.

A folder holds ``corpus.jsonl`` (``_id``, ``text`` and perhaps ``title``), ``queries.jsonl`` (``_id``, ``text``) and
``qrels.tsv`` or ``qrels/test.tsv`` (query, document, score). A document is its title and its text; a score above 0
makes it relevant. Source of the layout: Thakur et al., "BEIR", NeurIPS 2021.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from dystress_text.errors import DataError
from dystress_text.evaluation.sts import Embed

METRICS = {"nDCG@10": ("ndcg@k", 10), "MRR@10": ("mrr@k", 10), "recall@100": ("recall@k", 100)}
_QRELS = ("qrels.tsv", "qrels/test.tsv")


@dataclass(frozen=True)
class Collection:
    """Documents, queries and which documents each query should find.

    Attributes:
        name: of its folder.
        documents: texts by id.
        queries: texts by id; those without a relevant document are left out.
        relevant: the ids of a query's relevant documents, by the query's id.
        left_out: number of queries that were left out.
    """

    name: str
    documents: Mapping[str, str]
    queries: Mapping[str, str]
    relevant: Mapping[str, set[str]]
    left_out: int

    def summary(self) -> str:
        """One line for the user."""
        without = f"; {self.left_out:,} queries without a relevant document are left out" if self.left_out else ""
        return f"{self.name}: {len(self.documents):,} documents, {len(self.queries):,} queries{without}"

    def sizes(self) -> dict[str, int]:
        """The numbers of documents, queries and queries left out."""
        return {"documents": len(self.documents), "queries": len(self.queries), "left_out": self.left_out}

    def digest(self) -> str:
        """A checksum of its content."""
        relevant = {query: sorted(found) for query, found in self.relevant.items()}
        return hashlib.sha256(json.dumps([self.documents, self.queries, relevant]).encode()).hexdigest()

    def scores(self, embed: Embed) -> dict[str, float]:
        """The :data:`METRICS` x 100, means over the queries, of documents ranked by cosine similarity."""
        from sentence_transformers.evaluation import (  # type: ignore[import-not-found]  # slow to import
            InformationRetrievalEvaluator,
        )
        from sentence_transformers.util import cos_sim

        class Evaluator(InformationRetrievalEvaluator):  # type: ignore[misc]
            def embed_inputs(self, model: Any, sentences: Sequence[str], **_: Any) -> Tensor:
                return embed(sentences)

        ks = {argument: [METRICS[name][1]] for argument, name in _ARGUMENTS.items()}
        evaluator = Evaluator(
            dict(self.queries), dict(self.documents), dict(self.relevant), accuracy_at_k=[1], map_at_k=[1],
            score_functions={"cosine": cos_sim}, **ks,
        )  # fmt: skip
        found = evaluator.compute_metrices(None)["cosine"]
        return {name: 100 * float(found[key][k]) for name, (key, k) in METRICS.items()}


_ARGUMENTS = {"ndcg_at_k": "nDCG@10", "mrr_at_k": "MRR@10", "precision_recall_at_k": "recall@100"}


def read_collections(folders: Sequence[str | Path]) -> list[Collection]:
    """Read several, each with a name of its own."""
    found = [read_collection(Path(folder)) for folder in folders]
    names = [collection.name for collection in found]
    if twice := {name for name in names if names.count(name) > 1}:
        raise DataError(f"two collections are named {twice.pop()!r}; rename a folder")
    return found


def read_collection(folder: Path) -> Collection:
    """Read a collection; one whose parts do not fit together is refused."""
    if not folder.is_dir():
        raise DataError(f"no folder {str(folder)!r}")
    documents, queries = (_texts(folder / name) for name in ("corpus.jsonl", "queries.jsonl"))
    qrels = next((folder / name for name in _QRELS if (folder / name).is_file()), None)
    if qrels is None:
        raise DataError(f"{str(folder)!r} has neither {' nor '.join(_QRELS)}")
    relevant: dict[str, set[str]] = {}
    for number, line in enumerate(_lines(qrels), 1):
        cells = line.split("\t")
        try:
            query, document, score = cells[0], cells[1], float(cells[2])
            if len(cells) != 3:
                raise ValueError
        except (ValueError, IndexError):
            if number == 1:  # the header
                continue
            raise DataError(f"line {number} of {qrels} is not a query, a document and a score") from None
        if query not in queries or document not in documents:
            unknown = f"the query {query!r}" if query not in queries else f"the document {document!r}"
            raise DataError(f"line {number} of {qrels} names {unknown}, which the collection has not")
        if score > 0:
            relevant.setdefault(query, set()).add(document)
    if not relevant:
        raise DataError(f"{qrels} has no score above 0")
    asked = {query: text for query, text in queries.items() if query in relevant}
    return Collection(folder.resolve().name, documents, asked, relevant, len(queries) - len(asked))


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from error


def _texts(file: Path) -> dict[str, str]:
    """Texts by id, a title before its text."""
    texts: dict[str, str] = {}
    for number, line in enumerate(_lines(file), 1):
        try:
            row = json.loads(line)
            name, text = str(row["_id"]), f"{row.get('title') or ''} {row['text']}".strip()
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise DataError(f"line {number} of {file} is not JSON with _id and text") from None
        if name in texts:
            raise DataError(f"line {number} of {file} repeats the _id {name!r}")
        texts[name] = text
    return texts
