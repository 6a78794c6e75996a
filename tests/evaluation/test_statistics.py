"""Statistics over seeds, against closed forms, SciPy's t test and a simulation."""

import numpy as np
import pytest
from scipy import stats

from dystress_text.evaluation.statistics import Difference, holm, paired, spread


def test_spread():
    assert str(spread([1.0, 2.0, 6.0])) == "3.00 ± 2.65"  # the root of 7 = (4 + 1 + 9) / 2
    assert str(spread([1.234])) == "1.23"


@pytest.mark.parametrize(
    "differences", [[0.5, -0.7, 0.1, 0.2], [1.0, 2.0, 3.0, 4.0, 5.0], [-1.0, -2.5]]
)
def test_p_and_interval_equal_scipy(differences):
    baseline = {seed: 50.0 + seed for seed in range(len(differences))}
    ours = {seed: baseline[seed] + d for seed, d in enumerate(differences)}
    found, wanted = paired(ours, baseline), stats.ttest_rel([*ours.values()], [*baseline.values()])
    low, high = wanted.confidence_interval(0.95)
    assert (found.n, found.mean) == (len(differences), pytest.approx(np.mean(differences)))
    interval = found.interval()
    assert (found.p, interval.low, interval.high) == pytest.approx((wanted.pvalue, low, high))


def test_seeds_are_paired():
    assert paired({0: 1.0}, {1: 1.0}) is None
    one = paired({3: 2.0}, {3: 1.5})
    assert (one.n, one.mean, one.p, one.significant, one.interval()) == (1, 0.5, None, False, None)
    both = paired({0: 1.0, 1: 2.0, 2: 99.0}, {0: 1.0, 1: 2.0, 3: -99.0})
    assert (both.n, both.mean, both.p) == (2, 0.0, 1.0)
    hundredths, points = (
        paired(dict.fromkeys(range(3), d), dict.fromkeys(range(3), 0.0)) for d in (0.01, 1.0)
    )
    assert not holm([hundredths])[0].significant  # two figures that round to neighbours
    assert holm([points])[0].significant


def test_holm_equals_its_definition():
    rng = np.random.default_rng(0)
    for _ in range(50):
        found = [Difference(4, mean, 1.0) for mean in rng.normal(2, 3, 6)] + [Difference(1, 9.0)]
        corrected = [d.corrected for d in holm(found)[:-1]]
        p = [2 * stats.t.sf(abs(d.mean), 3) for d in found[:-1]]
        order = np.argsort(p)
        wanted = [
            max((6 - i) * p[order[i]] for i in range(place + 1)) for place in range(6)
        ]  # as he defines it
        assert [corrected[place] for place in order] == pytest.approx(wanted)
        for d in holm(found)[:-1]:
            interval = d.interval(corrected=True)
            excludes_zero = interval.low > 0 or interval.high < 0
            assert abs(d.corrected - 0.05) < 1e-9 or d.significant == excludes_zero


@pytest.mark.parametrize("seeds", [3, 5])
def test_family_wise_error_is_five_percent(
    seeds,
):
    rng, repetitions = np.random.default_rng(seeds), 300
    false = found = 0
    for _ in range(repetitions):
        figures = rng.normal(70, 1, seeds) + rng.normal(0, 0.5, (20, seeds))  # a seed moves all
        baseline, *others = [dict(enumerate(row)) for row in figures.round(2).tolist()]
        false += any(d.significant for d in holm([paired(other, baseline) for other in others]))
        others[7] = {seed: figure + 20 for seed, figure in others[7].items()}
        found += holm([paired(other, baseline) for other in others])[7].significant
    assert false / repetitions < 0.09  # 5 % and three standard errors; 50 % without a correction
    assert found / repetitions > 0.95
