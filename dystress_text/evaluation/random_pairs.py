"""The cosines of random pairs of sentences: which similarity a model gives to sentences that have nothing in common.

A model folder holds them as a sketch, ``random_pairs.json``: cosines by false-alarm rate, which is the share of random
pairs with at least that cosine. Biometrics calls it the false match rate of an impostor distribution; a p-value has the
same definition.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dystress_text.errors import UserError, reason_of
from dystress_text.files.whole import write_json
from dystress_text.training.run_folder import RANDOM_PAIRS

FORMAT = 1
MOST_SENTENCES = 10_000  # their 50 million pairs take 2 s
FEWEST_SENTENCES = 50
BEYOND = 100  # pairs with a higher cosine that the finest rate must have
SHOWN = (1e-1, 1e-2, 1e-3, 1e-4, 1e-5)  # rates of tables

_BINS = 1 << 16  # of cosines from -1 to 1: 3e-5 wide
_BLOCK = 512  # rows of a block of products
_COMMON = (1.0, 0.999, 0.99, 0.95, 0.9, 0.8, 0.7, 0.6)
_A_DECADE = 20  # rates below 1/2

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class RandomPairs:
    """Cosines of random pairs of distinct sentences, by their false-alarm rate.

    Attributes:
        source: of the sentences, by name.
        held_out: whether they were left out of training; None if that is not known.
        sentences: their number.
        pairs: the number of pairs.
        rates: falling from 1 to the finest that so many pairs can tell.
        cosines: rising; the share of pairs with at least this cosine is the rate.
    """

    source: str
    held_out: bool | None
    sentences: int
    pairs: int
    rates: tuple[float, ...]
    cosines: tuple[float, ...]

    @property
    def finest(self) -> float:
        """The smallest rate that the pairs can tell."""
        return self.rates[-1]

    def threshold(self, rate: float) -> float:
        """The cosine that this share of random pairs reaches; between two rates of the sketch linear in log rate.

        Raises:
            UserError: the rate does not lie in (0, 1), or is finer than the sketch.
        """
        if not 0 < rate < 1:  # NaN neither
            raise UserError(f"--false_alarm: a rate in (0, 1) is needed, got {rate}")
        if rate < self.finest * (1 - 1e-9):
            raise UserError(
                f"--false_alarm: {rate:.1e} is finer than {self.pairs:,} random pairs can tell, which is "
                f"{self.finest:.1e}" + self.more()
            )
        return float(np.interp(-math.log(rate), -np.log(self.rates), self.cosines))

    def rates_of(self, cosines: Float64) -> Float64:
        """The share of random pairs with at least each cosine, of any shape; :attr:`finest` for all that are rarer."""
        known, first = np.unique(self.cosines, return_index=True)  # of equal cosines the one with the largest rate
        rates: Float64 = np.exp(np.interp(cosines, known, np.log(self.rates)[first]))
        return rates

    def rate_of(self, cosine: float) -> float:
        """:meth:`rates_of` for one cosine."""
        return float(self.rates_of(np.array(cosine)))

    def said(self, rate: float) -> str:
        """A rate of :meth:`rates_of` in a few characters; with ``<`` where it is rarer than the pairs can tell."""
        return f"{'<' if rate <= self.finest * (1 + 1e-9) else ''}{rate:.1e}"

    def table(self) -> list[tuple[str, float]]:
        """The rates of :data:`SHOWN` that the pairs can tell, in words, and their cosines."""
        return [(f"{rate:.0e}", self.threshold(rate)) for rate in SHOWN if rate >= self.finest]

    def about(self) -> str:
        """What the pairs are."""
        known = {True: ", held out of training", False: ", seen in training", None: ""}[self.held_out]
        return f"{self.pairs:,} random pairs of {self.sentences:,} sentences of {self.source}{known}"

    def save(self, folder: Path) -> None:
        """Write the sketch into a folder.

        Raises:
            OSError: it cannot be written.
        """
        write_json(folder / RANDOM_PAIRS, {"format": FORMAT, **asdict(self)})

    @classmethod
    def load(cls, folder: Path) -> RandomPairs | None:
        """The sketch of a folder; None if it has none.

        Raises:
            UserError: it is damaged.
        """
        file = folder / RANDOM_PAIRS
        if not file.is_file():
            return None
        try:
            return _checked(json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            reason = f"{type(error).__name__}: {reason_of(error)}"
            raise UserError(f"{str(file)!r} is damaged ({reason}): `dystress calibrate` makes it again") from error

    def more(self) -> str:
        """What tells finer rates, to end a line with; empty where as many sentences count as may."""
        return f"; more sentences than {self.sentences:,} tell finer ones" if self.sentences < MOST_SENTENCES else ""


def _checked(stored: Any) -> RandomPairs:
    """A sketch from what its file holds.

    Raises:
        ValueError, KeyError, TypeError, AttributeError: the file is damaged.
    """
    if stored.pop("format") != FORMAT:
        raise ValueError(f"format {FORMAT} is expected")
    found = RandomPairs(**stored | {name: tuple(map(float, stored[name])) for name in ("rates", "cosines")})
    rates, cosines = np.array(found.rates), np.array(found.cosines)
    whole = len(rates) == len(cosines) >= 2 and rates[0] == 1 and rates[-1] > 0 and abs(cosines).max() <= 1.01
    if not whole or not (np.diff(rates) < 0).all() or not (np.diff(cosines) >= 0).all():  # NaN neither
        raise ValueError("rates must fall from 1 and cosines rise")
    if not isinstance(found.source, str) or found.held_out not in (True, False, None):
        raise ValueError("it does not say where the sentences are from")
    if type(found.sentences) is not int or type(found.pairs) is not int:
        raise ValueError("a number of sentences or pairs is not a number")
    return found


def random_pairs(vectors: NDArray[np.floating[Any]], source: str, held_out: bool | None = None) -> RandomPairs:
    """The sketch of all pairs of sentences: with the same vectors, no draw of pairs is as precise.

    Args:
        vectors: of distinct sentences, (n, dim), of any length; n from 50, of more than 10,000 the first count.
        source: of the sentences, by name.
        held_out: whether they were left out of training.

    Raises:
        UserError: there are fewer sentences, or a vector is not finite.
    """
    vectors = np.asarray(vectors[:MOST_SENTENCES], dtype=np.float32)  # (n, dim)
    if len(vectors) < FEWEST_SENTENCES:
        raise UserError(f"random pairs need {FEWEST_SENTENCES} distinct sentences, got {len(vectors)}")
    if not np.isfinite(vectors).all():
        raise UserError("the model gives vectors with NaN or infinite entries")
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    counts = _counts((vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32))
    pairs = int(counts.sum())
    at_least = np.append(counts[::-1].cumsum()[::-1], 0)  # (_BINS + 1,) pairs from each bin's lower edge on
    rates = rates_for(pairs)
    bins = np.searchsorted(-at_least, -np.floor(np.array(rates) * pairs + 1e-6))  # the first with no more pairs
    bins[0] = np.flatnonzero(counts)[0]
    cosines = np.minimum(bins * (2 / _BINS) - 1, 1.0).round(6)
    return RandomPairs(source, held_out, len(vectors), pairs, rates, tuple(cosines.tolist()))


def rates_for(pairs: int) -> tuple[float, ...]:
    """The rates of a sketch, falling from 1, equally spaced in log rate below 1/2; all of :data:`SHOWN` among them."""
    finest = BEYOND / pairs
    fine = [10 ** (-k / _A_DECADE) for k in range(round(_A_DECADE * math.log10(2)), 20 * _A_DECADE)]
    return (*_COMMON, *(rate for rate in fine if rate > finest * 1.01), finest)


def _counts(unit: NDArray[np.float32]) -> NDArray[np.int64]:
    """The number of pairs by the bin of their cosine, (_BINS,), of unit vectors (n, dim)."""
    counts = np.zeros(_BINS, np.int64)
    for start in range(0, len(unit), _BLOCK):
        rows = unit[start : start + _BLOCK]
        cosines = rows @ unit[start:].T  # (b, n - start)
        upper = np.arange(len(unit) - start) > np.arange(len(rows))[:, None]  # each pair once, none with itself
        bins = ((cosines[upper] + 1) * (_BINS / 2)).astype(np.int32).clip(0, _BINS - 1)
        counts += np.bincount(bins, minlength=_BINS)
    return counts
