"""Measure retrieval without relevance labels, on samples that are held out of training.

Each held-out text is split in two: the first part is a query, and the second parts of all texts are
the documents. With supervision the anchors are the queries and the positives the documents.
docs/evaluate.md describes what this favours and how well it agrees with labelled retrieval.
"""

from __future__ import annotations

import unicodedata
from array import array
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray

from dystress_text.data.crops import WORD, too_short
from dystress_text.evaluation.lexical import LexicalBaseline
from dystress_text.evaluation.statistics import Difference
from dystress_text.evaluation.sts import Embed
from dystress_text.training.run_record import BASE, RunRecord

LEAST = 25  # least samples to hold out, and to keep: fewer give no useful interval
METRIC = "half_document_recall@1"
OF_PAIRS = "pairs_recall@1"
# title and meaning of each metric
TITLES = {
    METRIC: (
        "half-document recall@1",
        "This measures whether the first half of a document retrieves the second, not whether "
        "questions retrieve answers. It favours models trained on crops, and lexical models.",
    ),
    OF_PAIRS: (
        "recall@1 of held-out pairs",
        "This measures whether an anchor retrieves its positive among those of the held-out rows; "
        "among more texts it is harder.",
    ),
}
Row = tuple[str, ...]  # a text, or anchor, positive and negatives


def hold_out(read: Callable[[], Iterable[Row]], most: int) -> tuple[list[Row], NDArray[np.int64]]:
    """Choose evenly spaced samples to hold out; the choice does not depend on the seed.

    A tenth is held out, but at least ``LEAST``; nothing if fewer than twice ``LEAST`` samples are
    usable, or fewer than ``LEAST`` would remain. Unusable are samples whose query or document
    occurs in an earlier sample, and texts too short for two crops.

    Args:
        read: returns an iterator over all samples; called twice.
        most: greatest number of samples to hold out.

    Returns:
        The samples, and the indices of all samples that contain, in any column, the text, the
        anchor or the positive of one of them, in any case and spacing.
    """
    seen: set[int] = set()
    all_keys = array("q")  # hashes of all texts, row after row
    usable = []
    for number, row in enumerate(read()):
        keys = [hash(_plain(text)) for text in row]
        all_keys.extend(keys)
        measured = keys[:2]  # query and document
        long_enough = len(row) > 1 or not too_short(row[0])
        if long_enough and len({*measured}) == len(measured) and seen.isdisjoint(measured):
            usable.append(number)
        seen.update(measured)
    none = np.array([], np.int64)
    if len(usable) < 2 * LEAST:
        return [], none
    count = min(most, max(len(usable) // 10, LEAST))
    held = [usable[-(-i * len(usable) // count)] for i in range(count)]
    table = np.frombuffer(all_keys, np.int64).reshape(number + 1, -1)  # (samples, columns)
    excluded = np.flatnonzero(np.isin(table, table[held, :2]).any(axis=1))
    if len(table) - len(excluded) < LEAST:
        return [], none
    chosen = set(held)
    return [row for i, row in enumerate(read()) if i in chosen], excluded


def _plain(text: str) -> str:
    """Return a text without differences of case, spacing and Unicode's compatible forms."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(unicodedata.normalize("NFKC", folded).split())


def split_in_half(text: str) -> tuple[str, str]:
    """Split a text at its middle word.

    In scripts without spaces each character counts as a word.
    """
    words = [word.span() for word in WORD.finditer(text)]
    middle = len(words) // 2
    return text[: words[middle - 1][1]], text[words[middle][0] :]


def metric_of(rows: list[Row]) -> str:
    """Return the metric's name: of single texts, or of pairs."""
    return METRIC if len(rows[0]) == 1 else OF_PAIRS


def _queries_and_documents(rows: list[Row]) -> tuple[list[str], list[str]]:
    pairs = [split_in_half(*row) if len(row) == 1 else row for row in rows]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def measure(rows: list[Row], encode: Embed) -> NDArray[np.float64]:
    """Return 1 for each query that retrieves its document first, by cosine similarity, else 0.

    Args:
        rows: the held-out samples, n.
        encode: maps texts to embeddings (texts, dim).
    """
    queries, documents = _queries_and_documents(rows)
    vectors = F.normalize(encode([*queries, *documents]).float().cpu(), dim=1)  # (2 n, dim)
    of_query, of_document = vectors.chunk(2)  # (n, dim) each
    return _found((of_query @ of_document.T).numpy())


def bm25_recall(rows: list[Row], language: str | None = None) -> NDArray[np.float64]:
    """Return 1 for each query whose document BM25 ranks first without a tie, else 0, (n,)."""
    scores = LexicalBaseline(language).scores(*_queries_and_documents(rows))
    return _found(np.array([*scores]))


def _found(scores: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Return 1 for each row of (n, n) whose diagonal entry is its only maximum, else 0."""
    scores = scores.round(6)
    at_least = (scores >= scores.diagonal()[:, None]).sum(1)  # (n,)
    return np.where(at_least == 1, 1.0, 0.0)


def compared(
    rows: list[Row], before: NDArray[np.float64], after: NDArray[np.float64]
) -> dict[str, Any]:
    """Return the record of the gain and its standard error over the samples.

    The error adds one gained and one lost sample (Bonett and Price, 2012), so that it is not 0
    where no sample changes.
    """
    gains = 100 * (after - before)  # (n,)
    error = np.append(gains, [100, -100]).std() / (len(gains) + 2) ** 0.5
    return {
        "metric": metric_of(rows),
        "texts": len(rows),
        "gain": float(gains.mean()),
        "error": float(error),
    }


def outcome(record: RunRecord) -> list[str]:
    """Return lines with the figures on a run's held-out samples; [] if there are none."""
    held = record.held_out
    if held is None:
        return []
    name, meaning = TITLES[held.metric]
    figures = {
        BASE: record.untrained.get(BASE, {}),
        record.start: record.untrained[record.pooler],
        "trained": record.trained,
        f"BM25 over {record.lexical_words}": record.lexical,
    }
    known = [f"{label} {of[held.metric]:.1f}" for label, of in figures.items() if of]
    result = f"{name} x 100: {', '.join(known)}"
    if held.metric == OF_PAIRS:
        before = BASE if figures[BASE] else record.start
        gain = Difference(held.texts, held.gain, held.error, most=100).summary("held-out samples")
        result += f"; trained - {before} = {gain}"
    return [result, meaning]
