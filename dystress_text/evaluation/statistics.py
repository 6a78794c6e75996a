"""Statistics over queries, pairs and seeds: deviation, intervals and paired differences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALPHA = 0.05
RESAMPLES = 10_000
FEW = 30  # units
# standard deviation of a difference of two figures that are rounded to two decimals
_ROUNDING = 0.01 / 6**0.5
_CELLS = 2_000_000  # of an array, which bounds memory

EACH = "each"  # among figures: each query's nDCG@10, or each pair's similarity

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Estimate:
    """A figure x 100, or a difference of two, with the resamples for its 95 % interval.

    The units, which are queries or pairs, are resampled with replacement. Estimates on the same
    units have the same resamples, so that their difference is paired. Two or three seeds cannot be
    resampled; their mean follows a t distribution, which is added.

    Attributes:
        figures: the figure of each seed, (seeds,).
        resampled: the figures of each resample of the units, (resamples, seeds); (1, seeds) if only
            seeds vary.
        units: the number of units; 0 if only seeds vary.
        kind: ``queries`` or ``pairs``.
        data: a checksum that identifies the units; "" if there are none.
        paired: whether this is a difference.
    """

    figures: Floats
    resampled: Floats
    units: int = 0
    kind: str = ""
    data: str = ""
    paired: bool = False

    def __sub__(self, other: Estimate) -> Estimate:
        """Return the difference, paired by unit and seed; a single seed is paired with each seed.

        If the units differ or are missing, only seeds vary.
        """
        figures = self.figures - other.figures
        if self.data != other.data:
            return replace(without_units(figures), paired=True)
        resampled = self.resampled - other.resampled
        return replace(self, figures=figures, resampled=resampled, paired=True)

    @property
    def mean(self) -> float:
        return float(self.figures.mean())

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval between percentiles; None if nothing varies."""
        means = self.resampled.mean(1)
        seeds = len(self.figures)
        if seeds > 1:
            from scipy import stats  # slow to import

            error = max(float(self.figures.std(ddof=1)), _ROUNDING) / seeds**0.5
            quantiles = stats.t.ppf((np.arange(RESAMPLES) + 0.5) / RESAMPLES, seeds - 1)
            means = means + error * np.random.default_rng(0).permutation(quantiles)
        if len(means) == 1:
            return None
        low, high = np.nanquantile(means, [ALPHA / 2, 1 - ALPHA / 2])
        return float(low), float(high)

    def __str__(self) -> str:
        """Return a text such as ``+2.1 (0.4 to 3.9; 52 queries, paired)``."""
        number = f"{self.mean:+z.1f}" if self.paired else f"{self.mean:z.1f}"
        if self.interval is None:
            return f"{number} (no interval)"
        varied = []
        if self.units:
            few = self.units < FEW
            varied.append(f"{self.units:,} {self.kind}" + (", which are few" if few else ""))
        if len(self.figures) > 1:
            varied.append(f"{len(self.figures)} seeds")
        if self.paired:
            varied.append("paired")
        low, high = self.interval
        return f"{number} ({low:z.1f} to {high:z.1f}; {', '.join(varied)})"


def estimate(values: Any, scores: Any = None, data: str = "") -> Estimate:
    """Return a figure with its resamples.

    Args:
        values: the figure of each query, from 0 to 1, or the similarity of each pair, (units,).
        scores: the score of each pair, (units,), for Spearman's correlation x 100. None for the
            mean x 100 over queries.
        data: a checksum that identifies the units and seeds the resampling.
    """
    units = len(values)
    kind, figure_of = "queries", partial(_mean, np.asarray(values, np.float64))
    if scores is not None:
        kind, figure_of = "pairs", partial(_spearman, _ties(values), _ties(scores))
    observed = figure_of(np.ones((1, units), np.int64))
    resampled = [figure_of(counts) for counts in _resamples(units, data)]
    return Estimate(observed, np.concatenate(resampled)[:, None], units, kind, data)


def without_units(figures: Any) -> Estimate:
    """Return an estimate from figures (seeds,) whose queries or pairs are unknown."""
    return Estimate(np.array(figures), np.array([figures]))


def over_seeds(estimates: Sequence[Estimate]) -> Estimate:
    """Combine the estimates of several seeds."""
    figures = np.concatenate([each.figures for each in estimates])
    if len({each.data for each in estimates}) > 1:
        return without_units(figures)
    resampled = np.concatenate([each.resampled for each in estimates], axis=1)
    return replace(estimates[0], figures=figures, resampled=resampled)


def average_of(estimates: Sequence[Estimate]) -> Estimate:
    """Return the mean of the figures on several sets, whose units are independent."""
    figures = np.mean([each.figures for each in estimates], axis=0)
    if not all(each.units for each in estimates):
        return without_units(figures)
    resampled = np.mean([each.resampled for each in estimates], axis=0)
    units = sum(each.units for each in estimates)
    data = " ".join(each.data for each in estimates)
    return Estimate(figures, resampled, units, estimates[0].kind, data)


def _resamples(units: int, data: str) -> Iterator[Integers]:
    """Yield, block by block, how often each resample draws each unit, (resamples, units)."""
    random = np.random.default_rng(list(data.encode()))
    block = max(1, _CELLS // units)
    for start in range(0, RESAMPLES, block):
        count = min(block, RESAMPLES - start)
        drawn = random.integers(units, size=(count, units))
        cells = drawn + units * np.arange(count)[:, None]
        yield np.bincount(cells.ravel(), minlength=count * units).reshape(count, units)


def _mean(values: Floats, counts: Integers) -> Floats:
    """Return the mean x 100 of each resample, (resamples,)."""
    means: Floats = 100 * counts @ values / len(values)
    return means


def _ties(values: Any) -> Integers:
    """Return the rank of each value among the distinct values, from 0, (units,)."""
    return np.unique(np.asarray(values), return_inverse=True)[1]


def _spearman(similarities: Integers, scores: Integers, counts: Integers) -> Floats:
    """Return Spearman's correlation x 100 in each resample, (resamples,); NaN for constants.

    Args:
        similarities: :func:`_ties` of the similarities.
        scores: :func:`_ties` of the scores.
        counts: how often each pair is drawn, (resamples, pairs).
    """
    ours, theirs = _centred_ranks(counts, similarities), _centred_ranks(counts, scores)
    variances = (counts * ours**2).sum(1) * (counts * theirs**2).sum(1)
    with np.errstate(invalid="ignore"):
        figures: Floats = 100 * (counts * ours * theirs).sum(1) / np.sqrt(variances)
    return figures


def _centred_ranks(counts: Integers, ties: Integers) -> Floats:
    """Return the rank of each unit in each resample, minus the mean rank, (resamples, units).

    Equal values share the mean of their ranks.
    """
    ends = np.bincount(ties).cumsum() - 1
    ordered = counts[:, np.argsort(ties, kind="stable")]
    through = ordered.cumsum(1)[:, ends]  # drawn up to the end of each group of ties
    centre = (counts.shape[1] + np.diff(through, axis=1, prepend=0)) / 2
    ranks: Floats = (through - centre)[:, ties]
    return ranks


def spread(figures: Sequence[float]) -> str:
    """Return the mean and, for several seeds, the sample standard deviation (n - 1)."""
    mean = f"{np.mean(figures):z.2f}"
    return f"{mean} ± {np.std(figures, ddof=1):.2f}" if len(figures) > 1 else mean
