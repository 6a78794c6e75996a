"""Search as a measure: collections in BEIR's layout, scored by sentence-transformers' InformationRetrievalEvaluator.

A folder holds ``corpus.jsonl`` (``_id``, ``text`` and perhaps ``title``), ``queries.jsonl`` (``_id``, ``text``) and
``qrels.tsv`` or ``qrels/test.tsv`` (query, document, score). A document is its title and its text; a score above 0
makes it relevant. Source of the layout: Thakur et al., "BEIR", NeurIPS 2021.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from dystress_text.errors import DataError
from dystress_text.evaluation.sts import Embed

METRICS = {"nDCG@10": ("ndcg", 10), "MRR@10": ("mrr", 10), "recall@100": ("precision_recall", 100)}
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

    @property
    def slug(self) -> str:
        """The name inside metric names: lower case, with ``_`` for all but letters and digits."""
        return re.sub(r"\W+", "_", self.name.lower()).strip("_")

    @cached_property
    def about(self) -> dict[str, int | str]:
        """The numbers of documents, queries and queries left out, and a checksum of the content, for records."""
        relevant = {query: sorted(found) for query, found in self.relevant.items()}
        digest = hashlib.sha256(json.dumps([self.documents, self.queries, relevant]).encode()).hexdigest()
        sizes = {"documents": len(self.documents), "queries": len(self.queries), "left_out": self.left_out}
        return {**sizes, "sha256": digest}

    def scores(self, embed: Embed) -> dict[str, float]:
        """The :data:`METRICS` x 100, means over the queries, of documents ranked by cosine similarity."""
        from sentence_transformers.evaluation import (  # type: ignore[import-not-found]  # slow to import
            InformationRetrievalEvaluator,
        )
        from sentence_transformers.util import cos_sim

        class Evaluator(InformationRetrievalEvaluator):  # type: ignore[misc]
            def embed_inputs(self, model: Any, sentences: Sequence[str], **_: Any) -> Tensor:
                return embed(sentences)

        ks = {f"{argument}_at_k": [k] for argument, k in METRICS.values()}
        evaluator = Evaluator(
            dict(self.queries), dict(self.documents), dict(self.relevant), accuracy_at_k=[1], map_at_k=[1],
            score_functions={"cosine": cos_sim}, **ks,
        )  # fmt: skip
        found = evaluator.compute_metrices(None)["cosine"]
        return {name: 100 * float(found[f"{name.split('@')[0].lower()}@k"][k]) for name, (_, k) in METRICS.items()}


def read_collections(folders: Sequence[str | Path]) -> list[Collection]:
    """Read several, whose metrics have names of their own."""
    found = [read_collection(Path(folder)) for folder in folders]
    slugs = [collection.slug for collection in found]
    for name in slugs:
        if not name or slugs.count(name) > 1:
            problem = f"two collections are named {name!r}" if name else "the name of a folder has no letter or digit"
            raise DataError(f"{problem}; rename it")
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
    for number, line in _lines(qrels):
        cells = line.split("\t")
        try:
            query, document, score = cells
            if not math.isfinite(float(score)):
                raise ValueError
        except ValueError:
            if number == 1 and not (queries.keys() | documents.keys()) & set(cells):  # the header
                continue
            raise DataError(f"line {number} of {qrels} is not a query, a document and a score") from None
        if query not in queries or document not in documents:
            unknown = f"the query {query!r}" if query not in queries else f"the document {document!r}"
            raise DataError(f"line {number} of {qrels} names {unknown}, which the collection has not")
        if float(score) > 0:
            relevant.setdefault(query, set()).add(document)
    if not relevant:
        raise DataError(f"{qrels} has no score above 0")
    asked = {query: text for query, text in queries.items() if query in relevant}
    return Collection(folder.resolve().name, documents, asked, relevant, len(queries) - len(asked))


def _lines(file: Path) -> list[tuple[int, str]]:
    """The lines that are not blank, with their numbers; of all characters a line feed alone ends one."""
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")
        return [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {file}: {getattr(error, 'strerror', None) or error}") from error


def _texts(file: Path) -> dict[str, str]:
    """Texts by id, a title before its text."""
    texts: dict[str, str] = {}
    for number, line in _lines(file):
        try:
            row = json.loads(line)
            name, text = str(row["_id"]), " ".join((row.get("title") or "", row["text"])).strip()
            (name + text).encode()  # half of a surrogate pair is a ValueError
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise DataError(f"line {number} of {file} is not JSON with _id and text") from None
        if name in texts:
            raise DataError(f"line {number} of {file} repeats the _id {name!r}")
        texts[name] = text
    return texts
