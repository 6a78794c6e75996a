"""Did it help? A measure without labels, on texts that are held out of training.

Each is cut into two halves by its words, and the first half looks for the second one among all second halves. That
favours crops, which train for just this, and words, since the halves of a text share its rare ones.
docs/search.md says how well it agrees with a labelled search.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from unicodedata import category

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray

from dystress_text.evaluation.sts import Embed
from dystress_text.evaluation.words import bm25
from dystress_text.simcse.corpus import TokenizedCorpus
from dystress_text.simcse.crops import WORD, too_short

LEAST = 50  # texts; fewer tell nothing
SHOWN = 5  # texts whose neighbours are shown
METRIC = "halves_mrr"
TITLE = (
    "halves: of each held-out text the first half looks for the second one among all second halves, MRR x 100. It "
    "favours crops and words; words are BM25 over words or, in scripts without spaces, characters"
)


def hold_out(corpus: TokenizedCorpus, samples: Iterable[str], most: int) -> tuple[list[str], NDArray[np.int64]]:
    """Texts at even distances in a corpus, at most a tenth, and the numbers of all its samples that are one of them.

    Repeated texts count once, and those that are too short for two crops are passed over. The same for all seeds.
    """
    count = min(most, len(corpus.first) // 10)
    texts: set[str] = set()
    held: list[str] = []
    numbers, is_first = [], np.zeros(len(corpus), bool)
    is_first[corpus.first] = True
    for number, text in enumerate(samples if count >= LEAST else ()):
        due = len(held) < count and number * count >= len(held) * len(corpus) and is_first[number]
        if text in texts:  # a copy
            numbers.append(number)
        elif due and not too_short(text):
            texts.add(text)
            held.append(text)
            numbers.append(number)
    return (held, np.array(numbers)) if len(held) >= LEAST else ([], np.array([], np.int64))


def halves_of(text: str) -> tuple[str, str]:
    """The words of a text before its middle, and those behind it; a character of a script without spaces is a word."""
    words = [word.span() for word in WORD.finditer(text)]
    middle = len(words) // 2
    return text[: words[middle - 1][1]], text[words[middle][0] :]


def _words(text: str) -> list[str]:
    """The words of a text in small letters, without marks and signs."""
    return WORD.findall("".join(" " if category(c)[0] in "PS" else c for c in text.casefold()))


@dataclass
class Halves:
    """What is measured on held-out texts: before training, after it, and by words."""

    texts: list[str]
    figures: dict[str, NDArray[np.float64]] = field(default_factory=dict)  # 1 / rank, (n,)
    neighbours: dict[str, list[str]] = field(default_factory=dict)  # the nearest other text, of the first few

    def measure(self, name: str, encode: Embed) -> dict[str, float]:
        """Measure an encoder, as ``untrained`` or ``trained``; returns the metric."""
        halves = [half for side in zip(*map(halves_of, self.texts), strict=True) for half in side]
        vectors = F.normalize(encode([*halves, *self.texts]).float().cpu(), dim=1)  # (3 n, dim)
        first, second, whole = vectors.chunk(3)  # (n, dim) each
        near = whole[:SHOWN] @ whole.T  # (shown, n)
        near.fill_diagonal_(-2)
        self.neighbours[name] = [self.texts[i] for i in near.argmax(1).tolist()]
        self.figures[name] = 1 / ranks((first @ second.T).double().numpy())
        return self.metric(name)

    def words(self) -> dict[str, float]:
        """Measure BM25 over words; a character of a script without spaces is one."""
        sides = zip(*map(halves_of, self.texts), strict=True)
        first, second = ([_words(half) for half in side] for side in sides)
        found = bm25(first, second, len(second))
        scores = np.zeros((len(first), len(second)))
        for row, hits in zip(scores, found, strict=True):
            for place, score in hits:
                row[place] = score
        self.figures["words"] = 1 / ranks(scores)
        return self.metric("words")

    def metric(self, name: str) -> dict[str, float]:
        return {METRIC: 100 * float(self.figures[name].mean())}

    def record(self) -> dict[str, Any]:
        """For the run's record: the gain, its standard error over the texts, and the neighbours."""
        gain = 100 * (self.figures["trained"] - self.figures["untrained"])  # (n,)
        error = gain.std(ddof=1) / len(gain) ** 0.5
        return {
            "texts": len(gain), "gain": round(float(gain.mean()), 2), "error": round(float(error), 2),
            "neighbours": [list(of) for of in zip(self.texts, *self.neighbours.values(), strict=False)],
        }  # fmt: skip


def ranks(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """At which place each row of (n, n) has its own column, from 1; those that equal it come before."""
    scores = scores.round(6)
    places: NDArray[np.int64] = (scores >= scores.diagonal()[:, None]).sum(1)
    return places


def outcome(record: Mapping[str, Any]) -> list[str]:
    """What a run's record says about its held-out texts, in lines for console and page; none without them."""
    if "halves" not in record:
        return []
    halves, pooler = record["halves"], record["settings"]["pooler_type"]
    before, after, words = (of[METRIC] for of in (record["untrained"][pooler], record["trained"], record["words"]))
    clear = abs(halves["gain"]) > 2 * halves["error"]
    than = ("better than" if halves["gain"] > 0 else "worse than") if clear else "not clearly other than"
    return [
        f"Did it help? Halves of {halves['texts']} held-out texts find each other (MRR x 100): {before:.1f} before, "
        f"{after:.1f} after, {words:.1f} by words. {than} before"
    ]


def neighbours(record: Mapping[str, Any]) -> list[list[str]]:
    """Some held-out texts with the nearest other one before and after training, below a header."""
    texts = record.get("halves", {}).get("neighbours", [])
    rows = [[text if len(text) <= 200 else text[:199] + "…" for text in row] for row in texts]
    return [["held-out text", "nearest before", "nearest after"], *rows] if rows else []
