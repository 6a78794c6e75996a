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

from dystress_text.io.text_lines import UNSPACED

# each character of a script without spaces is a word
WORD = re.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]+")
LEAST = 4  # words of a crop
LEAST_TOKENS = 3  # of a crop of tokens


@dataclass(frozen=True)
class Crops:
    """How a sample is cropped.

    Attributes:
        seed: of the run; with the step and the sample it decides both crops.
        low: least share of the sample's words.
        high: greatest share; the share is drawn evenly between the two.
        most: words of a crop, cut before its place is drawn: the encoder would not read the others.
    """

    seed: int
    low: float = 0.2
    high: float = 0.6
    most: int = 32

    def views(self, text: str, step: int, sample: int) -> list[str]:
        """Return two crops, independent of each other; they may overlap."""
        words = [word.span() for word in WORD.finditer(text)]
        if len(words) < 2 * LEAST:
            return [text, text]
        firsts, counts = self.spans(np.array([len(words)]), step, np.array([sample]), LEAST)
        crops = []
        for first, last in zip(firsts.flat, (firsts + counts - 1).flat, strict=True):
            crop = text[words[first][0] : words[last][1]]
            crops.append(" ".join(crop.split()))
        return crops

    def spans(
        self,
        lengths: NDArray[np.int64],
        step: int,
        samples: NDArray[np.int64],
        least: int = LEAST_TOKENS,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where both crops of samples (n,) begin, and their lengths, both (2, n)."""
        # the draws of default_rng([seed, step, sample]).random((2, 2)), in half of the time
        entropy = np.empty((len(samples), 3), np.uint32)
        entropy[:] = np.stack(np.broadcast_arrays(self.seed, step, samples), axis=1)
        bits = np.array([np.random.PCG64(each).random_raw(4) for each in entropy])  # (n, 4)
        draws = (bits >> np.uint64(11)) * 2.0**-53  # evenly from [0, 1)
        shares, places = draws.reshape(-1, 2, 2).T  # (2, n) each
        counts = np.rint((self.low + shares * (self.high - self.low)) * lengths)
        counts = np.clip(counts, min(least, self.most), np.minimum(lengths, self.most))
        firsts = np.floor(places * (lengths - counts + 1))
        return firsts.astype(np.int64), counts.astype(np.int64)


def too_short(text: str) -> bool:
    """Return whether a sample is shorter than two crops, so that it is used whole."""
    return len(WORD.findall(text)) < 2 * LEAST
