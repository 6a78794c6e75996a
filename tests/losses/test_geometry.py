"""Geometry metrics against scikit-learn, with blocks that do not divide the rows."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics.pairwise import cosine_similarity, euclidean_distances
from sklearn.preprocessing import normalize

from dystress_text.losses import alignment, geometry, interclass_uniformity, tolerance, uniformity
from dystress_text.losses.geometry import similarity_histograms

LABELS = torch.tensor([5, -1, 5, 2, 5, 2, -1, 5, 9, 2, 5])


@pytest.fixture(params=[1, 4, 1024], autouse=True)
def block(request, monkeypatch):
    monkeypatch.setattr(geometry, "BLOCK", request.param)


def embeddings(n=11, dim=5, seed=0):
    """Vectors of very different lengths, in fp64."""
    x = torch.randn(n, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return x * torch.logspace(-2, 2, n, dtype=torch.float64).unsqueeze(1)


def by_numpy(x, t):
    """Uniformity of vectors."""
    square = euclidean_distances(normalize(x), squared=True)[~np.eye(len(x), dtype=bool)]
    return math.log(np.exp(-t * square).mean())


def test_alignment():
    x, y = embeddings(), embeddings(seed=1)
    expected = np.square(normalize(x) - normalize(y)).sum(1).mean()
    assert float(alignment(x, y)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("t", [2.0, 0.5])
def test_uniformity(t):
    x = embeddings()
    assert float(uniformity(x, t)) == pytest.approx(by_numpy(x, t), rel=1e-10)
    low = x.bfloat16()
    assert float(uniformity(low, t)) == pytest.approx(by_numpy(low.double(), t), rel=1e-5)


def test_interclass_uniformity():
    x = embeddings()
    labels = LABELS.numpy()
    centroids = [normalize(x)[labels == label].mean(0) for label in np.unique(labels)]
    found = float(interclass_uniformity(x, LABELS, t=0.5))
    assert found == pytest.approx(by_numpy(centroids, 0.5), rel=1e-10)


def test_tolerance():
    x, labels = embeddings(), LABELS.numpy()
    same = cosine_similarity(x)[(labels[:, None] == labels) & ~np.eye(11, dtype=bool)]
    assert float(tolerance(x, LABELS)) == pytest.approx(same.mean(), rel=1e-10)
    over_all = float(tolerance(x, LABELS, over_all_pairs=True))
    assert over_all == pytest.approx(same.sum() / 110, rel=1e-10)


def test_zero_vectors_have_similarity_zero():
    x = embeddings(4, 3)
    x[1] = 0
    labels = torch.tensor([0, 0, 1, 1])
    s = cosine_similarity(x)[2, 3]
    assert float(tolerance(x, labels)) == pytest.approx(s / 2, rel=1e-10)  # pairs (0, 1) and (2, 3)
    assert bool(uniformity(x).isfinite())
    assert bool(interclass_uniformity(x, labels).isfinite())


@pytest.mark.parametrize("bins", [1, 7])
def test_histograms(bins):
    x, y, labels = embeddings(), embeddings() + 0.3 * embeddings(seed=2), LABELS.numpy()
    s = cosine_similarity(x.numpy(), y.numpy())
    itself, same = np.eye(11, dtype=bool), labels[:, None] == labels
    found = similarity_histograms(x, y, LABELS, bins=bins)
    for counts, kind in zip(found[1:], (itself, same & ~itself, ~same), strict=True):
        assert counts.tolist() == np.histogram(s[kind], bins=bins, range=(-1, 1))[0].tolist()


def test_invalid_shapes_and_labels_are_refused():
    x = torch.ones(3, 2)
    for metric, *arguments in (
        (alignment, x[:2], x),
        (uniformity, x[:1]),
        (interclass_uniformity, x, torch.tensor([1, 1, 1])),
        (tolerance, x, torch.tensor([0, 1])),
        (tolerance, x, torch.tensor([0, 1, 2])),
        (similarity_histograms, x, x[:2], x[0]),
    ):
        with pytest.raises(ValueError):  # noqa: PT011
            metric(*arguments)
