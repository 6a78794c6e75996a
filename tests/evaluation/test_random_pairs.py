"""Cosines of random pairs, against the closed form for random directions."""

import numpy as np
import pytest
from scipy.stats import beta

from dystress_text.evaluation.random_pairs import random_pairs, random_pairs_table


def test_cosines_equal_the_beta_distribution():
    found = random_pairs(np.random.default_rng(0).standard_normal((2100, 20)) * 7)
    assert found["sentences"] == 2000
    assert found["pairs"] == 2000 * 1999 // 2
    # (1 + cosine) / 2 is Beta((dim - 1) / 2, (dim - 1) / 2)
    for share, cosine in found["cosines"].items():
        assert cosine == pytest.approx(2 * beta.isf(float(share), 9.5, 9.5) - 1, abs=8e-3)
    share, cosine = random_pairs_table(found)[-1]
    assert share == "1 in 10,000"
    assert float(cosine) == pytest.approx(found["cosines"]["0.0001"], abs=5e-4)


def test_few_sentences_give_few_shares():
    vectors = np.random.default_rng(0).standard_normal((50, 4))
    assert list(random_pairs(vectors)["cosines"]) == ["0.5", "0.1"]
    assert random_pairs(vectors[:49]) is None
