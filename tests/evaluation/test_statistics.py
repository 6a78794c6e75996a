"""Intervals against a bootstrap by hand and SciPy's, and their coverage by simulation."""

import numpy as np
import pytest
from scipy import stats

from dystress_text.evaluation.statistics import (
    average_of,
    estimate,
    over_seeds,
    spread,
    without_units,
)


def test_spread():
    assert spread([1.0, 2.0, 6.0]) == "3.00 ± 2.65"  # the root of 7 = (4 + 1 + 9) / 2
    assert spread([1.234]) == "1.23"


def two_models(kind, seed=0, units=60):
    """Figures or similarities of two equally good models, and scores for pairs, with ties."""
    random = np.random.default_rng(seed)
    hidden = random.normal(size=units)
    models = hidden + random.normal(size=(2, units))
    if kind == "pairs":
        return models.round(1), (2 * hidden).round().clip(-3, 3)
    ranks = np.ceil(np.exp(1.5 - models))  # of the one relevant document
    return np.where(ranks > 10, 0, 1 / np.log2(1 + ranks)), None


def figure(values, scores):
    if scores is None:
        return 100 * np.mean(values)
    return 100 * stats.spearmanr(values, scores).statistic


@pytest.mark.parametrize("kind", ["queries", "pairs"])
def test_intervals_equal_a_bootstrap_by_hand(kind):
    """Of a model, and of the paired difference; the limits differ by the random draws."""
    (a, b), scores = two_models(kind)
    ours, theirs = (estimate(values, scores, "data") for values in (a, b))
    assert ours.mean == pytest.approx(figure(a, scores))
    random = np.random.default_rng(1)
    alone = []
    differences = []
    for _ in range(1500):
        drawn = random.integers(len(a), size=len(a))
        of_scores = None if scores is None else scores[drawn]
        alone.append(figure(a[drawn], of_scores))
        differences.append(alone[-1] - figure(b[drawn], of_scores))
    for found, resampled in ((ours, alone), (ours - theirs, differences)):
        expected = np.quantile(resampled, [0.025, 0.975])
        assert found.interval == pytest.approx(expected, abs=0.15 * np.std(resampled))
    assert (theirs - ours).mean == pytest.approx(figure(b, scores) - figure(a, scores))


def test_seeds_alone_have_the_interval_of_the_t_distribution():
    ours, theirs = without_units([70.5, 72.0, 73.0]), without_units([70.0, 71.0, 72.5])
    expected = stats.ttest_rel(ours.figures, theirs.figures).confidence_interval(0.95)
    assert (ours - theirs).interval == pytest.approx(tuple(expected), abs=0.01)
    assert without_units([70.0]).interval is None
    _, high = (without_units([1.0, 1.0]) - without_units([1.0, 1.0])).interval
    # each figure is rounded to hundredths
    assert high == pytest.approx(stats.t.isf(0.025, 1) * 0.01 / 12**0.5, rel=0.05)


def test_seeds_and_queries_vary_together():
    """The variance is that of the queries and that of the mean over seeds."""
    random = np.random.default_rng(2)
    of_seeds = random.normal(0, 0.05, 8)
    queries = random.normal(0.5, 0.3, 200)  # they vary as much as the mean of the seeds
    values = queries + of_seeds[:, None]
    both = over_seeds([estimate(each) for each in values])
    low, high = both.interval
    quantile = stats.t.isf(0.025, 7)
    by_seeds = quantile * of_seeds.std(ddof=1) / 8**0.5
    by_queries = 1.96 * queries.std(ddof=1) / 200**0.5
    assert high - low == pytest.approx(200 * np.hypot(by_seeds, by_queries), rel=0.05)
    low, high = (both - estimate(queries)).interval  # paired with one model without seeds
    assert high - low == pytest.approx(200 * by_seeds, rel=0.05)


def test_sets_are_independent():
    """The mean of two sets varies less than each, also if their units are in the same order."""
    values = np.sort(np.random.default_rng(3).random(100))
    one, other = estimate(values, data="a"), estimate(values, data="b")
    both = average_of([one, other])
    assert both.units == 200
    assert np.ptp(both.interval) == pytest.approx(np.ptp(one.interval) / 2**0.5, rel=0.05)
    assert (one - other).interval is None  # other units: not paired
    for mixed in (over_seeds([one, other]), average_of([one, without_units([70.0])])):
        assert mixed.units == 0


def test_resamples_of_equal_scores_have_no_figure():
    low, high = estimate([0.1, 0.4, 0.2, 0.3, 0.9], [0, 0, 0, 0, 1]).interval
    assert 0 < low < high


@pytest.mark.slow(30)
@pytest.mark.parametrize("kind", ["queries", "pairs"])
def test_equal_models_are_called_different_in_one_of_twenty_draws(kind):
    different = 0
    for seed in range(400):
        models, scores = two_models(kind, seed, units=30)
        ours, theirs = (estimate(values, scores) for values in models)
        low, high = (ours - theirs).interval
        different += low > 0 or high < 0
    assert 0.02 <= different / 400 <= 0.08
