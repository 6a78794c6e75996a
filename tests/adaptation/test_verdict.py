"""Intervals against SciPy and simulation, and the verdict's rules."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from dystress_text.adaptation.intervals import Estimate, Part, of_agreement, of_means
from dystress_text.adaptation.measures import LOG_RANK, UNIFORMITY, Measured, Values
from dystress_text.adaptation.probes import DROPPED, GENERAL, HALVES, NEIGHBOURS
from dystress_text.adaptation.verdict import Bars, Change, Compared, compare, decide, merit, score
from dystress_text.errors import UserError

rng = np.random.default_rng(0)
NEIGHBOURS_RANK, HALVES_RANK, DROPPED_RANK, GENERAL_RANK = (
    f"{name} {LOG_RANK}" for name in (NEIGHBOURS, HALVES, DROPPED, GENERAL)
)


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


def compared(score=(2, 1, 3), opening=(60, 50, 70), agreement=(95, 94, 96), dropped=(0, -1, 1), general=(0, -1, 1)):
    """Figures with their intervals."""
    uniformity = (-opening[0], -opening[2], -opening[1])
    made = {UNIFORMITY: uniformity, DROPPED_RANK: dropped, GENERAL_RANK: general}
    changes = tuple(Change(name, 50.0, 50 + e[0], Estimate(*e, 100, 50), "neither") for name, e in made.items())
    return Compared(Estimate(*score, 100, 50), (HALVES_RANK,), changes, Estimate(*agreement, 526, 526))


UNKNOWN = (math.nan, -math.inf, math.inf)


@pytest.mark.parametrize(
    ("figures", "outcome", "reason"),
    [
        ({}, "WIN", r"opens by \+60.00 \(\+50.00 to \+70.00\)"),
        ({"score": (0, -9.9, 9)}, "WIN", "opens"),
        ({"score": (-0.1, -9.9, 9)}, "TIE", r"\(halves log rank\) changes by -0.10 .* needs 0"),
        ({"score": (1, -10.1, 12)}, "TIE", "interval above -10"),
        ({"score": (-1.9, -3, -0.1)}, "TIE", "needs 0"),
        ({"score": (-2, -4, -0.1)}, "WORSE", "below the base for certain"),
        ({"score": UNKNOWN}, "TIE", "needs 0"),
        ({"opening": (21, 20, 22)}, "WIN", "opens"),
        ({"opening": (21, 19.9, 22)}, "TIE", "needs 20 for certain"),
        ({"opening": (-30, -40, -20.1)}, "WORSE", "it closes"),
        ({"opening": (-30, -41, -19)}, "TIE", "needs 20"),
        ({"opening": UNKNOWN}, "TIE", "needs 20"),
        ({"agreement": (40, 30, 49)}, "WORSE", "agree with the base's at .*40.00.*, below 93"),
        ({"agreement": (49, 45, 53)}, "TIE", "below 93"),
        ({"agreement": (92, 91, 92.9)}, "TIE", "below 93"),
        ({"agreement": UNKNOWN}, "TIE", "below 93"),
        ({"dropped": (-11, -12, -10.5)}, "WORSE", "^dropped words log rank falls"),
        ({"general": (-2.6, -8, -2.4)}, "TIE", "^general dropped words log rank falls"),
        ({"general": (-2.4, -8, 1)}, "WIN", "opens"),
        ({"score": (-2, -4, -1), "general": (-6, -8, -5.5)}, "WORSE", "below the base for certain"),
    ],
)
def test_the_rules(figures, outcome, reason):
    verdict = decide(compared(**figures), Bars())
    assert verdict.outcome == outcome
    assert re.search(reason, verdict.reasons[0])
    assert decide(compared(**figures), Bars()).reasons == verdict.reasons


def test_the_bars_can_be_moved():
    bars = Bars(
        least_opening=61, most_doubt=-2, least_fall=-3, least_agreement=97, ruined_agreement=97,
        guarded={DROPPED_RANK: -0.5, GENERAL_RANK: -0.5},
    )  # fmt: skip
    found = decide(compared(), bars)
    assert (found.outcome, len(found.reasons)) == ("WORSE", 3)  # agreement for certain; two guards
    found = decide(compared(), replace(bars, ruined_agreement=50))
    assert (found.outcome, len(found.reasons)) == ("TIE", 5)  # score and opening too
    with pytest.raises(ValueError, match="weights"):
        Bars(weights={})


def models(gain, opening=0.6, units=40):
    """Measures of a base and of a model that is better by a constant, in a more open space."""
    items = np.repeat(np.arange(units), 5)
    values = rng.uniform(size=len(items))
    base = {name: Values(values, items, "higher") for name in (NEIGHBOURS_RANK, HALVES_RANK, DROPPED_RANK)}
    base[UNIFORMITY] = Values(-values, items, "lower")
    tuned = base | {HALVES_RANK: Values(values + gain, items, "higher")}
    tuned[UNIFORMITY] = Values(-values - opening, items, "lower")
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
    assert verdict.compared.opening.figure == pytest.approx(60)
    record = json.loads(json.dumps(verdict.record(), allow_nan=False))
    assert record["verdict"] == "WIN"
    assert record["opening"]["figure"] == pytest.approx(60)
    assert record["deciding"] == [NEIGHBOURS_RANK, HALVES_RANK]
    halves = next(row for row in record["measures"] if row["name"] == HALVES_RANK)
    assert halves["tuned"] - halves["base"] == pytest.approx(halves["difference"]["figure"]) == pytest.approx(5)
    assert record["bars"]["least_opening"] == 20
    assert verdict.words().startswith("WIN: the space opens by +60.00")
    few = decide(compare(*models(0.05, units=5), Bars()), Bars())
    assert few.outcome == "TIE"
    assert few.record()["score"]["low"] is None
    with pytest.raises(UserError, match="none of the measures that decide"):
        score(base, tuned, Bars(weights={"other": 1}))


def test_points_to_choose_by():
    """The opening, where nothing is lost and there is enough of it; else what is lost, below 0."""
    base, tuned = models(0.05)
    assert merit(base, tuned, Bars()) == pytest.approx(60)
    assert merit(*models(0.05, opening=0.19), Bars()) == 0
    assert merit(*models(-0.05), Bars()) == pytest.approx(-2.5)
    items = base.values[DROPPED_RANK].units
    lost = Values(base.values[DROPPED_RANK].values - 0.13, items, "higher")  # 13 points, of which 10 may be lost
    spoiled = replace(tuned, values={**tuned.values, DROPPED_RANK: lost})
    assert merit(base, spoiled, Bars()) == pytest.approx(-3)
    assert merit(base, replace(tuned, general=-base.general), Bars()) == pytest.approx(-193)
    assert math.isnan(merit(base, replace(tuned, general=base.general * 0), Bars()))
    with pytest.raises(UserError, match="none of the measures that decide"):
        merit(base, tuned, Bars(weights={"other": 1}))
