"""The sentences whose random pairs say, at the end of a run, which similarity is high."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dystress_text.evaluation.random_pairs import FEWEST_SENTENCES, MOST_SENTENCES
from dystress_text.files.text_lines import CorpusReport
from dystress_text.simcse.corpus import TrainingText

MOST_SHARE = 10  # at most one sample of so many is held out


@dataclass(frozen=True)
class Measured:
    """Samples of a training text whose random pairs are measured; a supervised sample counts with its anchor.

    The choice depends on the number of samples alone, so runs with different seeds train on the same sentences.

    Attributes:
        samples: their numbers, rising, (m,).
        held_out: whether they are left out of training.
    """

    samples: NDArray[np.int64]
    held_out: bool

    @classmethod
    def choose(cls, samples: int, held_out: int, seen: int) -> Measured:
        """Some of so many samples: ``held_out``, at most a tenth of all; else ``seen`` of those that training sees.

        A tenth of fewer than 50 sentences would be too few to measure, so none are held out.
        """
        count = min(held_out, samples // MOST_SHARE)
        count = count if count >= FEWEST_SENTENCES else 0
        order = np.random.default_rng(0).permutation(samples)
        return cls(np.sort(order[: count or seen]), count > 0)

    def trained(self, samples: int) -> NDArray[np.int64] | None:
        """The samples to train on, rising; None for all."""
        return np.delete(np.arange(samples), self.samples) if self.held_out else None

    def read(self, text: TrainingText) -> list[str]:
        """Their distinct sentences, at most 10,000; reads the text up to the last of them.

        Raises:
            UserError: the text cannot be read.
        """
        if len(self.samples) == 0:
            return []
        wanted = np.random.default_rng(1).permutation(self.samples)[:MOST_SENTENCES] * text.columns
        rows = set(wanted.tolist())
        sentences = text.sentences(CorpusReport(), int(wanted.max()) + 1, array("q"))
        return list(dict.fromkeys(sentence for row, sentence in enumerate(sentences) if row in rows))
