"""Cosines of random pairs: against the closed form for random directions, NumPy's quantiles, and what is refused."""

import json

import numpy as np
import pytest
from scipy.stats import beta

from dystress_text.errors import UserError
from dystress_text.evaluation import random_pairs as module
from dystress_text.evaluation.random_pairs import RandomPairs, random_pairs


def directions(n, dim, seed=0):
    return np.random.default_rng(seed).standard_normal((n, dim)).astype(np.float32)


@pytest.fixture(scope="module")
def sketch():
    return random_pairs(directions(3000, 20), "drawn directions", True)


@pytest.mark.parametrize("rate", [0.9, 0.5, 0.03, 1e-2, 1e-3, 1e-4])
def test_random_directions_have_their_closed_form(sketch, rate):
    # the density of the cosine c in d dimensions is proportional to (1 - c^2)^((d - 3) / 2)
    expected = 2 * beta.isf(rate, 19 / 2, 19 / 2) - 1
    assert sketch.threshold(rate) == pytest.approx(expected, abs=0.004)
    assert sketch.rate_of(expected) == pytest.approx(rate, rel=0.06)


@pytest.mark.parametrize("block", [64, 4096])
def test_the_cosines_are_the_quantiles_of_all_pairs(monkeypatch, block):
    monkeypatch.setattr(module, "_BLOCK", block)
    vectors = directions(300, 5) * np.linspace(0.1, 9, 300, dtype=np.float32)[:, None]
    unit = vectors.astype(np.float64) / np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    pairs = (unit @ unit.T)[np.triu_indices(300, 1)]
    found = random_pairs(vectors, "drawn")
    assert found.pairs == len(pairs) == 300 * 299 // 2
    expected = np.quantile(pairs, 1 - np.array(found.rates), method="higher")
    np.testing.assert_allclose(found.cosines, expected, rtol=0, atol=2e-3)  # neighbours lie 1e-3 apart in the tail
    shares = [(pairs >= cosine).mean() for cosine in found.cosines]
    np.testing.assert_allclose(shares[1:], found.rates[1:], rtol=0.02)
    np.testing.assert_allclose(found.rates_of(np.array(found.cosines)), found.rates)
    assert found.finest == 100 / len(pairs)
    assert found.said(found.rate_of(1.0)) == "<2.2e-03"
    assert found.rate_of(-1.0) == 1


def test_equal_vectors_are_no_evidence():
    found = random_pairs(np.ones((60, 3)), "one text")
    assert found.rate_of(1.0) > 0.99


def test_the_table_has_the_rates_that_the_pairs_can_tell(sketch):
    assert [rate for rate, _ in sketch.table()] == ["1e-01", "1e-02", "1e-03", "1e-04"]
    assert sketch.about() == "4,498,500 random pairs of 3,000 sentences of drawn directions, held out of training"


@pytest.mark.parametrize("rate", [0.0, 1.0, -1e-3, 2.0, float("nan"), 1e-5])
def test_a_rate_that_it_cannot_tell_is_one_line(sketch, rate):
    with pytest.raises(UserError, match=r"^--false_alarm: .*(in \(0, 1\)|finer than 4,498,500 .* 2\.2e-05).*$"):
        sketch.threshold(rate)


@pytest.mark.parametrize("vectors", [np.ones((49, 3)), np.full((60, 3), np.nan)])
def test_vectors_without_a_distribution_are_refused(vectors):
    with pytest.raises(UserError, match=r"50 distinct sentences|NaN"):
        random_pairs(vectors, "drawn")


def test_a_folder_keeps_it(sketch, tmp_path):
    assert RandomPairs.load(tmp_path) is None
    sketch.save(tmp_path)
    assert RandomPairs.load(tmp_path) == sketch
    assert (tmp_path / "random_pairs.json").stat().st_size < 8_000


DAMAGE = {
    "no object": lambda stored: [],
    "another format": lambda stored: stored | {"format": 2},
    "a field is missing": lambda stored: {name: value for name, value in stored.items() if name != "pairs"},
    "a field too many": lambda stored: stored | {"more": 1},
    "rates rise": lambda stored: stored | {"rates": stored["rates"][::-1]},
    "cosines fall": lambda stored: stored | {"cosines": stored["cosines"][::-1]},
    "a cosine is null": lambda stored: stored | {"cosines": [None, *stored["cosines"][1:]]},
    "a cosine is NaN": lambda stored: stored | {"cosines": [float("nan"), *stored["cosines"][1:]]},
    "one cosine less": lambda stored: stored | {"cosines": stored["cosines"][1:]},
    "empty": lambda stored: stored | {"rates": [], "cosines": []},
    "pairs are a text": lambda stored: stored | {"pairs": "many"},
    "no source": lambda stored: stored | {"source": None},
    "held out is a list": lambda stored: stored | {"held_out": []},
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_one_line(sketch, tmp_path, damage):
    sketch.save(tmp_path)
    file = tmp_path / "random_pairs.json"
    file.write_text(json.dumps(DAMAGE[damage](json.loads(file.read_text()))))
    with pytest.raises(UserError, match=r"^.*random_pairs\.json' is damaged \(.*$"):
        RandomPairs.load(tmp_path)
