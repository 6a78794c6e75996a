"""Statistics over runs: mean and deviation over seeds, and paired t tests with Holm's correction
for their number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

ALPHA = 0.05
_ROUNDING = (
    0.01 / 6**0.5
)  # the deviation of a difference of two figures of two decimals: less cannot be known


@dataclass(frozen=True)
class Spread:
    """A figure over seeds: the mean, and the sample's standard deviation (n - 1), None for one
    seed.
    """

    mean: float
    deviation: float | None

    def __str__(self) -> str:
        return f"{self.mean:.2f}" + ("" if self.deviation is None else f" ± {self.deviation:.2f}")


@dataclass(frozen=True)
class Difference:
    """A paired difference, configuration minus baseline; for one common seed a mean alone."""

    seeds: int  # that both have
    mean: float  # of the differences
    error: float | None = None  # the standard error of the mean
    corrected: float | None = None  # p after Holm, not cut at 1

    def __str__(self) -> str:
        return f"{self.mean:+.2f}" + ("" if self.error is None else f" ({self.interval()})")

    @property
    def p(self) -> float | None:
        """Of the two-sided paired t test over seeds, for this comparison alone."""
        if self.error is None:
            return None
        return max(
            2 * float(stats.t.sf(abs(self.mean) / self.error, self.seeds - 1)),
            float(np.finfo(float).tiny),
        )

    @property
    def told(self) -> bool:
        """Whether the seeds can tell: three or more, and p below 0.05 after Holm."""
        return self.seeds > 2 and self.corrected is not None and self.corrected < ALPHA

    def interval(self, corrected: bool = False) -> str:
        """The 95 % interval of the mean, of this comparison alone or as wide as Holm's test, which
        agrees with it.
        """
        if self.error is None or self.p is None:
            return "one seed: no interval"
        alpha = ALPHA * self.p / self.corrected if corrected and self.corrected else ALPHA
        half = self.error * float(stats.t.isf(alpha / 2, self.seeds - 1))
        return f"{self.mean - half:+.2f} to {self.mean + half:+.2f}"


def spread(figures: Sequence[float]) -> Spread:
    """Mean and standard deviation of a figure over seeds."""
    return Spread(
        float(np.mean(figures)), float(np.std(figures, ddof=1)) if len(figures) > 1 else None
    )


def paired(ours: Mapping[int, float], baseline: Mapping[int, float]) -> Difference | None:
    """Compare figures by seed on the seeds that both have; None where there is none."""
    seeds = sorted(set(ours) & set(baseline))
    if not seeds:
        return None
    differences = np.array([ours[seed] - baseline[seed] for seed in seeds])
    mean = float(differences.mean())
    if len(seeds) == 1:
        return Difference(1, mean)
    return Difference(
        len(seeds), mean, max(float(differences.std(ddof=1)), _ROUNDING) / len(seeds) ** 0.5
    )


def holm(differences: Sequence[Difference]) -> list[Difference]:
    """The same with p corrected for the number of those that are tested (Holm, 1979)."""
    corrected, worst = list(differences), 0.0
    tested = sorted((d.p, place) for place, d in enumerate(differences) if d.p is not None)
    for left, (p, place) in zip(range(len(tested), 0, -1), tested, strict=True):
        worst = max(worst, p * left)
        corrected[place] = replace(corrected[place], corrected=worst)
    return corrected
