"""Draw the two views of a sample as crops: random spans of its words or tokens.

The views of a sample with a title may also be its title and its body.

Source: "Cropping outperforms dropout" (arXiv 2508.03453, TMLR 2026). Dropout is applied as well.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dystress_text.io.text_lines import UNSPACED

# in scripts without spaces each character is a word
WORD = re.compile(rf"[{UNSPACED}]|[^\s{UNSPACED}]+")
LEAST_WORDS = 4  # of a crop
LEAST_TOKENS = 3  # of a crop; a body that is a view has more


@dataclass(frozen=True)
class Crops:
    """Draws crops; the seed, the step and the sample's index determine them.

    Attributes:
        seed: the seed of the run.
        low: the smallest share of a sample that a crop takes.
        high: the largest share; shares are uniform between the two.
        most: the greatest length of a crop in words or tokens; the encoder reads no more.
    """

    seed: int
    low: float = 0.2
    high: float = 0.6
    most: int = 32

    def views(self, text: str, step: int, sample: int) -> list[str]:
        """Return two independent crops, which may overlap; a short text is returned twice."""
        words = [word.span() for word in WORD.finditer(text)]
        if len(words) < 2 * LEAST_WORDS:
            return [text, text]
        firsts, counts = self.spans(np.array([len(words)]), step, np.array([sample]), LEAST_WORDS)
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

        Views are crops; in half of the steps, a sample with a title has title and body as views.

        Args:
            lengths: lengths of the samples, (n,), in words or tokens.
            step: the training step.
            samples: indices of the samples, (n,).
            least: least length of a crop.
            titles: lengths of the titles at the start of the samples, (n,); None without titles.
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
    """Return whether a text is too short for two crops, so that it is used whole."""
    return len(WORD.findall(text)) < 2 * LEAST_WORDS
