"""Geometry metrics against double loops over pairs, with blocks that do not divide the rows."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics.pairwise import cosine_similarity, euclidean_distances
from sklearn.preprocessing import normalize

from dystress_text.losses import alignment, geometry, interclass_uniformity, tolerance, uniformity
from dystress_text.losses.geometry import similarity_histograms

LABELS = torch.tensor(
    [5, -1, 5, 2, 5, 2, -1, 5, 9, 2, 5]
)  # not 0 to n-1, out of order, one class of one


@pytest.fixture(params=[1, 4, 1024], autouse=True)
def block(request, monkeypatch):
    """Rows a block: one, some that do not divide 11, more than there are."""
    monkeypatch.setattr(geometry, "BLOCK", request.param)


def embeddings(n=11, dim=5, seed=0, dtype=torch.float64):
    x = torch.randn(n, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (x * torch.logspace(-2, 2, n, dtype=torch.float64).unsqueeze(1)).to(
        dtype
    )  # of very different lengths


def by_numpy(x, t):
    """Uniformity of vectors."""
    square = euclidean_distances(normalize(x), squared=True)[~np.eye(len(x), dtype=bool)]
    return math.log(np.exp(-t * square).mean())


@pytest.mark.parametrize(("dtype", "rel"), [(torch.float64, 1e-12), (torch.bfloat16, 1e-5)])
def test_alignment_is_the_mean_square_distance_of_the_pairs(dtype, rel):
    x, y = embeddings(dtype=dtype), embeddings(seed=1, dtype=dtype)
    expected = np.square(normalize(x.double()) - normalize(y.double())).sum(1).mean()
    found = alignment(x, y)
    assert (float(found), found.dtype) == (pytest.approx(expected, rel=rel), torch.float64)


@pytest.mark.parametrize("t", [2.0, 0.5])
def test_uniformity_is_over_all_pairs_but_with_itself(t):
    x = embeddings()
    assert float(uniformity(x, t)) == pytest.approx(by_numpy(x, t), rel=1e-10)
    low = x.bfloat16()
    assert float(uniformity(low, t)) == pytest.approx(by_numpy(low.double(), t), rel=1e-5)


def test_interclass_uniformity_is_that_of_renormalised_centroids_of_unit_vectors():
    x = embeddings()
    centroids = [
        normalize(x)[LABELS.numpy() == label].mean(0) for label in LABELS.unique().tolist()
    ]
    assert float(interclass_uniformity(x, LABELS, t=0.5)) == pytest.approx(
        by_numpy(centroids, 0.5), rel=1e-10
    )


def test_tolerance_is_over_pairs_of_one_class():
    x, labels = embeddings(), LABELS.numpy()
    same = cosine_similarity(x)[(labels[:, None] == labels) & ~np.eye(11, dtype=bool)]
    assert float(tolerance(x, LABELS)) == pytest.approx(same.mean(), rel=1e-10)
    assert float(tolerance(x, LABELS, over_all_pairs=True)) == pytest.approx(
        same.sum() / 110, rel=1e-10
    )
    assert float(tolerance(x.float(), LABELS)) == pytest.approx(same.mean(), rel=1e-5)


def test_zero_vectors_have_similarity_zero_and_no_nan():
    x = embeddings(4, 3)
    x[1] = 0
    labels = torch.tensor([0, 0, 1, 1])
    s = cosine_similarity(x)[2, 3]
    assert float(tolerance(x, labels)) == pytest.approx(s / 2, rel=1e-10)  # pairs (0, 1) and (2, 3)
    assert similarity_histograms(x, x, labels, bins=3).false_negative[1] == 2 + 2 * (abs(s) < 1 / 3)
    assert bool(uniformity(x).isfinite())
    assert bool(interclass_uniformity(x, labels).isfinite())


@pytest.mark.parametrize("bins", [1, 7])
def test_histograms_count_every_pair_of_views_once_by_its_kind(bins):
    x, y, labels = embeddings(), embeddings() + 0.3 * embeddings(seed=2), LABELS.numpy()
    s = cosine_similarity(x.numpy(), y.numpy())
    itself, same = np.eye(11, dtype=bool), labels[:, None] == labels
    found = similarity_histograms(x, y, LABELS, bins=bins)
    assert found.edges.tolist() == pytest.approx(np.linspace(-1, 1, bins + 1), abs=1e-6)
    for counts, kind in zip(found[1:], (itself, same & ~itself, ~same), strict=True):
        assert not counts.is_floating_point()
        assert counts.tolist() == np.histogram(s[kind], bins=bins, range=(-1, 1))[0].tolist()


def test_what_does_not_fit_is_refused():
    x = torch.ones(3, 2)
    for metric, args, words in (
        (alignment, (x[:2], x), "2, 2.*3, 2"),
        (uniformity, (x[:1],), "two rows"),
        (interclass_uniformity, (x, torch.tensor([1, 1, 1])), "two"),
        (tolerance, (x, torch.tensor([0, 1])), "labels"),
        (tolerance, (x, torch.tensor([0, 1, 2])), "two members"),
        (similarity_histograms, (x, x[:2], x[0]), "3, 2.*2"),
    ):
        with pytest.raises(ValueError, match=words):
            metric(*args)
