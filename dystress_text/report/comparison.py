"""Statistics over runs: mean and deviation over seeds, and paired tests against a baseline, all by SciPy."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats


@dataclass(frozen=True)
class Spread:
    """A figure over seeds: the mean, and the sample's standard deviation (n - 1), None for one seed."""

    mean: float
    deviation: float | None

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + ("" if self.deviation is None else f" ± {self.deviation:.2f}")


@dataclass(frozen=True)
class Difference:
    """A paired difference, configuration minus baseline; for one common seed a mean alone."""

    seeds: int  # that both have
    mean: float  # of the differences
    low: float | None = None  # of the 95 % interval of the mean, Student's t over seeds
    high: float | None = None  # of the same
    p: float | None = None  # two-sided, of the sign-flip test over seeds: a sample of the flips above 13 seeds

    def __neg__(self) -> Difference:
        low, high = (None if end is None else -end for end in (self.high, self.low))
        return Difference(self.seeds, -self.mean, low, high, self.p)

    def __str__(self) -> str:
        ends = "" if self.low is None else f" ({self.interval})"
        return f"{self.mean:+.2f}{ends}"

    @property
    def interval(self) -> str:
        return "one seed: no interval" if self.low is None else f"{self.low:+.2f} to {self.high:+.2f}"


def spread(figures: Sequence[float]) -> Spread:
    """Mean and standard deviation of a figure over seeds."""
    return Spread(float(np.mean(figures)), float(np.std(figures, ddof=1)) if len(figures) > 1 else None)


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
        interval = stats.ttest_rel(first, second).confidence_interval(0.95)
    p = stats.permutation_test(  # of all flips up to 13 seeds, of 9,999 above
        (first, second), lambda x, y, axis: (x - y).mean(axis), permutation_type="samples", vectorized=True,
        random_state=np.random.default_rng(0),
    ).pvalue  # fmt: skip
    low, high = (float(end) if np.isfinite(end) else mean for end in (interval.low, interval.high))
    return Difference(len(seeds), mean, low, high, float(p))
