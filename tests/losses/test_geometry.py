"""Geometry metrics against scikit-learn, with blocks that do not divide the rows."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics.pairwise import cosine_similarity, euclidean_distances
from sklearn.preprocessing import normalize

from dystress_text.losses import alignment, geometry, interclass_uniformity, tolerance, uniformity

LABELS = torch.tensor([5, -1, 5, 2, 5, 2, -1, 5, 9, 2, 5])
SAME = LABELS.numpy()[:, None] == LABELS.numpy()
ITSELF = np.eye(11, dtype=bool)


@pytest.fixture(autouse=True)
def block(monkeypatch):
    monkeypatch.setattr(geometry, "BLOCK", 4)


def embeddings(n=11, dim=5, seed=0):
    """Return vectors of very different lengths, in fp64."""
    x = torch.randn(n, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x * torch.logspace(-2, 2, n, dtype=torch.float64).unsqueeze(1)


def by_numpy(x, t):
    """Return the uniformity of vectors."""
    others = ~np.eye(len(x), dtype=bool)
    square = euclidean_distances(normalize(x), squared=True)[others]
    return math.log(np.exp(-t * square).mean())


def test_alignment():
    x = embeddings()
    y = embeddings(seed=1)
    expected = np.square(normalize(x) - normalize(y)).sum(1).mean()
    assert float(alignment(x, y)) == pytest.approx(expected, rel=1e-12)
    with pytest.raises(ValueError, match="shape"):
        alignment(x[:1], y)


def test_uniformity():
    x = embeddings()
    assert float(uniformity(x, 0.5)) == pytest.approx(by_numpy(x, 0.5), rel=1e-10)
    low = x.bfloat16()
    assert float(uniformity(low)) == pytest.approx(by_numpy(low.double(), 2.0), rel=1e-5)


def test_interclass_uniformity():
    x = embeddings()
    labels = LABELS.numpy()
    centroids = [normalize(x)[labels == label].mean(0) for label in np.unique(labels)]
    found = float(interclass_uniformity(x, LABELS, t=0.5))
    assert found == pytest.approx(by_numpy(centroids, 0.5), rel=1e-10)


def test_tolerance():
    x = embeddings()
    same = cosine_similarity(x)[SAME & ~ITSELF]
    assert float(tolerance(x, LABELS)) == pytest.approx(same.mean(), rel=1e-10)


def test_zero_vectors_have_similarity_zero():
    x = embeddings(4, 3)
    x[1] = 0
    labels = torch.tensor([0, 0, 1, 1])
    s = cosine_similarity(x)[2, 3]
    assert float(tolerance(x, labels)) == pytest.approx(s / 2, rel=1e-10)  # pairs (0, 1) and (2, 3)
    assert bool(uniformity(x).isfinite())


def test_histograms():
    x = embeddings()
    y = x + 0.3 * embeddings(seed=2)
    s = cosine_similarity(x.numpy(), y.numpy())
    found = geometry.similarity_histograms(x, y, LABELS, bins=7)
    for counts, kind in zip(found[1:], (ITSELF, SAME & ~ITSELF, ~SAME), strict=True):
        assert counts.tolist() == np.histogram(s[kind], bins=7, range=(-1, 1))[0].tolist()
