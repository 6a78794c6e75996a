"""Statistics over runs: mean and deviation over seeds, and paired tests against a baseline, all by SciPy."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

CONFIDENCE = 0.95
EXACT = 2**13  # sign flips up to which all are tried: 13 seeds


@dataclass(frozen=True)
class Spread:
    """A figure over seeds.

    Attributes:
        seeds: their number.
        mean: of the figures.
        deviation: the sample's standard deviation (n - 1); None for one seed.
    """

    seeds: int
    mean: float
    deviation: float | None

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + ("" if self.deviation is None else f" ± {self.deviation:.2f}")


@dataclass(frozen=True)
class Difference:
    """A paired difference, configuration minus baseline.

    Attributes:
        seeds: that both have.
        mean: of the differences.
        low: of the 95 % interval of the mean, Student's t over seeds; None for one seed.
        high: of the same.
        p: two-sided, of the sign-flip test over seeds; None for one seed.
        exact: whether all sign flips were tried, not a sample of them.
    """

    seeds: int
    mean: float
    low: float | None = None
    high: float | None = None
    p: float | None = None
    exact: bool = True


def spread(figures: Sequence[float]) -> Spread:
    """Mean and standard deviation of a figure over seeds."""
    return Spread(len(figures), float(np.mean(figures)), float(np.std(figures, ddof=1)) if len(figures) > 1 else None)


def paired(ours: Mapping[int, float], baseline: Mapping[int, float]) -> Difference | None:
    """Compare figures by seed on the seeds that both have; None where there is none.

    With n seeds no p can be below 2 / 2^n: 0.25 for three, 0.0625 for five.
    """
    seeds = sorted(set(ours) & set(baseline))
    if not seeds:
        return None
    first, second = (np.array([figures[seed] for seed in seeds]) for figures in (ours, baseline))
    mean = float((first - second).mean())
    if len(seeds) == 1:
        return Difference(1, mean)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # equal differences: the interval is a point
        interval = stats.ttest_rel(first, second).confidence_interval(CONFIDENCE)
    exact = 2 ** len(seeds) <= EXACT
    p = stats.permutation_test(
        (first, second), _mean_difference, permutation_type="samples", vectorized=True,
        n_resamples=np.inf if exact else 9999, rng=np.random.default_rng(0),
    ).pvalue  # fmt: skip
    low, high = (float(end) if np.isfinite(end) else mean for end in (interval.low, interval.high))
    return Difference(len(seeds), mean, low, high, float(p), exact)


def equivalence(ours: Mapping[int, float], baseline: Mapping[int, float], margin: float) -> float | None:
    """The p of two one-sided t tests, paired by seed, that the mean difference lies within ``margin`` of 0.

    Schuirmann, "A comparison of the two one-sided tests procedure" (1987). None with fewer than two common seeds.
    """
    seeds = sorted(set(ours) & set(baseline))
    if len(seeds) < 2:
        return None
    differences = np.array([ours[seed] - baseline[seed] for seed in seeds])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # equal differences
        above = stats.ttest_1samp(differences, -margin, alternative="greater").pvalue
        below = stats.ttest_1samp(differences, margin, alternative="less").pvalue
    return float(max(above, below))


def over_pairs(
    ours: Mapping[int, NDArray[np.float64]], baseline: Mapping[int, NDArray[np.float64]], resamples: int
) -> tuple[float, float] | None:
    """The 95 % interval of the difference of Spearman's correlation (x 100), by paired bootstrap over sentence pairs.

    A resample draws the same pairs for both. Figures are averaged over the seeds that both have.

    Args:
        ours: (2, pairs) by seed, cosines and gold scores.
        baseline: the same of the baseline.
        resamples: how many; 0 for none.

    Returns:
        The interval's ends, or None without a seed that both have, without resamples, or with different pairs.
    """
    seeds = sorted(set(ours) & set(baseline))
    if not seeds or resamples == 0:
        return None
    gold = ours[seeds[0]][1]
    if any(
        len(each[seed][1]) != len(gold) or (each[seed][1] != gold).any() for each in (ours, baseline) for seed in seeds
    ):
        return None

    columns = np.column_stack([*(each[seed][0] for each in (ours, baseline) for seed in seeds), gold])
    n = len(seeds)

    def difference(rows: NDArray[np.int64]) -> float:
        each = 100 * stats.spearmanr(columns[rows]).statistic[-1, :-1]  # (2 n,): all at once, gold ranked once
        return float(np.mean(each[:n] - each[n:]))

    found = stats.bootstrap(
        (np.arange(len(gold)),), difference, vectorized=False, method="percentile", n_resamples=resamples,
        confidence_level=CONFIDENCE, rng=np.random.default_rng(0),
    ).confidence_interval  # fmt: skip
    return float(found.low), float(found.high)


def _mean_difference(x: NDArray[np.float64], y: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    return np.asarray((x - y).mean(axis))
