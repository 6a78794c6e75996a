"""Statistics over queries, pairs and seeds: intervals, paired differences, Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALPHA = 0.05
RESAMPLES = 10_000
FEW = 30  # units
# standard deviation of a difference of two figures that are rounded to two decimals
_ROUNDING = 0.01 / 6**0.5
_CELLS = 2_000_000  # of an array, which bounds memory

Figures = NDArray[np.float64]


@dataclass(frozen=True)
class Spread:
    """A figure over seeds: mean and sample deviation (n - 1), None for one seed."""

    mean: float
    deviation: float | None

    def __str__(self) -> str:
        if self.deviation is None:
            return f"{self.mean:.2f}"
        return f"{self.mean:.2f} ± {self.deviation:.2f}"


@dataclass(frozen=True, eq=False)
class Estimate:
    """A figure x 100, or a difference of two, with what its 95 % interval needs.

    Units, which are queries or pairs, are resampled with replacement. Estimates of the same units
    have the same resamples, so their difference is paired. Several seeds add the t distribution of
    their mean: two or three cannot be resampled.

    Attributes:
        figures: of each seed, (seeds,).
        resampled: the figures of each resample of the units, (resamples, seeds); (1, seeds) if only
            seeds vary.
        units: their number; 0 if only seeds vary.
        kind: ``queries`` or ``pairs``.
        data: identifies the units.
        paired: whether it is a difference.
    """

    figures: Figures
    resampled: Figures
    units: int = 0
    kind: str = ""
    data: str = ""
    paired: bool = False

    def __sub__(self, other: Estimate) -> Estimate:
        """Return the difference, paired by unit and seed; one seed is compared with each.

        Raises:
            ValueError: the units do not correspond.
        """
        ours, theirs = [(each.units, each.kind, each.data) for each in (self, other)]
        if ours != theirs:
            raise ValueError(f"{ours} and {theirs} are not the same units")
        figures = self.figures - other.figures
        resampled = self.resampled - other.resampled
        return Estimate(figures, resampled, *ours, paired=True)

    @property
    def mean(self) -> float:
        return float(self.figures.mean())

    @cached_property
    def draws(self) -> Figures:
        """The mean over seeds in each draw, (draws,), finite; empty if nothing varies."""
        means = self.resampled.mean(1)
        seeds = len(self.figures)
        if seeds > 1:
            from scipy import stats  # slow to import

            error = max(float(self.figures.std(ddof=1)), _ROUNDING) / seeds**0.5
            quantiles = stats.t.ppf((np.arange(RESAMPLES) + 0.5) / RESAMPLES, seeds - 1)
            means = means + error * np.random.default_rng(0).permutation(quantiles)
        return means[np.isfinite(means)] if len(means) > 1 else means[:0]

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval by percentiles; None if nothing varies."""
        if len(self.draws) == 0:
            return None
        low, high = np.quantile(self.draws, [ALPHA / 2, 1 - ALPHA / 2])
        return float(low), float(high)

    @property
    def p(self) -> float | None:
        """The two-sided p: below 0.05 where the interval excludes 0; None without an interval."""
        if len(self.draws) == 0:
            return None
        tail = min((self.draws <= 0).mean(), (self.draws >= 0).mean())
        return float(np.clip(2 * tail, 1 / RESAMPLES, 1))

    def __str__(self) -> str:
        """Return such as ``+2.1 (0.4 to 3.9; 52 queries, paired)``."""
        number = f"{self.mean:+.1f}" if self.paired else f"{self.mean:.1f}"
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
        return f"{number} ({low:.1f} to {high:.1f}; {', '.join(varied)})"


def estimate(values: Any, scores: Any = None, data: str = "") -> Estimate:
    """Return a figure of one or several seeds, with its resamples.

    Args:
        values: (units,), or (seeds, units): each query's figure from 0 to 1, or each pair's
            similarity.
        scores: of the pairs, (units,): the figure is Spearman's correlation x 100. None: it is the
            mean x 100 over queries.
        data: identifies the units, and seeds the resampling.
    """
    by_seed = np.atleast_2d(np.asarray(values, np.float64))  # (seeds, units)
    units = by_seed.shape[1]
    once = np.ones((1, units), np.int64)
    if scores is None:
        observed = _means(once, by_seed)
        resampled = [_means(counts, by_seed) for counts in _resamples(units, data)]
        return Estimate(observed[0], np.concatenate(resampled), units, "queries", data)
    sides = [_groups(np.asarray(scores)), *map(_groups, by_seed)]
    observed = _spearmans(once, sides)
    resampled = [_spearmans(counts, sides) for counts in _resamples(units, data)]
    return Estimate(observed[0], np.concatenate(resampled), units, "pairs", data)


def of_seeds(figures: Sequence[float]) -> Estimate:
    """Return a figure over seeds alone: its interval is that of the t distribution."""
    return Estimate(np.asarray(figures, np.float64), np.asarray(figures, np.float64)[None])


def average_of(estimates: Sequence[Estimate]) -> Estimate:
    """Return the mean of a model's figures on several sets, of different units each."""
    figures = np.mean([each.figures for each in estimates], axis=0)
    resampled = np.mean([each.resampled for each in estimates], axis=0)
    units = sum(each.units for each in estimates)
    data = " ".join(each.data for each in estimates)
    return Estimate(figures, resampled, units, estimates[0].kind, data)


def _resamples(units: int, data: str) -> Iterator[NDArray[np.int64]]:
    """Yield how often each unit is drawn, (a block of the resamples, units)."""
    random = np.random.default_rng(list(data.encode()))
    block = max(1, _CELLS // units)
    for start in range(0, RESAMPLES, block):
        count = min(block, RESAMPLES - start)
        drawn = random.integers(units, size=(count, units))
        cells = drawn + units * np.arange(count)[:, None]
        yield np.bincount(cells.ravel(), minlength=count * units).reshape(count, units)


def _means(counts: NDArray[np.int64], values: Figures) -> Figures:
    """Return the means x 100, (resamples, seeds), of values (seeds, units)."""
    return 100 * counts @ values.T / values.shape[1]


def _groups(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return the rank of each unit's value among the distinct ones, from 0, (units,)."""
    return np.unique(values, return_inverse=True)[1]


def _spearmans(counts: NDArray[np.int64], sides: Sequence[NDArray[np.int64]]) -> Figures:
    """Return Spearman's correlation x 100, (resamples, seeds), of the first side with each other.

    Args:
        counts: how often each unit is drawn, (resamples, units).
        sides: of :func:`_groups`; the first are the scores.
    """
    scores, *similarities = [_centred_ranks(counts, side) for side in sides]
    figures = []
    with np.errstate(invalid="ignore"):  # a constant side has no correlation
        for ranks in similarities:
            covariance = (counts * scores * ranks).sum(1)
            variances = (counts * scores**2).sum(1) * (counts * ranks**2).sum(1)
            figures.append(100 * covariance / np.sqrt(variances))
    return np.stack(figures, 1)


def _centred_ranks(counts: NDArray[np.int64], groups: NDArray[np.int64]) -> Figures:
    """Return each unit's rank in each resample less the mean rank, (resamples, units).

    Equal values have the mean of their ranks.
    """
    ends = np.bincount(groups).cumsum() - 1
    ordered = counts[:, np.argsort(groups, kind="stable")]
    through = ordered.cumsum(1)[:, ends]  # drawn up to the end of each group
    middle = through - np.diff(through, axis=1, prepend=0) / 2
    return (middle - counts.shape[1] / 2)[:, groups]


def spread(figures: Sequence[float]) -> Spread:
    """Return mean and standard deviation of a figure over seeds."""
    deviation = float(np.std(figures, ddof=1)) if len(figures) > 1 else None
    return Spread(float(np.mean(figures)), deviation)


@dataclass(frozen=True)
class Difference:
    """The mean of n paired differences, of seeds or of texts."""

    n: int
    mean: float
    error: float | None = None  # the standard error of the mean; None for one pair
    corrected: float | None = None  # p after Holm, not cut at 1
    most: float = math.inf  # greatest possible difference, where intervals end

    def __str__(self) -> str:
        interval = self.interval()
        if interval is None:
            return f"{self.mean:+.2f}"
        return f"{self.mean:+.2f} ({_shown(interval)})"

    @property
    def p(self) -> float | None:
        """The p of the two-sided paired t test, for this comparison alone."""
        from scipy import stats  # slow to import

        if self.error is None:
            return None
        tiny = float(np.finfo(float).tiny)  # all differences may be equal
        return max(2 * float(stats.t.sf(abs(self.mean) / max(self.error, tiny), self.n - 1)), tiny)

    @property
    def significant(self) -> bool:
        """Whether there are three pairs or more, and p, corrected if it was, is below 0.05."""
        p = self.p if self.corrected is None else self.corrected
        return self.n > 2 and p is not None and p < ALPHA

    def interval(self, corrected: bool = False) -> tuple[float, float] | None:
        """Return the mean's 95 % interval, or that at Holm's level; None for one pair."""
        from scipy import stats

        if self.error is None or self.p is None:
            return None
        alpha = ALPHA * self.p / self.corrected if corrected and self.corrected else ALPHA
        half = self.error * float(stats.t.isf(alpha / 2, self.n - 1))
        return max(self.mean - half, -self.most), min(self.mean + half, self.most)

    def summary(self, unit: str = "seeds") -> str:
        """Return mean, interval (Holm's where p was corrected), n, p, and the flag."""
        interval = self.interval(corrected=True)
        p = self.corrected or self.p
        if interval is None or p is None:
            return f"{self.mean:+.2f} (1 {unit.removesuffix('s')}, no interval)"
        flag = "significant" if self.significant else "not significant"
        shown = f"95 % CI {_shown(interval)}; {self.n} {unit}; p = {min(1, p):.3f}"
        return f"{self.mean:+.2f} ({shown}): {flag}"


def _shown(interval: tuple[float, float]) -> str:
    low, high = interval
    return f"{low:+.2f} to {high:+.2f}"


def paired(ours: Mapping[int, float], baseline: Mapping[int, float]) -> Difference | None:
    """Compare figures by seed on the seeds that both have; None where there is none."""
    seeds = sorted(set(ours) & set(baseline))
    if not seeds:
        return None
    differences = np.array([ours[seed] - baseline[seed] for seed in seeds])
    mean = float(differences.mean())
    if len(seeds) == 1:
        return Difference(1, mean)
    deviation = max(float(differences.std(ddof=1)), _ROUNDING)
    return Difference(len(seeds), mean, deviation / len(seeds) ** 0.5)


def holm(differences: Sequence[Difference]) -> list[Difference]:
    """Return the differences with p corrected for the number of those tested (Holm, 1979)."""
    corrected = list(differences)
    tested = sorted((d.p, row) for row, d in enumerate(differences) if d.p is not None)
    worst = 0.0
    for rank, (p, row) in enumerate(tested):
        worst = max(worst, p * (len(tested) - rank))
        corrected[row] = replace(corrected[row], corrected=worst)
    return corrected
