"""Statistics over seeds and pairs, against closed forms and enumerations."""

import itertools

import numpy as np
import pytest
from scipy import stats

from dystress_text.report.comparison import equivalence, over_pairs, paired, spread


def test_spread_is_the_samples():
    found = spread([1.0, 2.0, 6.0])
    assert (found.seeds, found.mean) == (3, 3.0)
    assert found.deviation == pytest.approx(7**0.5)  # (4 + 1 + 9) / 2
    assert str(found) == "3.00 ± 2.65"
    one = spread([1.234])
    assert (one.deviation, str(one)) == (None, "1.23")


def flips(differences):
    """The two-sided sign-flip p, by trying all of them."""
    d = np.array(differences)
    all_of_them = [abs((d * signs).mean()) for signs in itertools.product((1, -1), repeat=len(d))]
    return np.mean([mean >= abs(d.mean()) - 1e-12 for mean in all_of_them])


@pytest.mark.parametrize(
    "differences", [[0.5, 0.7, 0.1], [0.5, -0.7, 0.1, 0.2], [1.0, 2.0, 3.0, 4.0, 5.0], [-1.0, -2.0]]
)
def test_p_is_the_exact_sign_flip_tests(differences):
    baseline = {seed: 50.0 + seed for seed in range(len(differences))}
    ours = {seed: baseline[seed] + d for seed, d in enumerate(differences)}
    found = paired(ours, baseline)
    assert found.exact
    assert found.p == pytest.approx(flips(differences))
    n, mean, s = len(differences), np.mean(differences), np.std(differences, ddof=1)
    half = stats.t.ppf(0.975, n - 1) * s / n**0.5
    assert (found.seeds, found.mean) == (n, pytest.approx(mean))
    assert (found.low, found.high) == (pytest.approx(mean - half), pytest.approx(mean + half))


def test_the_least_p_is_two_sign_flips_of_all():
    for n in (2, 3, 5):
        assert paired(dict.fromkeys(range(n), 2.0), dict.fromkeys(range(n), 1.0)).p == pytest.approx(2 / 2**n)


def test_one_seed_has_a_difference_and_nothing_more():
    found = paired({3: 2.0}, {3: 1.5})
    assert (found.seeds, found.mean, found.low, found.high, found.p) == (1, 0.5, None, None, None)


def test_only_seeds_that_both_have_are_paired():
    found = paired({0: 1.0, 1: 2.0, 2: 99.0}, {0: 0.0, 1: 0.0, 3: -99.0})
    assert (found.seeds, found.mean) == (2, 1.5)
    assert paired({0: 1.0}, {1: 1.0}) is None


def test_equal_figures_differ_by_nothing():
    found = paired({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0})
    assert (found.mean, found.low, found.high, found.p) == (0.0, 0.0, 0.0, 1.0)


@pytest.mark.parametrize("mean", [0.0, 0.1, -0.2, 0.24, 0.4])
def test_equivalence_is_a_90_percent_interval_within_the_margin(mean):
    for seed in range(20):
        drawn = np.random.default_rng(seed).normal(mean, 0.15, 5)
        ours, baseline = dict(enumerate(70 + drawn)), dict.fromkeys(range(5), 70.0)
        interval = stats.ttest_1samp(drawn, 0).confidence_interval(0.90)
        p = equivalence(ours, baseline, 0.25)
        assert (p < 0.05) == (interval.low > -0.25 and interval.high < 0.25)
        tail = stats.t.sf((0.25 - abs(drawn.mean())) / (drawn.std(ddof=1) / 5**0.5), 4)
        assert p == pytest.approx(tail)
    assert equivalence({0: 1.0}, {0: 1.0}, 0.25) is None
    assert equivalence({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0}, 0.25) == 0


def test_many_seeds_are_sampled_and_said_to_be():
    rng = np.random.default_rng(1)
    d = rng.normal(0.3, 1.0, 20)
    found = paired(dict(enumerate(d)), dict.fromkeys(range(20), 0.0))
    assert not found.exact
    assert found.p == pytest.approx(stats.ttest_1samp(d, 0).pvalue, abs=0.03)  # near it for normal differences


@pytest.fixture(scope="module")
def predictions():
    """Gold scores, two seeds of a good encoder and two of a worse one."""
    rng = np.random.default_rng(0)
    gold = rng.uniform(0, 5, 400).round(1)
    good = {seed: np.stack([gold + rng.normal(0, 1.5, 400), gold]) for seed in (0, 1)}
    worse = {seed: np.stack([gold + rng.normal(0, 3.0, 400), gold]) for seed in (0, 1)}
    return good, worse


def test_the_interval_over_pairs_holds_the_difference_and_not_zero(predictions):
    good, worse = predictions
    low, high = over_pairs(good, worse, 200)
    difference = np.mean(
        [100 * (stats.spearmanr(*good[s]).statistic - stats.spearmanr(*worse[s]).statistic) for s in (0, 1)]
    )
    assert 0 < low < difference < high
    assert (low, high) == over_pairs(good, worse, 200)  # the same every time
    assert over_pairs(worse, good, 200) == pytest.approx((-high, -low))


def test_the_interval_is_that_of_a_bootstrap_over_paired_pairs(predictions):
    """Against SciPy's own paired bootstrap of one seed's three columns."""
    good, worse = predictions

    def statistic(a, b, gold):
        return 100 * (stats.spearmanr(a, gold).statistic - stats.spearmanr(b, gold).statistic)

    columns = (good[0][0], worse[0][0], good[0][1])
    reference = stats.bootstrap(
        columns, statistic, paired=True, vectorized=False, method="percentile", n_resamples=400, rng=7
    ).confidence_interval
    found = over_pairs({0: good[0]}, {0: worse[0]}, 400)
    assert found == pytest.approx(tuple(reference), abs=1.5)  # two draws of 400
    assert over_pairs({0: good[0]}, {0: good[0]}, 50) == (0.0, 0.0)


def test_pairs_that_are_not_the_same_are_not_compared(predictions):
    good, worse = predictions
    assert over_pairs({0: good[0]}, {1: worse[1]}, 50) is None
    assert over_pairs(good, worse, 0) is None
    shorter = {0: worse[0][:, :-1]}
    assert over_pairs(good, shorter, 50) is None
    other = {0: np.stack([worse[0][0], worse[0][1][::-1]])}
    assert over_pairs(good, other, 50) is None
