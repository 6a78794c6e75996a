"""Evaluate search in collections of BEIR's layout.

The figures equal those of sentence-transformers' InformationRetrievalEvaluator.

A folder holds ``corpus.jsonl`` (``_id``, ``text`` and perhaps ``title``), ``queries.jsonl``
(``_id``, ``text``) and ``qrels.tsv`` or ``qrels/test.tsv`` (query, document, score, perhaps with a
header); the path of a file such as ``FOLDER/qrels/dev.tsv`` selects its judgements. A document is
its title and its text; a score above 0 makes it relevant. As in BEIR, judgements of missing queries
or documents are ignored, and a query that is also a document does not find itself. Source of the
layout: Thakur et al., "BEIR", NeurIPS 2021.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dystress_text.errors import DataError, ParameterError
from dystress_text.evaluation.embedder import TextEncoder
from dystress_text.evaluation.lexical import LexicalBaseline
from dystress_text.evaluation.readers import check_distinct, one_spaced, score_of, slug_of
from dystress_text.evaluation.sts import with_ties

METRICS = ("nDCG@10", "MRR@10", "recall@100")
GRADED = "nDCG@10 (graded)"  # scores are gains, as in BEIR; METRICS count them as 0 or 1
QRELS = ("qrels.tsv", "qrels/test.tsv")  # of the test split
DEEPEST = 100  # documents that a figure needs


@dataclass(frozen=True)
class Collection:
    """Documents, queries, and the documents that each query should find."""

    name: str  # of its folder, with the split unless that is the test split
    documents: Mapping[str, str]  # texts by id
    queries: Mapping[str, str]  # texts by id
    relevant: Mapping[str, Mapping[str, float]]  # scores of relevant documents, by both ids
    unjudged: int  # queries without a relevant document, which are left out
    ignored: int  # judgements of a query or a document that does not exist
    graded: bool  # whether there are other scores than 0 and 1

    @cached_property
    def self_queries(self) -> frozenset[str]:
        """The queries that are documents too: same id and text, and not judged relevant.

        If most queries with the id of a document also have its text, all with such an id count.
        """
        same_id = []
        same_text = []
        for name, query in self.queries.items():
            if name not in self.documents or name in self.relevant[name]:
                continue
            same_id.append(name)
            text = one_spaced(query)
            if text and one_spaced(self.documents[name]).endswith(text):
                same_text.append(name)
        return frozenset(same_id if len(same_text) * 2 > len(same_id) else same_text)

    def summary(self) -> str:
        """Return one line: sizes, and what is left out."""
        notes = [f"{self.name}: {len(self.documents):,} documents, {len(self.queries):,} queries"]
        if self.unjudged:
            notes.append(f"{self.unjudged:,} queries without a relevant document left out")
        if self.ignored:
            notes.append(f"{self.ignored:,} judgements of missing queries or documents ignored")
        if self.self_queries:
            count = len(self.self_queries)
            notes.append(f"{count:,} queries are documents, which do not find themselves")
        return "; ".join(notes)

    @property
    def slug(self) -> str:
        """The name inside metric names."""
        return slug_of(self.name)

    @cached_property
    def metadata(self) -> dict[str, int | str]:
        """Sizes, what is left out, and a checksum of the content, for records."""
        relevant = {}
        for query, scores in self.relevant.items():
            relevant[query] = sorted(scores.items() if self.graded else scores)
        content = json.dumps([self.documents, self.queries, relevant, *sorted(self.self_queries)])
        return {
            "documents": len(self.documents),
            "queries": len(self.queries),
            "left_out": self.unjudged,
            "ignored": self.ignored,
            "own": len(self.self_queries),
            "sha256": hashlib.sha256(content.encode()).hexdigest(),
        }

    @property
    def metrics(self) -> list[str]:
        """The names of the figures."""
        return [*METRICS, GRADED] if self.graded else list(METRICS)

    def scores(self, encoder: TextEncoder | LexicalBaseline) -> dict[str, float]:
        """Return the :attr:`metrics` x 100, means over the queries."""
        queries = list(self.queries.values())
        documents = list(self.documents.values())
        names = list(self.documents)
        # one more than a figure needs, since a query's own document does not count
        found = encoder.search(queries, documents, DEEPEST + 1)
        figures = []
        for query, hits in zip(self.queries, found, strict=True):
            similarities = {names[index]: similarity for index, similarity in hits}
            if query in self.self_queries:
                similarities.pop(query, None)
            figures.append(_figures(_ranking(similarities), self.relevant[query]))
        means = {}
        for metric in self.metrics:
            means[metric] = 100 * float(np.mean([each[metric] for each in figures]))
        return means


def _ranking(similarities: Mapping[str, float]) -> list[str]:
    """Return documents by falling similarity; equally similar ones by their ids."""
    tied = with_ties(np.array(list(similarities.values())))
    order = sorted(zip(-tied, similarities, strict=True))
    return [name for _, name in order]


def _figures(ranking: Sequence[str], relevant: Mapping[str, float]) -> dict[str, float]:
    """Return a query's figures, from a ranking of documents and the scores of relevant ones."""
    gains = np.array([relevant.get(name, 0.0) for name in ranking])  # (documents,)
    ideal = np.array(sorted(relevant.values(), reverse=True))
    hits = gains[:10] > 0
    return {
        "nDCG@10": _dcg(gains > 0) / _dcg(ideal > 0),
        "MRR@10": 1 / (1 + int(hits.argmax())) if hits.any() else 0.0,
        "recall@100": np.count_nonzero(gains[:DEEPEST]) / len(relevant),
        GRADED: _dcg(gains) / _dcg(ideal),
    }


def _dcg(gains: NDArray[Any]) -> float:
    """Return the discounted cumulative gain of the first ten."""
    ranks = 1 + np.arange(len(gains[:10]))
    return float(np.sum(gains[:10] / np.log2(1 + ranks)))


def read_collections(parameter: str, paths: Sequence[str | Path]) -> list[Collection]:
    """Read collections with distinct names.

    Args:
        parameter: what errors name.
        paths: folders, or files of judgements.

    Raises:
        ParameterError: a collection cannot be read, or has no name of its own.
    """
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

    Raises:
        DataError: a file is missing or damaged, or no query has a relevant document.
    """
    folder, qrels = _parts(path)
    documents = _read_texts(folder / "corpus.jsonl")
    queries = _read_texts(folder / "queries.jsonl")
    split = "" if qrels.stem in ("qrels", "test") else f" {qrels.stem}"
    name = folder.resolve().name + split
    return _collection(name, queries, documents, _read_judgements(qrels), str(qrels))


def collection_from(data: Any) -> Collection:
    """Return a collection from data in memory, named ``retrieval``.

    Args:
        data: queries, documents and judgements. Texts are mappings from ids, or lists, whose ids
            are 0, 1 and so on. Judgements map the id of a query to a list of ids of relevant
            documents, or to grades by id.

    Raises:
        ParameterError: the data have another form; the message does not show them.
    """
    try:
        queries, documents, judgements = data
        query_texts = _texts_from(queries)
        document_texts = _texts_from(documents)
        judged = list(_judgements_from(judgements))
    except (TypeError, ValueError) as error:
        expected = "texts by id, and for each query ids of documents or grades by id"
        reason = f"expected queries, documents and judgements: {expected}"
        raise ParameterError("retrieval", reason) from error
    try:
        return _collection("retrieval", query_texts, document_texts, judged, "the judgements")
    except DataError as error:
        raise ParameterError("retrieval", str(error)) from error


def _collection(
    name: str,
    queries: Mapping[str, str],
    documents: Mapping[str, str],
    judgements: Iterable[tuple[str, str, float]],
    source: str,
) -> Collection:
    """Return a collection of its parts; errors name ``source``, that of the judgements."""
    relevant: dict[str, dict[str, float]] = {}
    ignored = 0
    graded = False
    for query, document, score in judgements:
        if query not in queries or document not in documents:
            ignored += 1
            continue
        graded |= score not in (0, 1)
        scores = relevant.setdefault(query, {})
        scores.pop(document, None)
        if score > 0:
            scores[document] = score
    relevant = {query: scores for query, scores in relevant.items() if scores}
    if not relevant:
        reason = f"{source}: no relevant document"
        if ignored:
            reason += f"; {ignored} judgements are of missing queries or documents"
        raise DataError(reason)
    asked = {query: text for query, text in queries.items() if query in relevant}
    unjudged = len(queries) - len(asked)
    return Collection(name, documents, asked, relevant, unjudged, ignored, graded)


def _parts(path: Path) -> tuple[Path, Path]:
    """Return the folder of a collection and its file of judgements."""
    if path.suffix == ".tsv":
        folder = path.parent
        return folder.parent if folder.name == "qrels" else folder, path
    if not path.is_dir():
        raise DataError(f"no folder {str(path)!r}")
    for name in QRELS:
        if (path / name).is_file():
            return path, path / name
    raise DataError(f"{str(path)!r} has no {' and no '.join(QRELS)}")


def _read_judgements(qrels: Path) -> Iterator[tuple[str, str, float]]:
    """Yield query, document and score; a first line that ends with ``score`` is a header."""
    for number, line in _lines(qrels):
        cells = [cell.strip() for cell in line.split("\t")]
        if number == 1 and cells[-1] == "score":
            continue
        try:
            query, document, score = cells
            yield query, document, score_of(score)
        except ValueError:
            raise DataError(
                f"line {number} of {qrels} is not a query, a document and a score, with tabs "
                "between them (BEIR's layout, not TREC's)"
            ) from None


def _lines(file: Path) -> list[tuple[int, str]]:
    """Return the lines that are not blank with their numbers; only line feeds end a line."""
    try:
        lines = file.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"cannot read {file}: {reason}") from error
    return [(number, line) for number, line in enumerate(lines, 1) if line.strip()]


def _read_texts(file: Path) -> dict[str, str]:
    """Return texts by id, each with its title before it."""
    texts: dict[str, str] = {}
    for number, line in _lines(file):
        try:
            row = json.loads(line)
            name = str(row["_id"]).strip()
            text = " ".join((row.get("title") or "", row["text"])).strip()
            (name + text).encode()  # a lone surrogate is a ValueError
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise DataError(f"line {number} of {file} is not JSON with _id and text") from None
        if name in texts:
            raise DataError(f"line {number} of {file} repeats the _id {name!r}")
        texts[name] = text
    return texts


def _by_id(values: Any) -> dict[Any, Any]:
    """Return values by their ids; those of a list are 0, 1 and so on."""
    return dict(values if isinstance(values, Mapping) else enumerate(values))


def _texts_from(values: Any) -> dict[str, str]:
    texts = _by_id(values)
    for text in texts.values():
        if not isinstance(text, str):
            raise TypeError
        text.encode()  # a lone surrogate is a ValueError
    by_name = {str(name): text for name, text in texts.items()}
    if len(by_name) < len(texts):
        raise ValueError("two ids are the same text")
    return by_name


def _judgements_from(judgements: Any) -> Iterator[tuple[str, str, float]]:
    for query, judged in _by_id(judgements).items():
        grades = judged if isinstance(judged, Mapping) else dict.fromkeys(judged, 1)
        for document, grade in grades.items():
            yield str(query), str(document), score_of(grade)
