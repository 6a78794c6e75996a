"""Two crops of a sample as its views: spans of its words, drawn anew each time that the sample comes.

Source: "Cropping outperforms dropout" (arXiv 2508.03453, TMLR 2026). Dropout stays as the encoder has it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[\u3002\uff01\uff1f])\s*(?=\S)")
# Thai, Lao, Burmese, Khmer, Chinese and Japanese stand without spaces: each of their characters is a word
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
WORD = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")


@dataclass(frozen=True)
class Crops:
    """How a sample is cropped.

    Attributes:
        seed: of the run; with the step and the sample it decides both crops.
        low: least share of the sample's words.
        high: greatest share; the share is drawn evenly between the two.
        min_words: least number of words of a crop.
        sentences: crop at the ends of sentences alone, at the first where the words of the share are reached.
        most: a longer crop is cut to so many words, before its place is drawn: the encoder would not read the others.
    """

    seed: int
    low: float = 0.2
    high: float = 0.6
    min_words: int = 4
    sentences: bool = False
    most: int = 32

    def too_short(self, text: str) -> bool:
        """Whether a sample is shorter than two crops, so that it is used whole."""
        return self._short(self._cuts(text, [word.start() for word in WORD.finditer(text)]))

    def views(self, text: str, step: int, sample: int) -> list[str]:
        """Two crops, independent of each other; they may overlap."""
        words = [word.span() for word in WORD.finditer(text)]
        cuts = self._cuts(text, [start for start, _ in words])
        if self._short(cuts):
            return [text, text]
        draws = np.random.default_rng([self.seed, step, sample]).random((2, 2))
        spans = [self._span(len(words), cuts, *pair) for pair in draws.tolist()]
        return [" ".join(text[words[first][0] : words[end - 1][1]].split()) for first, end in spans]

    def _cuts(self, text: str, words: list[int]) -> NDArray[np.int64]:
        """Where a sample may be cut, as the number of words that begin before; the last one is all its words."""
        if not self.sentences:
            return np.arange(1, len(words) + 1)
        ends = [end.start() for end in _SENTENCE_END.finditer(text)]
        return np.setdiff1d([*np.searchsorted(words, ends), len(words)], [0])

    def _short(self, cuts: NDArray[np.int64]) -> bool:
        return len(cuts) < 2 or bool(cuts[-1] < 2 * self.min_words)

    def _span(self, words: int, cuts: NDArray[np.int64], share: float, place: float) -> tuple[int, int]:
        """From a cut on at least the words of a share; both numbers are even draws from [0, 1)."""
        count = min(self.most, max(self.min_words, round((self.low + share * (self.high - self.low)) * words)))
        last = int(np.searchsorted(cuts, words - count, side="right"))  # the last place with enough words behind
        first = int(place * (last + 1))
        before = int(cuts[first - 1]) if first else 0
        return before, int(cuts[np.searchsorted(cuts, before + count)])
