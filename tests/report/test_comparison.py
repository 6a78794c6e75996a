"""Statistics over seeds, against closed forms and enumerations."""

import itertools
from dataclasses import astuple

import numpy as np
import pytest
from scipy import stats

from dystress_text.report.comparison import paired, spread


def test_spread_is_the_samples():
    wanted = {"3.00 ± 2.65": [1.0, 2.0, 6.0], "1.23": [1.234]}  # the root of 7 = (4 + 1 + 9) / 2
    assert [str(spread(figures)) for figures in wanted.values()] == [*wanted]


@pytest.mark.parametrize("differences", [[0.5, -0.7, 0.1, 0.2], [1.0, 2.0, 3.0, 4.0, 5.0], [-1.0, -2.0]])
def test_p_is_the_exact_sign_flip_tests(differences):
    baseline = {seed: 50.0 + seed for seed in range(len(differences))}
    found = paired({seed: baseline[seed] + d for seed, d in enumerate(differences)}, baseline)
    d = np.array(differences)
    flips = [abs((d * signs).mean()) for signs in itertools.product((1, -1), repeat=len(d))]
    assert found.p == pytest.approx(np.mean([mean >= abs(d.mean()) - 1e-12 for mean in flips]))
    half = stats.t.ppf(0.975, len(d) - 1) * d.std(ddof=1) / len(d) ** 0.5
    assert (found.seeds, found.mean) == (len(d), pytest.approx(d.mean()))
    assert (found.low, found.high) == (pytest.approx(d.mean() - half), pytest.approx(d.mean() + half))


def test_only_seeds_that_both_have_are_paired():
    assert paired({0: 1.0}, {1: 1.0}) is None
    for ours, baseline, wanted in (
        ({0: 1.0, 1: 2.0, 2: 99.0}, {0: 0.0, 1: 1.0, 3: -99.0}, (2, 1.0, 1.0, 1.0, 0.5)),
        ({3: 2.0}, {3: 1.5}, (1, 0.5, None, None, None)),
        ({0: 1.0, 1: 2.0}, {0: 1.0, 1: 2.0}, (2, 0.0, 0.0, 0.0, 1.0)),
    ):
        assert astuple(paired(ours, baseline)) == wanted


def test_of_many_seeds_the_flips_are_sampled():
    d = np.random.default_rng(1).normal(0.3, 1.0, 20)
    found = paired(dict(enumerate(d)), dict.fromkeys(range(20), 0.0))
    assert found.p == pytest.approx(stats.ttest_1samp(d, 0).pvalue, abs=0.03)  # near it for normal differences
