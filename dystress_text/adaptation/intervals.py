"""How sure a figure is: percentile bootstrap by SciPy; items of one unit are drawn together, for both models alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
RESAMPLES = 2_000
FEWEST_UNITS = 10  # fewer say too little about the spread

_AT_ONCE = 2**22  # draws in memory

Float64 = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95 % interval.

    Attributes:
        figure: measured.
        low: of the interval.
        high: of the interval.
        items: that were measured.
        units: that were drawn as wholes; where parts have different ones, the fewest of a part.
    """

    figure: float
    low: float
    high: float
    items: int
    units: int

    def __str__(self) -> str:
        return f"{self.figure:+.2f} ({self.low:+.2f} to {self.high:+.2f})"

    def times(self, factor: float) -> Estimate:
        """In another measure, by a factor above 0."""
        return Estimate(self.figure * factor, self.low * factor, self.high * factor, self.items, self.units)


class Part(NamedTuple):
    """A term of a sum of means.

    Attributes:
        weight: its factor.
        values: whose mean is taken, (n,).
        units: of each, (n,).
    """

    weight: float
    values: Float64
    units: Integers


def of_means(parts: Sequence[Part], seed: int = 0) -> Estimate:
    """A weighted sum of means over items; a unit drawn gives its items to each mean.

    Without enough units, or where a mean has no item, the interval is infinite.

    Args:
        parts: at least one.
        seed: of the draws.
    """
    from scipy import stats

    units = np.unique(np.concatenate([part.units for part in parts]))
    columns: list[Float64] = []
    for part in parts:
        place = np.searchsorted(units, part.units)
        columns.append(np.bincount(place, part.values, len(units)).astype(np.float64))
        columns.append(np.bincount(place, minlength=len(units)).astype(np.float64))
    weights = [part.weight for part in parts]

    def summed(*drawn: Float64, axis: int = -1) -> Float64:
        with np.errstate(invalid="ignore"):  # a draw without an item of a part
            means = [drawn[2 * i].sum(axis) / drawn[2 * i + 1].sum(axis) for i in range(len(weights))]
        return np.asarray(sum(weight * mean for weight, mean in zip(weights, means, strict=True)))

    items = max(len(part.values) for part in parts)
    fewest = min(len(np.unique(part.units)) for part in parts)
    return _estimate(stats, columns, summed, items, fewest, seed)


def of_agreement(first: Float64, second: Float64, seed: int = 0) -> Estimate:
    """Spearman's correlation of two figures of the same items, (n,) each; -1 to 1, NaN where one is constant."""
    from scipy import stats

    def correlation(x: Float64, y: Float64, axis: int = -1) -> Float64:
        ranks = [stats.rankdata(each, axis=axis) for each in (x, y)]
        a, b = (each - each.mean(axis, keepdims=True) for each in ranks)
        with np.errstate(invalid="ignore"):
            return np.asarray((a * b).sum(axis) / np.sqrt((a * a).sum(axis) * (b * b).sum(axis)))

    return _estimate(stats, [first, second], correlation, len(first), len(first), seed)


def _estimate(stats: Any, columns: Sequence[Float64], statistic: Any, items: int, units: int, seed: int) -> Estimate:
    figure = float(statistic(*columns))
    if units < FEWEST_UNITS or not np.isfinite(figure):
        return Estimate(figure, -np.inf, np.inf, items, units)
    batch = max(1, _AT_ONCE // (len(columns) * len(columns[0])))
    found = stats.bootstrap(
        columns, statistic, paired=True, vectorized=True, axis=-1, method="percentile", n_resamples=RESAMPLES,
        confidence_level=CONFIDENCE, batch=batch, rng=np.random.default_rng(seed),
    ).confidence_interval  # fmt: skip
    low, high = float(found.low), float(found.high)
    return Estimate(figure, low if np.isfinite(low) else -np.inf, high if np.isfinite(high) else np.inf, items, units)
