"""Search as a measure: collections in BEIR's layout, scored by sentence-transformers'
InformationRetrievalEvaluator.

A folder holds ``corpus.jsonl`` (``_id``, ``text`` and perhaps ``title``), ``queries.jsonl``
(``_id``, ``text``) and ``qrels.tsv`` or ``qrels/test.tsv`` (query, document, score, perhaps with a
header); the path of a file such as ``FOLDER/qrels/dev.tsv`` takes its judgements. A document is its
title and its text; a score above 0 makes it relevant. As in BEIR, judgements of what the folder
lacks do not count, and a query that is a document too does not find itself. Source of the layout:
Thakur et al., "BEIR", NeurIPS 2021.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from dystress_text.errors import DataError, ParameterError
from dystress_text.evaluation.embedder import TextEncoder
from dystress_text.evaluation.readers import check_distinct, one_spaced, score_of, slug_of
from dystress_text.evaluation.sts import with_ties
from dystress_text.evaluation.words import Words

METRICS = {"nDCG@10": ("ndcg", 10), "MRR@10": ("mrr", 10), "recall@100": ("precision_recall", 100)}
GRADED = "nDCG@10 (graded)"  # of scores as gains, as BEIR has it; sentence-transformers' evaluator knows 0 and 1 alone
QRELS = "qrels.tsv", "qrels/test.tsv"  # of the test split


@dataclass(frozen=True)
class Collection:
    """Documents, queries and which documents each query should find."""

    name: str  # of its folder, and the split where it is not the test split
    documents: Mapping[str, str]  # texts by id
    queries: Mapping[str, str]  # texts by id
    relevant: Mapping[
        str, Mapping[str, float]
    ]  # the scores of a query's relevant documents, by the ids of both
    left_out: int  # queries without a relevant document
    ignored: int  # judgements of a query or a document that the collection lacks
    graded: bool  # whether there are other scores than 0 and 1

    @cached_property
    def own(self) -> frozenset[str]:
        """The queries that are documents: of the same id and text, and where most are, all of the
        same id. A document that is judged relevant to a query is another text.
        """
        texts = {
            name: one_spaced(text)
            for name, text in self.queries.items()
            if name in self.documents and name not in self.relevant[name]
        }
        alike = {
            name
            for name, text in texts.items()
            if text and one_spaced(self.documents[name]).endswith(text)
        }
        return frozenset(texts if len(alike) * 2 > len(texts) else alike)

    def summary(self) -> str:
        """One line for the user."""
        notes = (
            (self.left_out, "queries without a relevant document are left out"),
            (self.ignored, "judgements of what the collection lacks are ignored"),
            (len(self.own), "queries are documents, which do not find themselves"),
        )
        said = "".join(f"; {count:,} {note}" for count, note in notes if count)
        return (
            f"{self.name}: {len(self.documents):,} documents, {len(self.queries):,} queries{said}"
        )

    @property
    def slug(self) -> str:
        """The name inside metric names."""
        return slug_of(self.name)

    @cached_property
    def about(self) -> dict[str, int | str]:
        """The numbers of what is there and of what does not count, and a checksum of the content,
        for records.
        """
        relevant = {
            query: sorted(of.items() if self.graded else of) for query, of in self.relevant.items()
        }
        content = [self.documents, self.queries, relevant, *sorted(self.own)]
        sizes = {
            "documents": len(self.documents),
            "queries": len(self.queries),
            "left_out": self.left_out,
        }
        digest = hashlib.sha256(json.dumps(content).encode()).hexdigest()
        return {**sizes, "ignored": self.ignored, "own": len(self.own), "sha256": digest}

    @property
    def metrics(self) -> list[str]:
        """The names of the figures."""
        return [*METRICS, *[GRADED] * self.graded]

    def scores(self, by: TextEncoder | Words) -> dict[str, float]:
        """Return the :attr:`metrics` x 100, means over the queries."""
        from sentence_transformers import SimilarityFunction
        from sentence_transformers.sentence_transformer import evaluation

        base: Any = evaluation.InformationRetrievalEvaluator
        similarity = "cosine" if isinstance(by, Words) else by.similarity
        own = self.own

        class Evaluator(base):  # type: ignore[misc]
            def embed_inputs(
                self, model: Any, sentences: Sequence[str], encode_fn_name: str, **_: Any
            ) -> Tensor:
                vectors: Tensor = (model.query if encode_fn_name == "query" else model.document)(
                    sentences
                )
                return vectors

            def compute_metrics(
                self, hits_of_queries: Sequence[Sequence[dict[str, Any]]]
            ) -> dict[str, Any]:
                ranked, graded, dcg = [], [], self.compute_dcg_at_k
                for query, hits in zip(self.queries_ids, hits_of_queries, strict=True):
                    others = [hit for hit in hits if query not in own or hit["corpus_id"] != query]
                    tied = with_ties(np.array([hit["score"] for hit in others]))
                    others = [
                        {**hit, "score": score} for hit, score in zip(others, tied, strict=True)
                    ]
                    ranked.append(sorted(others, key=lambda hit: (-hit["score"], hit["corpus_id"])))
                    scores = self.relevant_docs[query]
                    gains = [scores.get(hit["corpus_id"], 0.0) for hit in ranked[-1]]
                    graded.append(dcg(gains, 10) / dcg(sorted(scores.values(), reverse=True), 10))
                return {**super().compute_metrics(ranked), GRADED: np.mean(graded)}

        most = 101
        evaluator = Evaluator(
            dict(self.queries), dict(self.documents), dict(self.relevant), accuracy_at_k=[1],
            map_at_k=[most],  # one more than the figures need, since a query's own document does not count
            score_functions={"own": SimilarityFunction.to_similarity_fn(similarity)},
            **{f"{argument}_at_k": [k] for argument, k in METRICS.values()},
        )  # fmt: skip
        if isinstance(by, Words):
            names = list(self.documents)
            found = by.search(list(self.queries.values()), list(self.documents.values()), most)
            hits = [
                [{"corpus_id": names[place], "score": score} for place, score in of] for of in found
            ]
            measured = evaluator.compute_metrics(hits)
        else:
            measured = evaluator.compute_metrices(by)["own"]
        figures = {
            name: measured[f"{name.split('@')[0].lower()}@k"][k] for name, (_, k) in METRICS.items()
        }
        return {
            name: 100 * float((figures | {GRADED: measured[GRADED]})[name]) for name in self.metrics
        }


def read_collections(parameter: str, paths: Sequence[str | Path]) -> list[Collection]:
    """Read several, whose metrics have names of their own; ``parameter`` is what an error names."""
    try:
        collections = [read_collection(Path(path)) for path in paths]
    except DataError as error:
        raise ParameterError(parameter, str(error)) from error
    slugs = [collection.slug for collection in collections]
    if "" in slugs:
        raise ParameterError(parameter, "the name of a folder has no letter or digit; rename it")
    check_distinct(parameter, slugs)
    return collections


def read_collection(path: Path) -> Collection:
    """Read a collection from its folder, or from the file of one split's judgements.

    A collection whose parts do not fit together is refused.
    """
    folder, qrels = _parts(path)
    documents, queries = _texts(folder / "corpus.jsonl"), _texts(folder / "queries.jsonl")
    judged: dict[str, dict[str, float]] = {}
    ignored = 0
    for query, document, score in _judgements(qrels):
        if query in queries and document in documents:
            judged.setdefault(query, {})[document] = score
        else:
            ignored += 1
    positive = {
        query: {name: score for name, score in of.items() if score > 0}
        for query, of in judged.items()
    }
    relevant = {query: of for query, of in positive.items() if of}
    if not relevant:
        lacking = (
            f" for what the collection has; {ignored} judgements are of what it lacks"
            if ignored
            else ""
        )
        raise DataError(f"{qrels} has no score above 0{lacking}")
    asked = {query: text for query, text in queries.items() if query in relevant}
    graded = any(score not in (0, 1) for of in judged.values() for score in of.values())
    split = "" if qrels.stem in ("qrels", "test") else f" {qrels.stem}"
    name = folder.resolve().name + split
    return Collection(name, documents, asked, relevant, len(queries) - len(asked), ignored, graded)


def _parts(path: Path) -> tuple[Path, Path]:
    """Return the folder of a collection and its file of judgements."""
    if path.suffix == ".tsv":
        return path.parent.parent if path.parent.name == "qrels" else path.parent, path
    if not path.is_dir():
        raise DataError(f"no folder {str(path)!r}")
    for name in QRELS:
        if (path / name).is_file():
            return path, path / name
    raise DataError(f"{str(path)!r} has no {' and no '.join(QRELS)}")


def _judgements(qrels: Path) -> Iterator[tuple[str, str, float]]:
    """Yield query, document and score; a first line that ends with ``score`` is a header."""
    for number, line in _lines(qrels):
        cells = [cell.strip() for cell in line.split("\t")]
        if number == 1 and cells[-1] == "score":
            continue
        try:
            query, document, score = *cells[:-1], score_of(cells[-1])
        except ValueError:
            raise DataError(
                f"line {number} of {qrels} is not a query, a document and a score with tabs between them, BEIR's "
                "layout; of TREC's four columns leave out the second"
            ) from None
        yield query, document, score


def _lines(file: Path) -> list[tuple[int, str]]:
    """The lines that are not blank, with their numbers; of all characters a line feed alone ends
    one.
    """
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")
        return [(number, line) for number, line in enumerate(lines, 1) if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"cannot read {file}: {getattr(error, 'strerror', None) or error}"
        ) from error


def _texts(file: Path) -> dict[str, str]:
    """Texts by id, a title before its text."""
    texts: dict[str, str] = {}
    for number, line in _lines(file):
        try:
            row = json.loads(line)
            name, text = (
                str(row["_id"]).strip(),
                " ".join((row.get("title") or "", row["text"])).strip(),
            )
            (name + text).encode()  # half of a surrogate pair is a ValueError
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise DataError(f"line {number} of {file} is not JSON with _id and text") from None
        if name in texts:
            raise DataError(f"line {number} of {file} repeats the _id {name!r}")
        texts[name] = text
    return texts
