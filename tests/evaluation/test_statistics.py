"""Statistics over seeds, against closed forms and SciPy's t test."""

import numpy as np
import pytest
from scipy import stats

from dystress_text.evaluation.statistics import Difference, holm, paired, spread


def test_spread():
    assert str(spread([1.0, 2.0, 6.0])) == "3.00 ± 2.65"  # the root of 7 = (4 + 1 + 9) / 2
    assert str(spread([1.234])) == "1.23"


@pytest.mark.parametrize("differences", [[0.5, -0.7, 0.1, 0.2], [-1.0, -2.5]])
def test_p_and_interval_equal_scipy(differences):
    baseline = {seed: 50.0 + seed for seed in range(len(differences))}
    ours = {seed: baseline[seed] + d for seed, d in enumerate(differences)}
    found = paired(ours, baseline)
    expected = stats.ttest_rel([*ours.values()], [*baseline.values()])
    assert found.n == len(differences)
    assert found.mean == pytest.approx(np.mean(differences))
    assert found.p == pytest.approx(expected.pvalue)
    assert found.interval() == pytest.approx(tuple(expected.confidence_interval(0.95)))


def test_seeds_are_paired():
    assert paired({0: 1.0}, {1: 1.0}) is None
    one = paired({3: 2.0}, {3: 1.5})
    assert one.mean == 0.5
    assert one.p is None
    assert not one.significant
    both = paired({0: 1.0, 1: 2.0, 2: 99.0}, {0: 1.0, 1: 2.0, 3: -99.0})
    assert both.n == 2
    assert both.p == 1.0


def test_neighbours_after_rounding_are_not_significant():
    zeros = dict.fromkeys(range(3), 0.0)
    assert not paired(dict.fromkeys(range(3), 0.01), zeros).significant
    assert paired(dict.fromkeys(range(3), 1.0), zeros).significant


def test_holm_equals_its_definition():
    draw = np.random.default_rng(0)
    for _ in range(20):
        found = [Difference(4, mean, 1.0) for mean in draw.normal(2, 3, 6)]
        corrected = holm([*found, Difference(1, 9.0)])[:-1]
        p = [2 * stats.t.sf(abs(d.mean), 3) for d in found]
        worst = 0.0
        for rank, row in enumerate(np.argsort(p)):
            worst = max(worst, (6 - rank) * p[row])
            assert corrected[row].corrected == pytest.approx(worst)
        for each in corrected:
            low, high = each.interval(corrected=True)
            excludes_zero = low > 0 or high < 0
            assert each.significant == excludes_zero
