"""Did it help? A search without labels of relevance, on samples that are held out of training.

A text is cut into two halves by its words, and the first half looks for the second one among all
second halves. With supervision an anchor looks for its positive among all held-out positives.
docs/evaluate.md says what that favours, and how well it agrees with a labelled search.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from typing import Any
from unicodedata import category

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray

from dystress_text.data.crops import WORD, too_short
from dystress_text.evaluation.statistics import Difference
from dystress_text.evaluation.sts import Embed
from dystress_text.training.run_record import BASE, RunRecord

LEAST = 25  # samples to hold out, and to train on: an interval of fewer says nothing
SHOWN = 5  # texts whose neighbours are shown
SHOWN_LENGTH = 200  # characters of each
METRIC = "halves_found"
OF_PAIRS = "pairs_recall@1"
# of each metric: what is measured, and what that says
TITLES = {
    METRIC: (
        "half-document recall@1",
        "This measures whether the halves of a document find each other, not whether questions "
        "find their answers. It favours models of crops, and words.",
    ),
    OF_PAIRS: (
        "recall@1 of held-out pairs",
        "This measures whether anchors find their positives among those of the held-out rows; "
        "among more texts it is harder.",
    ),
}
Row = tuple[str, ...]  # a text, or anchor, positive and negatives
# for each sample: 1 if its query finds its document first, else 0; the nearest other first text
Measured = tuple[NDArray[np.float64], list[int]]


def hold_out(read: Callable[[], Iterable[Row]], most: int) -> tuple[list[Row], NDArray[np.int64]]:
    """Return samples at even distances, and the numbers of all with their first texts.

    A tenth is held out, at least ``LEAST`` of twice as many, and nothing of fewer. Passed over are
    samples with a text of an earlier one, and texts too short for two crops. No seed decides.

    Args:
        read: yields the samples; it is called twice.
        most: samples to hold out.
    """
    seen: set[int] = set()
    firsts = array("q")  # hashes of the first text of each sample
    usable = []
    for number, row in enumerate(read()):
        keys = [hash(" ".join(text.casefold().split())) for text in row[:2]]
        long_enough = len(row) > 1 or not too_short(row[0])
        if long_enough and len({*keys}) == len(keys) and seen.isdisjoint(keys):
            usable.append(number)
        firsts.append(keys[0])
        seen.update(keys)
    if len(usable) < 2 * LEAST:
        return [], np.array([], np.int64)
    count = min(most, max(len(usable) // 10, LEAST))
    held = {usable[-(-place * len(usable) // count)] for place in range(count)}
    hashes = np.frombuffer(firsts, np.int64)
    numbers = np.flatnonzero(np.isin(hashes, hashes[[*held]]))
    return [row for number, row in enumerate(read()) if number in held], numbers


def halves_of(text: str) -> tuple[str, str]:
    """Return the words of a text before its middle, and those behind it.

    A character of a script without spaces is a word.
    """
    words = [word.span() for word in WORD.finditer(text)]
    middle = len(words) // 2
    return text[: words[middle - 1][1]], text[words[middle][0] :]


def metric_of(rows: list[Row]) -> str:
    """Return the name of what is measured on samples."""
    return METRIC if len(rows[0]) == 1 else OF_PAIRS


def _searches(rows: list[Row]) -> tuple[list[str], list[str]]:
    """Return queries and the document of each: both halves, or anchor and positive."""
    pairs = [halves_of(*row) if len(row) == 1 else row for row in rows]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def measure(rows: list[Row], encode: Embed) -> Measured:
    """Measure an encoder."""
    queries, documents = _searches(rows)
    texts = [*queries, *documents, *(row[0] for row in rows)]
    vectors = F.normalize(encode(texts).float().cpu(), dim=1)  # (3 n, dim)
    of_query, of_document, of_text = vectors.chunk(3)  # (n, dim) each
    near = (of_text @ of_text.T).fill_diagonal_(-2).argmax(1)  # (n,)
    return _found((of_query @ of_document.T).numpy()), near.tolist()


def by_words(rows: list[Row]) -> NDArray[np.float64]:
    """Return 1 for each query whose document BM25 without marks finds first, else 0, (n,)."""
    from bm25s import BM25

    queries, documents = _searches(rows)
    index = BM25()
    index.index([_words(document) for document in documents], show_progress=False)
    return _found(np.array([index.get_scores(_words(query)) for query in queries]))


def _words(text: str) -> list[str]:
    letters = [" " if category(c)[0] in "PS" else c for c in text.casefold()]
    return WORD.findall("".join(letters)) or [text]


def _found(scores: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Return 1 for each row of (n, n) whose own column is above all others, else 0."""
    scores = scores.round(6)
    at_least = (scores >= scores.diagonal()[:, None]).sum(1)  # (n,)
    return np.where(at_least == 1, 1.0, 0.0)


def compared(rows: list[Row], before: Measured, after: Measured) -> dict[str, Any]:
    """Return the gain, its standard error over the samples, and the neighbours of some.

    The error counts one more sample that is gained and one more that is lost (Bonett and Price,
    2012): samples that all stay as they were are no proof that others do.
    """
    gains = 100 * (after[0] - before[0])  # (n,)
    error = np.append(gains, [100, -100]).std() / (len(gains) + 2) ** 0.5
    neighbours = []
    for places in zip(range(SHOWN), before[1], after[1], strict=False):
        neighbours.append([_shortened(rows[i][0]) for i in places])
    return {
        "metric": metric_of(rows),
        "texts": len(rows),
        "gain": float(gains.mean()),
        "error": float(error) if len(rows) > 1 else None,
        "neighbours": neighbours,
    }


def _shortened(text: str) -> str:
    if len(text) <= SHOWN_LENGTH:
        return text
    return f"{text[:SHOWN_LENGTH]}…"


def outcome(record: RunRecord) -> list[str]:
    """Return the figures of a run's held-out samples and what they measure; none without them."""
    held = record.held_out
    if held is None:
        return []
    name, meaning = TITLES[held.metric]
    untrained = {label: figures.get(held.metric) for label, figures in record.untrained.items()}
    figures = {BASE: untrained.get(BASE), "untrained": untrained[record.pooler]}
    figures |= {"trained": record.trained[held.metric], "BM25": record.lexical[held.metric]}
    known = [f"{label} {figure:.1f}" for label, figure in figures.items() if figure is not None]
    before = BASE if BASE in untrained else "untrained"
    gain = Difference(held.texts, held.gain, held.error).summary("held-out samples")
    lines = [f"{name} x 100: {', '.join(known)}; trained - {before} = {gain}", meaning]
    if held.gain < 0:
        lines.append("The trained model is below the untrained one.")
    return lines
