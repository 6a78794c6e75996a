"""The nearest texts of a run's samples."""

import numpy as np
import torch
from sklearn.neighbors import NearestNeighbors

from dystress_text.evaluation.nearest_texts import nearest_texts


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
