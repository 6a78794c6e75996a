"""Evaluate search in collections that have BEIR's layout.

The figures equal those of sentence-transformers' InformationRetrievalEvaluator.

A folder contains ``corpus.jsonl`` (``_id``, ``text`` and perhaps ``title``), ``queries.jsonl``
(``_id``, ``text``) and ``qrels.tsv`` or ``qrels/test.tsv`` (query, document, score, perhaps with a
header, or TREC's query, iteration, document, score); the path of a file such as
``FOLDER/qrels/dev.tsv`` selects its judgements. The text of a document is preceded by its title. A
document with a score above 0 is relevant. As in BEIR, judgements of missing queries or documents
are ignored, and a query that is also a document does not find itself. In a folder of ``dystress
judge``, rankings leave out unjudged documents. Source of the layout: Thakur et al., "BEIR",
NeurIPS 2021.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dystress_text.errors import DataError, ParameterError
from dystress_text.evaluation.ranking import WEIGHT
from dystress_text.evaluation.text_encoder import Encoder
from dystress_text.evaluation.text_sets import (
    check_distinct,
    checksum_of,
    one_spaced,
    read_lines,
    score_of,
    slug_of,
)
from dystress_text.io.text_lines import is_text
from dystress_text.training.run_record import Metric

METRICS = ("nDCG@10", "MRR@10", "recall@100")
GRADED = "nDCG@10 (graded)"  # scores are gains, as in BEIR; METRICS count them as 0 or 1
WITH_BM25 = f"{METRICS[0]} with BM25"  # of a model
FUSION = f"{WITH_BM25} (z-scores of each query, weight {WEIGHT})"  # its description
_MEASURES = {  # the measures of metrics, by figure
    "nDCG@10": "ndcg@10",
    "MRR@10": "mrr@10",
    "recall@100": "recall@100",
    GRADED: "ndcg@10_graded",
    WITH_BM25: "ndcg@10_with_bm25",
}
QRELS = ("qrels.tsv", "qrels/test.tsv")  # of the test split
DEEPEST = 100  # documents that a figure needs
JUDGE = "judge.json"  # in a folder of dystress judge

Judgement = tuple[str, str, float]  # query, document, score


@dataclass(frozen=True)
class Collection:
    """Documents, queries, and the relevant documents of each query."""

    name: str  # of its folder, with the split unless that is the test split
    documents: Mapping[str, str]  # texts by id
    queries: Mapping[str, str]  # texts by id
    relevant: Mapping[str, Mapping[str, float]]  # scores of relevant documents, by both ids
    unjudged: int  # queries without a relevant document, which are left out
    ignored: int  # judgements of a query or a document that does not exist
    source: str = ""  # the folder, or the file of judgements
    # queries and documents, if rankings contain no others
    judged: frozenset[tuple[str, str]] = frozenset()

    @cached_property
    def self_queries(self) -> frozenset[str]:
        """The queries that are also documents: same id, same text, and not judged relevant."""
        same = set()
        for name, query in self.queries.items():
            document = one_spaced(self.documents.get(name, ""))
            if document.endswith(one_spaced(query)) and name not in self.relevant[name]:
                same.add(name)
        return frozenset(same)

    @property
    def graded(self) -> bool:
        """Whether some scores are neither 0 nor 1."""
        return any(score != 1 for scores in self.relevant.values() for score in scores.values())

    def summary(self) -> str:
        """Return one line with sizes, and what is left out."""
        alone = "; documents that were not shown are left out" if self.judged else ""
        return (
            f"{self.name}: {len(self.documents):,} documents, {len(self.queries):,} queries; left "
            f"out: {self.unjudged:,} queries without a relevant document, {self.ignored:,} "
            "judgements of missing queries or documents, the own document of "
            f"{len(self.self_queries):,} queries{alone}"
        )

    @property
    def slug(self) -> str:
        """The name as a part of metric names."""
        return slug_of(self.name)

    @cached_property
    def metadata(self) -> dict[str, int | str]:
        """Sizes, what is left out, and a checksum of the content, for result lines."""
        relevant = [(query, sorted(scores.items())) for query, scores in self.relevant.items()]
        content: tuple[Any, ...] = (dict(self.documents), dict(self.queries), relevant)
        if self.judged:
            content = (*content, sorted(self.judged))
        return {
            "documents": len(self.documents),
            "queries": len(self.queries),
            "left_out": self.unjudged,
            "ignored": self.ignored,
            "own": len(self.self_queries),
            "source": self.source,
            "sha256": checksum_of(content),
        }

    @property
    def metrics(self) -> list[str]:
        """The names of the figures, such as ``nDCG@10``."""
        return [*METRICS, GRADED] if self.graded else list(METRICS)

    def metric(self, figure: str) -> Metric:
        """Return the metric of a figure, which is one of :attr:`metrics` or ``WITH_BM25``."""
        main = f"{self.slug}_{_MEASURES[METRICS[0]]}"
        title = FUSION if figure == WITH_BM25 else figure
        return Metric(
            self.slug,
            _MEASURES[figure],
            f"{self.name}: {title} x 100",
            "retrieval",
            lexical="BM25" if figure in (METRICS[0], WITH_BM25) else "",
            lexical_metric=main if figure == WITH_BM25 else "",
        )

    def scores(self, encoder: Encoder) -> dict[str, float]:
        """Return the means x 100 of the :attr:`metrics` over the queries."""
        by_query = self.by_query(encoder)
        return {metric: 100 * float(np.mean(by_query[metric])) for metric in self.metrics}

    def by_query(self, encoder: Encoder) -> dict[str, list[float]]:
        """Return each query's figures from 0 to 1, by metric, in the order of the queries."""
        names = list(self.documents)
        # one more than a figure needs, since a query's own document does not count; of judged
        # documents all, since each may lie behind any number of others
        most = len(names) if self.judged else DEEPEST + 1
        found = encoder.search(list(self.queries.values()), list(self.documents.values()), most)
        figures = []
        for query, hits in zip(self.queries, found, strict=True):
            ranking = [names[index] for index, _ in hits]
            if query in self.self_queries and query in ranking:
                ranking.remove(query)
            if self.judged:
                ranking = [name for name in ranking if (query, name) in self.judged]
            figures.append(_figures(ranking, self.relevant[query]))
        return {metric: [each[metric] for each in figures] for metric in self.metrics}


def _figures(ranking: Sequence[str], relevant: Mapping[str, float]) -> dict[str, float]:
    """Return a query's figures from its ranking and the scores of its relevant documents."""
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
    """Return the discounted cumulative gain of the first ten gains."""
    ranks = 1 + np.arange(len(gains[:10]))
    return float(np.sum(gains[:10] / np.log2(1 + ranks)))


def read_collections(paths: Sequence[str | Path]) -> list[Collection]:
    """Read collections, which must have distinct names.

    Args:
        paths: folders, or files of judgements.

    Raises:
        ParameterError: a collection cannot be read, or two have the same name.
    """
    try:
        collections = [read_collection(Path(path)) for path in paths]
    except DataError as error:
        raise ParameterError("retrieval", str(error)) from error
    check_distinct("retrieval", [collection.slug for collection in collections])
    return collections


def read_collection(path: Path) -> Collection:
    """Read a collection from its folder, or with the judgements in a given file.

    Raises:
        DataError: a file is missing or damaged, or no query has a relevant document.
    """
    if path.suffix == ".tsv":
        qrels = path
        folder = path.parents[1] if path.parent.name == "qrels" else path.parent
    else:
        folder = path
        qrels = next((path / name for name in QRELS if (path / name).is_file()), path / QRELS[0])
    documents = _read_texts(folder / "corpus.jsonl", "title")
    queries = _read_texts(folder / "queries.jsonl")
    name = folder.resolve().name
    if qrels.stem not in ("qrels", "test"):
        name = f"{name} {qrels.stem}"
    judgements = list(_read_judgements(qrels))
    shown = judgements if (folder / JUDGE).is_file() else []
    judged = frozenset((query, document) for query, document, _ in shown)
    collection = _collection(name, queries, documents, judgements)
    return replace(collection, source=str(path), judged=judged)


def collection_from(data: Any) -> Collection:
    """Return a collection, named ``retrieval``, from data in memory.

    Args:
        data: queries, documents and judgements. Texts are mappings from ids to texts, or lists,
            whose ids are 0, 1 and so on. Judgements map the id of a query to the ids of relevant
            documents (or one id), or to scores by id.

    Raises:
        ParameterError: the data have another form. The message does not quote them.
    """
    try:
        queries, documents, judgements = data
        judged: list[Judgement] = []
        for query, scores in _by_id(judgements).items():
            if isinstance(scores, str | int):  # one id
                scores = [scores]
            by_document = scores if isinstance(scores, Mapping) else dict.fromkeys(scores, 1)
            for document, score in by_document.items():
                judged.append((query, str(document), float(score)))
        return _collection("retrieval", _texts_from(queries), _texts_from(documents), judged)
    except (DataError, TypeError, ValueError) as error:
        reason = (
            "expected queries, documents and judgements: texts by id, and for each query ids of "
            "documents or scores by id"
        )
        if isinstance(error, DataError):
            reason = str(error)
        raise ParameterError("retrieval", reason) from error


def _texts_from(values: Any) -> dict[str, str]:
    texts = _by_id(values)
    if not all(map(is_text, texts.values())):
        raise TypeError("a text is not a string")
    return texts


def _by_id(values: Any) -> dict[str, Any]:
    if isinstance(values, str):
        raise TypeError("a text is not a list")
    items = dict(values if isinstance(values, Mapping) else enumerate(values))
    by_id = {str(name): value for name, value in items.items()}
    if len(by_id) < len(items):
        raise DataError("two ids are equal as strings")
    return by_id


def _collection(
    name: str,
    queries: Mapping[str, str],
    documents: Mapping[str, str],
    judgements: Iterable[Judgement],
) -> Collection:
    relevant: dict[str, dict[str, float]] = {}
    ignored = 0
    for query, document, score in judgements:
        if query not in queries or document not in documents:
            ignored += 1
        elif score > 0:
            relevant.setdefault(query, {})[document] = score
    if not relevant:
        reason = (
            f"no query has a relevant document; {ignored} judgements have an id that is missing in "
            "the queries or documents"
        )
        raise DataError(f"{name}: {reason}")
    asked = {query: text for query, text in queries.items() if query in relevant}
    return Collection(name, documents, asked, relevant, len(queries) - len(asked), ignored)


def _read_judgements(qrels: Path) -> Iterator[Judgement]:
    """Yield query, document and score of each line; skip a header, which ends with ``score``.

    TREC's lines have an additional second column, the iteration, and may be separated by spaces.
    """
    for number, (where, line) in enumerate(read_lines(qrels)):
        cells = [cell.strip() for cell in line.split("\t" if "\t" in line else None)]
        if len(cells) == 4:
            del cells[1]
        if len(cells) != 3:
            raise DataError(f"{where}: expected query, document and score, separated by tabs")
        query, document, score = cells
        if number > 0 or score != "score":
            yield query, document, score_of(score, where)


def _read_texts(file: Path, title_column: str = "") -> dict[str, str]:
    """Return texts by id, preceded by their titles, if any."""
    from dystress_text.io.tables import open_table  # pyarrow is slow to import

    texts: dict[str, str] = {}
    rows = open_table(str(file)).rows(("_id", "text", title_column))
    for number, (name, text, title) in enumerate(rows, 1):
        if name is None or not is_text(text) or not isinstance(title, str | None):
            raise DataError(f"{file}, row {number}: expected _id and text")
        if str(name) in texts:
            raise DataError(f"{file}, row {number}: repeats the _id {name!r}")
        texts[str(name)] = f"{title} {text}".strip() if title else text
    return texts
