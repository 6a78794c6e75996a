"""Search as a measure: collections in BEIR's layout, with the figures of sentence-transformers'
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
GRADED = "nDCG@10 (graded)"  # of scores as gains, as BEIR has it; METRICS take them as 0 and 1
QRELS = "qrels.tsv", "qrels/test.tsv"  # of the test split


@dataclass(frozen=True)
class Collection:
    """Documents, queries and which documents each query should find."""

    name: str  # of its folder, and the split where it is not the test split
    documents: Mapping[str, str]  # texts by id
    queries: Mapping[str, str]  # texts by id
    relevant: Mapping[str, Mapping[str, float]]  # scores of relevant documents, by both ids
    left_out: int  # queries without a relevant document
    ignored: int  # judgements of a query or a document that the collection lacks
    graded: bool  # whether there are other scores than 0 and 1

    @cached_property
    def own(self) -> frozenset[str]:
        """The queries that are documents: of the same id and text, and where most are, all of the
        same id. A document that is judged relevant to a query is another text.
        """
        numbered = []
        alike = []
        for name, query in self.queries.items():
            if name not in self.documents or name in self.relevant[name]:
                continue
            numbered.append(name)
            text = one_spaced(query)
            if text and one_spaced(self.documents[name]).endswith(text):
                alike.append(name)
        return frozenset(numbered if len(alike) * 2 > len(numbered) else alike)

    def summary(self) -> str:
        """One line for the user."""
        notes = (
            (self.left_out, "queries without a relevant document are left out"),
            (self.ignored, "judgements of what the collection lacks are ignored"),
            (len(self.own), "queries are documents, which do not find themselves"),
        )
        sizes = f"{len(self.documents):,} documents, {len(self.queries):,} queries"
        said = (f"{count:,} {note}" for count, note in notes if count)
        return "; ".join([f"{self.name}: {sizes}", *said])

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
        content = json.dumps([self.documents, self.queries, relevant, *sorted(self.own)])
        return {
            "documents": len(self.documents),
            "queries": len(self.queries),
            "left_out": self.left_out,
            "ignored": self.ignored,
            "own": len(self.own),
            "sha256": hashlib.sha256(content.encode()).hexdigest(),
        }

    @property
    def metrics(self) -> list[str]:
        """The names of the figures."""
        return [*METRICS, GRADED] if self.graded else list(METRICS)

    def scores(self, by: TextEncoder | LexicalBaseline) -> dict[str, float]:
        """Return the :attr:`metrics` x 100, means over the queries."""
        # one more than the figures need, since a query's own document does not count
        found = by.search([*self.queries.values()], [*self.documents.values()], 101)
        names = list(self.documents)
        figures = []
        for query, hits in zip(self.queries, found, strict=True):
            similarities = {names[index]: similarity for index, similarity in hits}
            if query in self.own:
                similarities.pop(query, None)
            figures.append(_figures(_ranking(similarities), self.relevant[query]))
        return {
            metric: 100 * float(np.mean([of_query[metric] for of_query in figures]))
            for metric in self.metrics
        }


def _ranking(similarities: Mapping[str, float]) -> list[str]:
    """Return documents, the nearest first; equally near ones are in the order of their ids."""
    tied = with_ties(np.array(list(similarities.values())))
    key = {name: (-similarity, name) for name, similarity in zip(similarities, tied, strict=True)}
    return sorted(similarities, key=key.__getitem__)


def _figures(ranking: Sequence[str], relevant: Mapping[str, float]) -> dict[str, float]:
    """Return a query's figures, from a ranking of documents and the scores of relevant ones."""
    gains = np.array([relevant.get(name, 0.0) for name in ranking])  # (documents,)
    ideal = np.array(sorted(relevant.values(), reverse=True))
    hits = gains[:10] > 0
    return {
        "nDCG@10": _dcg(gains > 0) / _dcg(ideal > 0),
        "MRR@10": 1 / (1 + int(hits.argmax())) if hits.any() else 0.0,
        "recall@100": np.count_nonzero(gains[:100]) / len(relevant),
        GRADED: _dcg(gains) / _dcg(ideal),
    }


def _dcg(gains: NDArray[Any]) -> float:
    """Return the discounted cumulative gain of the first ten."""
    ranks = 1 + np.arange(len(gains[:10]))
    return float(np.sum(gains[:10] / np.log2(1 + ranks)))


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
    documents = _texts(folder / "corpus.jsonl")
    queries = _texts(folder / "queries.jsonl")
    split = "" if qrels.stem in ("qrels", "test") else f" {qrels.stem}"
    name = folder.resolve().name + split
    return _collection(name, queries, documents, _judgements(qrels), str(qrels))


def collection_from(data: object) -> Collection:
    """Return a collection from Python, of the name ``retrieval``; errors never show the data.

    Args:
        data: queries, documents and judgements. The texts are mappings from ids, or lists, whose
            ids are 0, 1 and so on. The judgements of a query, by its id, are a list of ids of
            relevant documents, or a mapping from ids to grades.
    """
    try:
        if not isinstance(data, list | tuple) or len(data) != 3:
            raise DataError("expected queries, documents and judgements, or a folder")
        queries = _texts_from("queries", data[0])
        documents = _texts_from("documents", data[1])
        judged = _judgements_from(data[2])
        return _collection("retrieval", queries, documents, judged, "the judgements")
    except DataError as error:
        raise ParameterError("retrieval", str(error)) from error


def _collection(
    name: str,
    queries: Mapping[str, str],
    documents: Mapping[str, str],
    judgements: Iterable[tuple[str, str, float]],
    source: str,
) -> Collection:
    """Return a collection of its parts; ``source`` of the judgements is what an error names."""
    judged: dict[str, dict[str, float]] = {}
    ignored = 0
    for query, document, score in judgements:
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
        reason = f"{source}: no score above 0"
        if ignored:
            reason += f" for what the collection has; {ignored} judgements are of what it lacks"
        raise DataError(reason)
    asked = {query: text for query, text in queries.items() if query in relevant}
    graded = any(score not in (0, 1) for of in judged.values() for score in of.values())
    return Collection(name, documents, asked, relevant, len(queries) - len(asked), ignored, graded)


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
                f"line {number} of {qrels} is not a query, a document and a score with tabs "
                "between them, BEIR's layout; of TREC's four columns leave out the second"
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
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"cannot read {file}: {reason}") from error


def _texts(file: Path) -> dict[str, str]:
    """Texts by id, a title before its text."""
    texts: dict[str, str] = {}
    for number, line in _lines(file):
        try:
            row = json.loads(line)
            name = str(row["_id"]).strip()
            text = " ".join((row.get("title") or "", row["text"])).strip()
            (name + text).encode()  # half of a surrogate pair is a ValueError
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise DataError(f"line {number} of {file} is not JSON with _id and text") from None
        if name in texts:
            raise DataError(f"line {number} of {file} repeats the _id {name!r}")
        texts[name] = text
    return texts


def _by_id(what: str, values: Any) -> dict[Any, Any]:
    """Return values by their ids; those of a list are 0, 1 and so on."""
    try:
        return dict(values if isinstance(values, Mapping) else enumerate(values))
    except TypeError:
        expected = "a mapping from ids or a list"
        raise DataError(f"{what}: expected {expected}, got {type(values).__name__}") from None


def _texts_from(what: str, texts: Any) -> dict[str, str]:
    by_id = _by_id(what, texts)
    for number, text in enumerate(by_id.values()):
        try:
            text.encode()  # half of a surrogate pair is a ValueError
        except (AttributeError, ValueError):
            kind = type(text).__name__
            raise DataError(f"{what}, item {number}: expected a text, got {kind}") from None
    found = {str(name): text for name, text in by_id.items()}
    if len(found) < len(by_id):
        raise DataError(f"{what}: two ids are the same text")
    return found


def _judgements_from(judgements: Any) -> Iterator[tuple[str, str, float]]:
    """Yield what :func:`_judgements` does."""
    for number, (query, judged) in enumerate(_by_id("judgements", judgements).items()):
        where = f"judgements, item {number}"
        grades = judged
        if not isinstance(judged, Mapping):
            grades = dict.fromkeys(_by_id(where, judged).values(), 1)
        for document, grade in grades.items():
            try:
                yield str(query), str(document), score_of(grade)
            except ValueError as error:
                raise DataError(f"{where}: {error}") from error
