"""Draw two crops of a sample as its views: random spans of its words or tokens.

A sample with a title and a body may also have these two as its views.

Source: "Cropping outperforms dropout" (arXiv 2508.03453, TMLR 2026). Dropout is applied as well.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dystress_text.io.text_lines import UNSPACED

# in scripts without spaces each character counts as a word
WORD = re.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]+")
LEAST = 4  # least words of a crop
LEAST_TOKENS = 3  # least tokens of a crop of tokens; a body has more


@dataclass(frozen=True)
class Crops:
    """Draws crops; the seed, the step and the sample's index determine them.

    Attributes:
        seed: the seed of the run.
        low: the smallest share of a sample that a crop takes.
        high: the largest share; shares are uniform between the two.
        most: the greatest length of a crop, in words or tokens, as the encoder reads no more.
    """

    seed: int
    low: float = 0.2
    high: float = 0.6
    most: int = 32

    def views(self, text: str, step: int, sample: int) -> list[str]:
        """Return two independent crops, which may overlap.

        A short text is returned whole, twice.
        """
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
        titles: NDArray[np.int64] | None = None,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the starts and lengths of both views of each sample, both (2, n).

        Views are crops, but in half of the steps a sample with a title has its title and its body
        as views.

        Args:
            lengths: lengths of the samples, (n,), in words or tokens.
            step: the training step.
            samples: indices of the samples, (n,).
            least: least length of a crop.
            titles: lengths of the titles with which the samples begin, (n,); None without titles.
        """
        seeds = [(self.seed, step, sample) for sample in samples.tolist()]
        draws = np.array([np.random.default_rng(seed).random(5) for seed in seeds])  # (n, 5)
        shares, positions = draws[:, :4].reshape(-1, 2, 2).T  # (2, n) each
        counts = np.rint((self.low + shares * (self.high - self.low)) * lengths)
        counts = np.clip(counts, least, np.minimum(lengths, self.most))
        firsts = np.floor(positions * (lengths - counts + 1))
        if titles is not None:
            bodies = lengths - titles
            split = (draws[:, 4] < 0.5) & (titles > 1) & (bodies > LEAST_TOKENS)  # (n,)
            firsts = np.where(split, [np.zeros_like(titles), titles], firsts)
            counts = np.where(split, [titles, bodies], counts)
        return firsts.astype(np.int64), counts.astype(np.int64)


def too_short(text: str) -> bool:
    """Return whether a text is too short to be cropped, and is used whole."""
    return len(WORD.findall(text)) < 2 * LEAST
