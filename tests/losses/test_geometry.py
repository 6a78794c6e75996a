"""Geometry metrics against SciPy and scikit-learn, with blocks that do not divide the rows."""

import math

import numpy as np
import pytest
import torch
from scipy.spatial.distance import pdist
from sklearn.metrics.pairwise import cosine_similarity
from sklearn.preprocessing import normalize

from dystress_text.losses import alignment, geometry, interclass_uniformity, tolerance, uniformity

LABELS = torch.tensor([5, -1, 5, 2, 5, 2, -1, 5, 9, 2, 5])
SAME_CLASS = (LABELS[:, None] == LABELS).numpy()
ITSELF = np.eye(11, dtype=bool)
OTHERS_OF_THE_CLASS = SAME_CLASS & ~ITSELF


@pytest.fixture(autouse=True)
def block(monkeypatch):
    monkeypatch.setattr(geometry, "BLOCK", 4)


def embeddings(n=11, dim=5, seed=0):
    """Return vectors of very different lengths, in fp64."""
    generator = np.random.default_rng(seed)
    lengths = np.logspace(-2, 2, n)[:, None]
    return torch.from_numpy(lengths * generator.normal(size=(n, dim)))


def expected_uniformity(x, t):
    return math.log(np.exp(-t * pdist(normalize(x), "sqeuclidean")).mean())


def test_alignment():
    x = embeddings()
    y = embeddings(seed=1)
    expected = np.square(normalize(x) - normalize(y)).sum(1).mean()
    assert float(alignment(x, y)) == pytest.approx(expected, rel=1e-12)
    with pytest.raises(ValueError, match="shape"):
        alignment(x[:1], y)


def test_uniformity():
    x = embeddings()
    assert float(uniformity(x, 0.5)) == pytest.approx(expected_uniformity(x, 0.5), rel=1e-10)
    low = x.bfloat16()
    expected = expected_uniformity(low.double(), 2.0)
    assert float(uniformity(low)) == pytest.approx(expected, rel=1e-5)


def test_interclass_uniformity():
    x = embeddings()
    centroids = [normalize(x)[label == LABELS].mean(0) for label in LABELS.unique()]
    for options, t in (({}, 2.0), ({"t": 0.5}, 0.5)):
        expected = expected_uniformity(centroids, t)
        found = interclass_uniformity(x, LABELS, **options)
        assert float(found) == pytest.approx(expected, rel=1e-10)


def test_tolerance():
    x = embeddings()
    expected = cosine_similarity(x)[OTHERS_OF_THE_CLASS].mean()
    assert float(tolerance(x, LABELS)) == pytest.approx(expected, rel=1e-10)


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
    s = cosine_similarity(x, y)
    found = geometry.similarity_histograms(x, y, LABELS, bins=7)
    kinds = [ITSELF, OTHERS_OF_THE_CLASS, ~SAME_CLASS]
    for counts, kind in zip(found[1:], kinds, strict=True):
        expected, edges = np.histogram(s[kind], bins=7, range=(-1, 1))
        assert counts.tolist() == expected.tolist()
        np.testing.assert_allclose(found.edges, edges, atol=1e-6)
