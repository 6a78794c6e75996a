"""Hold rows out of training, and measure how often their anchors find their positives."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray

from dystress_text.evaluation.lexical import LexicalBaseline
from dystress_text.evaluation.sts import Embed
from dystress_text.training.run_record import HeldOut, Metric

LEAST = 25  # rows to hold out, and to train on: fewer give no useful interval
RECALL = Metric(
    "pairs", "recall@1", "held-out pairs: recall@1 x 100", kind="held-out", lexical="BM25"
)
TrainingRow = tuple[str, ...]  # anchor, positive and negatives


def hold_out(rows: Sequence[TrainingRow], most: int) -> tuple[list[TrainingRow], NDArray[np.int64]]:
    """Hold out a tenth of the rows, evenly spaced, at least ``LEAST``; the seed plays no part.

    Only a row whose anchor and positive occur in no earlier row can be held out. No row is held out
    if there are fewer than twice ``LEAST`` of them, or if fewer than ``LEAST`` rows would remain.

    Args:
        rows: all rows.
        most: the greatest number of rows to hold out.

    Returns:
        The held-out rows, and the indices of the rows to exclude from training: those with the
        anchor or the positive of a held-out row in any column, regardless of case and spacing.
    """
    hashes = np.fromiter((hash(_plain(text)) for row in rows for text in row), np.int64)
    table = hashes.reshape(len(rows), -1)  # (rows, columns)
    seen: set[int] = set()
    candidates = []
    for index, (anchor, positive) in enumerate(table[:, :2].tolist()):
        if anchor != positive and seen.isdisjoint((anchor, positive)):
            candidates.append(index)
        seen.update((anchor, positive))
    none = np.array([], np.int64)
    if len(candidates) < 2 * LEAST:
        return [], none
    count = min(most, max(len(candidates) // 10, LEAST))
    chosen = [candidates[-(-i * len(candidates) // count)] for i in range(count)]
    excluded = np.flatnonzero(np.isin(table, table[chosen, :2]).any(axis=1))
    if len(table) - len(excluded) < LEAST:
        return [], none
    return [rows[i] for i in chosen], excluded


def _plain(text: str) -> str:
    """Normalise the case, spacing and compatible Unicode characters of a text."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(unicodedata.normalize("NFKC", folded).split())


def _anchors_and_positives(rows: list[TrainingRow]) -> tuple[list[str], list[str]]:
    return [row[0] for row in rows], [row[1] for row in rows]


def dense_hits(rows: list[TrainingRow], encode: Embed) -> NDArray[np.float64]:
    """Return 1 for each anchor whose positive has the highest cosine, without a tie, else 0, (n,).

    Args:
        rows: the n held-out rows.
        encode: maps texts to embeddings (texts, dim).
    """
    anchors, positives = _anchors_and_positives(rows)
    vectors = F.normalize(encode([*anchors, *positives]).float().cpu(), dim=1)  # (2 n, dim)
    of_anchor, of_positive = vectors.chunk(2)  # (n, dim) each
    return _hits((of_anchor @ of_positive.T).numpy())


def bm25_hits(rows: list[TrainingRow], language: str | None = None) -> NDArray[np.float64]:
    """Return 1 for each anchor whose positive BM25 ranks first without a tie, else 0, (n,)."""
    scores = LexicalBaseline(language).scores(*_anchors_and_positives(rows))
    return _hits(np.array([*scores]))


def _hits(scores: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Return 1 for each row of ``scores`` (n, n) whose only maximum is on the diagonal, else 0."""
    scores = scores.round(6)
    at_least = (scores >= scores.diagonal()[:, None]).sum(1)  # (n,)
    return np.where(at_least == 1, 1.0, 0.0)


def recall_gain(before: NDArray[np.float64], after: NDArray[np.float64]) -> HeldOut:
    """Return the gain in recall from the hits of n rows, (n,) each, with its standard error.

    As Bonett and Price (2012) propose, the standard error counts one more row gained and one more
    lost, so that it is not 0 where no row changes.
    """
    gains = 100 * (after - before)  # (n,)
    error = np.append(gains, [100, -100]).std() / (len(gains) + 2) ** 0.5
    return HeldOut(len(gains), float(gains.mean()), float(error))
