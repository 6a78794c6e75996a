"""Hold rows out of training, and measure how their anchors retrieve their positives."""

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

LEAST = 25  # least rows to hold out, and to keep: fewer give no useful interval
RECALL = Metric(
    "pairs", "recall@1", "held-out pairs: recall@1 x 100", kind="held-out", lexical="BM25"
)
Row = tuple[str, ...]  # anchor, positive and negatives


def hold_out(rows: Sequence[Row], most: int) -> tuple[list[Row], NDArray[np.int64]]:
    """Choose evenly spaced rows to hold out; the choice does not depend on the seed.

    A tenth of the rows is held out, but at least ``LEAST``. Nothing is held out if fewer than twice
    ``LEAST`` rows are usable, or if fewer than ``LEAST`` would remain. A row is not usable if its
    anchor or positive occurs in an earlier row.

    Args:
        rows: all rows.
        most: greatest number of rows to hold out.

    Returns:
        The held-out rows, and the indices of all rows to exclude from training: those that contain,
        in any column, the anchor or the positive of a held-out row. Case and spacing do not count.
    """
    hashes = np.fromiter((hash(_plain(text)) for row in rows for text in row), np.int64)
    table = hashes.reshape(len(rows), -1)  # (rows, columns)
    seen: set[int] = set()
    usable = []
    for number, (anchor, positive) in enumerate(table[:, :2].tolist()):
        if anchor != positive and seen.isdisjoint((anchor, positive)):
            usable.append(number)
        seen.update((anchor, positive))
    none = np.array([], np.int64)
    if len(usable) < 2 * LEAST:
        return [], none
    count = min(most, max(len(usable) // 10, LEAST))
    held = [usable[-(-i * len(usable) // count)] for i in range(count)]
    excluded = np.flatnonzero(np.isin(table, table[held, :2]).any(axis=1))
    if len(table) - len(excluded) < LEAST:
        return [], none
    return [rows[i] for i in held], excluded


def _plain(text: str) -> str:
    """Normalise the case, spacing and compatible Unicode characters of a text."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    return " ".join(unicodedata.normalize("NFKC", folded).split())


def _anchors_and_positives(rows: list[Row]) -> tuple[list[str], list[str]]:
    return [row[0] for row in rows], [row[1] for row in rows]


def measure(rows: list[Row], encode: Embed) -> NDArray[np.float64]:
    """Return 1 for each anchor whose positive is nearest by cosine similarity, else 0, (n,).

    Args:
        rows: the n held-out rows.
        encode: maps texts to embeddings (texts, dim).
    """
    anchors, positives = _anchors_and_positives(rows)
    vectors = F.normalize(encode([*anchors, *positives]).float().cpu(), dim=1)  # (2 n, dim)
    of_anchor, of_positive = vectors.chunk(2)  # (n, dim) each
    return _found((of_anchor @ of_positive.T).numpy())


def bm25_recall(rows: list[Row], language: str | None = None) -> NDArray[np.float64]:
    """Return 1 for each anchor whose positive BM25 ranks first without a tie, else 0, (n,)."""
    scores = LexicalBaseline(language).scores(*_anchors_and_positives(rows))
    return _found(np.array([*scores]))


def _found(scores: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Return 1 for each row of scores (n, n) with its only maximum on the diagonal, else 0."""
    scores = scores.round(6)
    at_least = (scores >= scores.diagonal()[:, None]).sum(1)  # (n,)
    return np.where(at_least == 1, 1.0, 0.0)


def compared(rows: list[Row], before: NDArray[np.float64], after: NDArray[np.float64]) -> HeldOut:
    """Return the gain and its standard error over the rows, for the record.

    The standard error counts one more gained and one more lost row (Bonett and Price, 2012), so
    that it is not 0 where no row changes.
    """
    gains = 100 * (after - before)  # (n,)
    error = np.append(gains, [100, -100]).std() / (len(gains) + 2) ** 0.5
    return HeldOut(len(rows), float(gains.mean()), float(error))
