"""Intervals against SciPy and simulation, and the verdict's rules."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from dystress_text.adaptation.intervals import Estimate, Part, of_agreement, of_means
from dystress_text.adaptation.measures import COSINE, LOG_RANK, Measured, Values
from dystress_text.adaptation.probes import DROPPED, GENERAL, HALVES, NEIGHBOURS
from dystress_text.adaptation.verdict import Bars, Change, Compared, compare, decide, merit, score
from dystress_text.errors import UserError

rng = np.random.default_rng(0)
NEIGHBOURS_RANK, HALVES_RANK = f"{NEIGHBOURS} {LOG_RANK}", f"{HALVES} {LOG_RANK}"


def test_without_clusters_the_interval_is_scipys():
    values = rng.normal(size=200)
    ours = of_means([Part(1.0, values, np.arange(200))])
    theirs = stats.bootstrap((values,), np.mean, method="percentile", rng=np.random.default_rng(1)).confidence_interval
    assert ours.figure == pytest.approx(values.mean())
    assert (ours.low, ours.high) == pytest.approx(theirs, abs=0.02)
    assert of_means([Part(1.0, values, np.arange(200))]) == ours
    assert (ours.items, ours.units) == (200, 200)


def test_units_are_drawn_as_wholes():
    """The interval is as wide as the figure's spread over fresh samples of units that hold 1 to 5 alike items."""
    figures, widths, of_items = [], [], []
    for _ in range(60):
        sizes = rng.integers(1, 6, 50)
        units, values = np.repeat(np.arange(50), sizes), np.repeat(rng.normal(size=50), sizes)
        found = of_means([Part(1.0, values, units)])
        figures.append(found.figure)
        widths.append(found.high - found.low)
        of_items.append(3.92 * values.std() / len(values) ** 0.5)
    assert np.mean(widths) == pytest.approx(3.92 * np.std(figures), rel=0.2)
    assert np.mean(of_items) < 0.7 * np.mean(widths)


def test_parts_share_the_draws():
    x = rng.normal(size=100)
    units = np.arange(100)
    found = of_means([Part(0.5, x, units), Part(0.5, -x, units)])  # cancels only if drawn together
    assert (found.low, found.high) == pytest.approx((0, 0), abs=1e-12)
    some = of_means([Part(2.0, x, units), Part(1.0, x[:50] + 1, units[:50])])  # a part with fewer items
    assert some.figure == pytest.approx(2 * x.mean() + x[:50].mean() + 1)
    assert of_means([Part(1.0, x[:9], units[:9])]).high == math.inf  # too few units to tell


def test_agreement_is_spearmans():
    x = rng.normal(size=300)
    y = np.round(x + rng.normal(size=300), 1)  # with ties
    found = of_agreement(x, y)
    assert found.figure == pytest.approx(stats.spearmanr(x, y).statistic)
    theirs = stats.bootstrap(
        (x, y), lambda a, b: stats.spearmanr(a, b).statistic, paired=True, vectorized=False, method="percentile",
        n_resamples=300, rng=np.random.default_rng(1),
    ).confidence_interval  # fmt: skip
    assert (found.low, found.high) == pytest.approx(theirs, abs=0.02)
    assert of_agreement(x, np.exp(x)).low == pytest.approx(1)
    assert math.isnan(of_agreement(x, x * 0).figure)


def compared(gain=(2, 1, 3), agreement=(95, 94, 96), cosine=(-5, -6, -4), dropped=(0, -1, 1), general=(0, -1, 1)):
    """Figures with their intervals."""
    made = {COSINE: cosine, DROPPED: dropped, GENERAL: general}
    changes = tuple(Change(name, 50.0, 50 + e[0], Estimate(*e, 100, 50), "neither") for name, e in made.items())
    return Compared(Estimate(*gain, 100, 50), (HALVES_RANK,), changes, Estimate(*agreement, 526, 526))


@pytest.mark.parametrize(
    ("figures", "outcome", "reason"),
    [
        ({}, "WIN", r"\(halves log rank\) changes by \+2.00 \(\+1.00 to \+3.00\)"),
        ({"gain": (0.4, 0.1, 0.7)}, "TIE", "less than 2"),
        ({"gain": (2, -0.1, 4)}, "TIE", "the interval holds 0"),
        ({"gain": (-2, -4, 0.1)}, "TIE", "the interval holds 0"),
        ({"gain": (-1.9, -3, -0.1)}, "TIE", "less than 2"),
        ({"gain": (-2, -4, -0.1)}, "WORSE", "below the base for certain"),
        ({"gain": (math.nan, -math.inf, math.inf)}, "TIE", "the interval holds 0"),
        ({"agreement": (40, 30, 49)}, "WORSE", "agree with the base's at .*40.00.*, below 93"),
        ({"agreement": (49, 45, 53)}, "TIE", "below 93"),
        ({"agreement": (92, 91, 92.9)}, "TIE", "below 93"),
        ({"agreement": (math.nan, -math.inf, math.inf)}, "TIE", "below 93"),
        ({"cosine": (12, 11, 13)}, "WORSE", "random pairs come closer"),
        ({"cosine": (12, 9, 13)}, "TIE", "random pairs come closer"),
        ({"dropped": (-6, -8, -5.5)}, "WORSE", "^dropped words falls"),
        ({"general": (-6, -8, -4)}, "TIE", "^general dropped words falls"),
        ({"general": (-4.9, -8, 1)}, "WIN", "halves log rank"),
        ({"gain": (-2, -4, -1), "general": (-6, -8, -5.5)}, "WORSE", "below the base for certain"),
    ],
)
def test_the_rules(figures, outcome, reason):
    verdict = decide(compared(**figures), Bars())
    assert verdict.outcome == outcome
    assert re.search(reason, verdict.reasons[0])
    assert decide(compared(**figures), Bars()) == verdict


def test_the_bars_can_be_moved():
    bars = Bars(least_change=3, least_agreement=97, ruined_agreement=97, most_cosine_rise=-6, most_loss=-0.5)
    assert decide(compared(), replace(Bars(), least_change=3)).outcome == "TIE"
    assert len(decide(compared(gain=(4, 1, 5)), bars).reasons) == 5  # all four guards, and the score
    with pytest.raises(ValueError, match="weights"):
        Bars(weights={})


def models(gain, units=40):
    """Measures of a base and of a model that is better by a constant."""
    items = np.repeat(np.arange(units), 5)
    values = rng.uniform(size=len(items))
    base = {name: Values(values, items, "higher") for name in (NEIGHBOURS_RANK, HALVES_RANK, DROPPED)}
    tuned = base | {HALVES_RANK: Values(values + gain, items, "higher")}
    general = rng.normal(size=526)
    return Measured(base, general), Measured(tuned, general**3)


def test_from_measures_to_the_record():
    base, tuned = models(0.05)
    assert score(base, tuned, Bars()).figure == pytest.approx(2.5)  # the mean of 5 and 0
    assert score(base, tuned, Bars(weights={NEIGHBOURS_RANK: 1, HALVES_RANK: 2, "other": 9})).figure == pytest.approx(
        10 / 3
    )
    verdict = decide(compare(base, tuned, Bars()), Bars())
    assert verdict.outcome == "WIN"
    assert verdict.compared.agreement.figure == pytest.approx(100)
    record = json.loads(json.dumps(verdict.record(), allow_nan=False))
    assert record["verdict"] == "WIN"
    assert record["deciding"] == [NEIGHBOURS_RANK, HALVES_RANK]
    halves = next(row for row in record["measures"] if row["name"] == HALVES_RANK)
    assert halves["tuned"] - halves["base"] == pytest.approx(halves["difference"]["figure"]) == pytest.approx(5)
    assert record["bars"]["least_change"] == 2
    assert verdict.words().startswith("WIN: the score (neighbours log rank, halves log rank) changes by +2.50")
    few = decide(compare(*models(0.05, units=5), Bars()), Bars())
    assert few.outcome == "TIE"
    assert few.record()["score"]["low"] is None
    with pytest.raises(UserError, match="too short to measure on"):
        score(base, tuned, Bars(weights={"other": 1}))


def test_points_to_choose_by_are_the_score_less_what_is_broken():
    base, tuned = models(0.03)
    assert merit(base, tuned, Bars()) == pytest.approx(1.5)
    items = base.values[DROPPED].units
    lost = Values(base.values[DROPPED].values - 0.07, items, "higher")  # 7 points, of which 5 may be lost
    risen = {COSINE: Values(np.full(len(items), 0.2), items, "neither")}
    spoiled = replace(
        tuned, values={**tuned.values, DROPPED: lost, COSINE: Values(np.full(len(items), 0.34), items, "neither")}
    )
    started = replace(base, values={**base.values, **risen})
    assert merit(started, spoiled, Bars()) == pytest.approx(1.5 - 2 - 4)
    reversed_ = replace(tuned, general=-base.general)
    assert merit(base, reversed_, Bars()) == pytest.approx(1.5 - 193)
    with pytest.raises(UserError, match="too short to measure on"):
        merit(base, tuned, Bars(weights={"other": 1}))
