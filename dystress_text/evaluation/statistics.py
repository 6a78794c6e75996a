"""Statistics over seeds or texts: spread, paired t tests and intervals, Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

ALPHA = 0.05
# standard deviation of a difference of two figures that are rounded to two decimals
_ROUNDING = 0.01 / 6**0.5


@dataclass(frozen=True)
class Spread:
    """A figure over seeds: mean and sample deviation (n - 1), None for one seed."""

    mean: float
    deviation: float | None

    def __str__(self) -> str:
        if self.deviation is None:
            return f"{self.mean:.2f}"
        return f"{self.mean:.2f} ± {self.deviation:.2f}"


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


def spread(figures: Sequence[float]) -> Spread:
    """Return mean and standard deviation of a figure over seeds."""
    deviation = float(np.std(figures, ddof=1)) if len(figures) > 1 else None
    return Spread(float(np.mean(figures)), deviation)


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
