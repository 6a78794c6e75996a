"""Cosines of a run's texts: random pairs against a closed form, neighbours against sklearn."""

import numpy as np
import pytest
import torch
from scipy.stats import beta
from sklearn.neighbors import NearestNeighbors

from dystress_text.evaluation.cosines import nearest_texts, random_pairs, random_pairs_table


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


def test_neighbours_are_those_of_sklearn():
    vectors = np.random.default_rng(0).normal(size=(60, 5)) * np.arange(1, 61)[:, None]
    texts = [f"text {i}" for i in range(60)]
    rows = nearest_texts(texts, torch.from_numpy(vectors), seed=1)
    index = NearestNeighbors(n_neighbors=4, metric="cosine").fit(vectors)
    chosen = [texts.index(text) for text, *_ in rows]
    found = index.kneighbors(vectors[chosen], return_distance=False)
    assert rows == [[texts[i] for i in row] for row in found]
    assert len(set(chosen)) == 12
    assert rows != nearest_texts(texts, torch.from_numpy(vectors), seed=2)


def test_few_and_long_texts():
    texts = ["a" * 300, "b"]
    rows = nearest_texts(texts, torch.eye(2), seed=0)
    assert sorted(rows) == [["a" * 200, "b"], ["b", "a" * 200]]
    assert nearest_texts(["a"], torch.ones(1, 2), seed=0) == [["a"]]
