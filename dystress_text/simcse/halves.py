"""Did it help? A measure without labels, on texts that are held out of training.

Each is cut into two halves by its words, and the first half looks for the second one among all
second halves. docs/did-it-help.md says what that favours, and how well it agrees with a labelled
search.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from unicodedata import category

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray

from dystress_text.evaluation.statistics import Difference
from dystress_text.evaluation.sts import Embed
from dystress_text.simcse.corpus import Corpus
from dystress_text.simcse.crops import WORD, too_short
from dystress_text.training.run_record import RunRecord

LEAST = 50  # texts; fewer tell nothing
SHOWN = 5  # texts whose neighbours are shown
SHOWN_LENGTH = 200  # characters of each
METRIC = "halves_found"
TITLE = (
    "halves found: the share of held-out texts (x 100) whose first half finds the second one "
    "first among all second halves. It favours crops and words, and need not go with search; "
    "words are BM25 over words, or characters of scripts without spaces"
)
# for each text: 1 if its half is found first, else 0; and its nearest other text
Measured = tuple[NDArray[np.float64], list[int]]


def hold_out(
    corpus: Corpus, samples: Iterable[str], most: int
) -> tuple[list[str], NDArray[np.int64]]:
    """Return texts at even distances, at most a tenth, and the numbers of all samples equal to one.

    Both are empty if there are too few. Texts too short for two crops are passed over. No seed
    decides.
    """
    count = min(most, len(corpus.first) // 10)
    if count < LEAST:
        return [], np.array([], np.int64)
    first = set(corpus.first.tolist())
    held: dict[str, None] = {}
    numbers = []
    for number, text in enumerate(samples):
        due = len(held) < count and number * count >= len(held) * len(corpus)
        if due and number in first and not too_short(text):
            held[text] = None
        if text in held:  # or a copy of it
            numbers.append(number)
    if len(held) < LEAST:
        return [], np.array([], np.int64)
    return list(held), np.array(numbers)


def halves_of(text: str) -> tuple[str, str]:
    """Return the words of a text before its middle, and those behind it.

    A character of a script without spaces is a word.
    """
    words = [word.span() for word in WORD.finditer(text)]
    middle = len(words) // 2
    return text[: words[middle - 1][1]], text[words[middle][0] :]


def measure(texts: list[str], encode: Embed) -> Measured:
    """Measure an encoder."""
    first, second = zip(*map(halves_of, texts), strict=True)
    vectors = F.normalize(encode([*first, *second, *texts]).float().cpu(), dim=1)  # (3 n, dim)
    of_first, of_second, of_text = vectors.chunk(3)  # (n, dim) each
    near = (of_text @ of_text.T).fill_diagonal_(-2).argmax(1)  # (n,)
    return _found((of_first @ of_second.T).numpy()), near.tolist()


def by_words(texts: list[str]) -> NDArray[np.float64]:
    """Return 1 for each text whose half is found first by BM25 without marks, else 0, (n,)."""
    from bm25s import BM25

    first, second = zip(*map(halves_of, texts), strict=True)
    index = BM25()
    index.index([_words(half) for half in second], show_progress=False)
    return _found(np.array([index.get_scores(_words(half)) for half in first]))


def _words(text: str) -> list[str]:
    letters = [" " if category(c)[0] in "PS" else c for c in text.casefold()]
    return WORD.findall("".join(letters)) or [text]


def _found(scores: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """Return 1 for each row of (n, n) whose own column is above all others, else 0."""
    scores = scores.round(6)
    at_least = (scores >= scores.diagonal()[:, None]).sum(1)  # (n,)
    return np.where(at_least == 1, 1.0, 0.0)


def compared(texts: list[str], before: Measured, after: Measured) -> dict[str, Any]:
    """Return the gain, its standard error over the texts, and the neighbours of some."""
    gain = 100 * (after[0] - before[0])  # (n,)
    neighbours = []
    for row in zip(range(SHOWN), before[1], after[1], strict=False):
        neighbours.append([_shortened(texts[i]) for i in row])
    return {
        "texts": len(texts),
        "gain": float(gain.mean()),
        "error": float(gain.std(ddof=1) / len(gain) ** 0.5),
        "neighbours": neighbours,
    }


def _shortened(text: str) -> str:
    if len(text) <= SHOWN_LENGTH:
        return text
    return f"{text[:SHOWN_LENGTH]}…"


def outcome(record: RunRecord) -> list[str]:
    """Return the line of a run's held-out texts for console and page; none without them."""
    held = record.halves
    if held is None:
        return []
    before = record.untrained[record.pooler][METRIC]
    after = record.trained[METRIC]
    gain = Difference(held.texts, held.gain, held.error).summary("held-out texts")
    return [
        f"half-document recall@1 x 100: untrained {before:.1f}, trained {after:.1f}, "
        f"BM25 {record.words[METRIC]:.1f}; trained - untrained = {gain}"
    ]
