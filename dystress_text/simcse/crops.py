"""Two crops of a sample as its views: spans of its words, drawn anew each time that the sample
comes.

Source: "Cropping outperforms dropout" (arXiv 2508.03453, TMLR 2026). Dropout stays as the encoder
    has it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# Thai, Lao, Burmese, Khmer, Chinese and Japanese stand without spaces: each of their characters is
# a word
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
WORD = re.compile(rf"[{_UNSPACED}]|[^\s{_UNSPACED}]+")
LEAST = 4  # words of a crop
LEAST_TOKENS = 3  # of a crop of tokens


@dataclass(frozen=True)
class Crops:
    """How a sample is cropped."""

    seed: int  # of the run; with the step and the sample it decides both crops
    low: float = 0.2  # least share of the sample's words
    high: float = 0.6  # greatest share; the share is drawn evenly between the two
    most: int = (
        32  # words of a crop, cut before its place is drawn: the encoder would not read the others
    )

    def views(self, text: str, step: int, sample: int) -> list[str]:
        """Two crops, independent of each other; they may overlap."""
        words = [word.span() for word in WORD.finditer(text)]
        if len(words) < 2 * LEAST:
            return [text, text]
        draws = np.random.default_rng([self.seed, step, sample]).random((2, 2))
        spans = [self._span(len(words), *pair) for pair in draws.tolist()]
        return [" ".join(text[words[first][0] : words[end - 1][1]].split()) for first, end in spans]

    def spans(
        self, lengths: NDArray[np.int64], step: int, samples: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where both crops of samples (n,) begin, and their lengths, both (2, n), in tokens."""
        draws = np.array(
            [np.random.default_rng([self.seed, step, i]).random((2, 2)) for i in samples.tolist()]
        )
        share, place = (
            self.low + draws[..., 0].T * (self.high - self.low),
            draws[..., 1].T,
        )  # (2, n)
        counts = np.clip(
            np.rint(share * lengths), min(LEAST_TOKENS, self.most), np.minimum(lengths, self.most)
        )
        firsts = np.floor(place * (lengths - counts + 1))
        return firsts.astype(np.int64), counts.astype(np.int64)

    def _span(self, words: int, share: float, place: float) -> tuple[int, int]:
        """Words of a share from a place on; both numbers are even draws from [0, 1)."""
        count = min(
            self.most, max(LEAST, round((self.low + share * (self.high - self.low)) * words))
        )
        first = int(place * (words - count + 1))
        return first, first + count


def too_short(text: str) -> bool:
    """Whether a sample is shorter than two crops, so that it is used whole."""
    return len(WORD.findall(text)) < 2 * LEAST
