"""Two crops of a sample as its views: spans of its words, drawn anew each time that the sample comes.

Source: "Cropping outperforms dropout" (arXiv 2508.03453, TMLR 2026). Dropout stays as the encoder has it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")


@dataclass(frozen=True)
class Crops:
    """How a sample is cropped.

    Attributes:
        seed: of the run; with the step and the sample it decides both crops.
        low: least share of the sample's words.
        high: greatest share; the share is drawn evenly between the two.
        min_words: least number of words of a crop.
        sentences: crop at the ends of sentences alone, until the words of the share are reached.
    """

    seed: int
    low: float = 0.2
    high: float = 0.6
    min_words: int = 4
    sentences: bool = False

    def pieces(self, text: str) -> list[list[str]]:
        """What a crop does not cut: words, or sentences of words."""
        if self.sentences:
            return [sentence.split() for sentence in _SENTENCE_END.split(text.strip())]
        return [[word] for word in text.split()]

    def too_short(self, text: str) -> bool:
        """Whether a sample is shorter than two crops, so that it is used whole."""
        pieces = self.pieces(text)
        return len(pieces) < 2 or sum(map(len, pieces)) < 2 * self.min_words

    def views(self, text: str, step: int, sample: int) -> list[str]:
        """Two crops, independent of each other; they may overlap."""
        if self.too_short(text):
            return [text, text]
        pieces = self.pieces(text)
        ends = np.cumsum([len(piece) for piece in pieces])  # words up to the end of each piece
        draws = np.random.default_rng([self.seed, step, sample]).random((2, 2))
        return [self._crop(pieces, ends, *pair) for pair in draws.tolist()]

    def _crop(self, pieces: list[list[str]], ends: NDArray[np.int64], share: float, place: float) -> str:
        """The pieces from a place on that reach the words of a share; both are even draws from [0, 1)."""
        words = max(self.min_words, round((self.low + share * (self.high - self.low)) * int(ends[-1])))
        last = int(np.searchsorted(ends, ends[-1] - words, side="right"))  # the last piece with enough words behind it
        first = int(place * (last + 1))
        before = int(ends[first - 1]) if first else 0
        end = int(np.searchsorted(ends, before + words)) + 1
        return " ".join(word for piece in pieces[first:end] for word in piece)
