"""Geometry metrics against double loops over pairs, with blocks that do not divide the rows."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics.pairwise import cosine_similarity, euclidean_distances
from sklearn.preprocessing import normalize
from spec_formulas import mean, similarity

from dystress_text.core import alignment, geometry, interclass_uniformity, tolerance, uniformity
from dystress_text.core.geometry import similarity_histograms

LABELS = torch.tensor([5, -1, 5, 2, 5, 2, -1, 5, 9, 2, 5])  # not 0 to n-1, out of order, one class of one


@pytest.fixture(params=[1, 4, 1024], autouse=True)
def block(request, monkeypatch):
    """Rows a block: one, some that do not divide 11, more than there are."""
    monkeypatch.setattr(geometry, "BLOCK", request.param)


def embeddings(n=11, dim=5, seed=0, dtype=torch.float64):
    x = torch.randn(n, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (x * torch.logspace(-2, 2, n, dtype=torch.float64).unsqueeze(1)).to(dtype)  # of very different lengths


def unit(x):
    """Lists of length 1."""
    return [[v / math.hypot(*row) for v in row] for row in x.tolist()]


def loop_uniformity(vectors, t):
    pairs = [(a, b) for i, a in enumerate(vectors) for j, b in enumerate(vectors) if i != j]
    return math.log(mean([math.exp(-t * math.dist(a, b) ** 2) for a, b in pairs]))


def test_alignment_is_the_mean_square_distance_of_the_pairs():
    x, y = embeddings(), embeddings(seed=1)
    expected = mean([math.dist(a, b) ** 2 for a, b in zip(unit(x), unit(y), strict=True)])
    assert float(alignment(x, y)) == pytest.approx(expected, rel=1e-12)
    assert float(alignment(x, 3 * x)) == pytest.approx(0, abs=1e-15)
    assert float(alignment(x, -x)) == pytest.approx(4, rel=1e-12)


@pytest.mark.parametrize("t", [2.0, 0.5])
def test_uniformity_is_over_all_pairs_but_with_itself(t):
    x = embeddings()
    square = euclidean_distances(normalize(x.numpy()), squared=True)[~np.eye(11, dtype=bool)]
    assert float(uniformity(x, t)) == pytest.approx(math.log(np.exp(-t * square).mean()), rel=1e-10)
    assert float(uniformity(x, t)) == pytest.approx(loop_uniformity(unit(x), t), rel=1e-10)
    assert float(uniformity(x[:1].expand(11, -1))) == pytest.approx(0, abs=1e-12)
    assert float(uniformity(torch.cat([x[:1], -x[:1]]))) == pytest.approx(-8, rel=1e-12)


def test_interclass_uniformity_is_that_of_renormalised_centroids_of_unit_vectors():
    x = embeddings()
    rows = list(zip(unit(x), LABELS.tolist(), strict=True))
    members = {c: [v for v, label in rows if label == c] for _, c in rows}
    centroids = [[mean(list(column)) for column in zip(*vectors, strict=True)] for vectors in members.values()]
    expected = loop_uniformity(unit(torch.tensor(centroids, dtype=torch.float64)), 0.5)
    assert float(interclass_uniformity(x, LABELS, t=0.5)) == pytest.approx(expected, rel=1e-10)


def test_tolerance_is_over_pairs_of_one_class():
    x, labels = embeddings(), LABELS.tolist()
    pairs = [(i, j) for i in range(11) for j in range(11) if i != j]
    s = {(i, j): similarity(x[i].tolist(), x[j].tolist()) for i, j in pairs}
    same = [s[i, j] for i, j in pairs if labels[i] == labels[j]]
    assert float(tolerance(x, LABELS)) == pytest.approx(mean(same), rel=1e-10)
    assert float(tolerance(x, LABELS, over_all_pairs=True)) == pytest.approx(math.fsum(same) / len(pairs), rel=1e-10)


def test_zero_vectors_have_similarity_zero_and_no_nan():
    x = embeddings(4, 3)
    x[1] = 0
    labels = torch.tensor([0, 0, 1, 1])
    s = similarity(x[2].tolist(), x[3].tolist())
    assert float(tolerance(x, labels)) == pytest.approx(s / 2, rel=1e-10)  # pairs (0, 1) and (2, 3)
    assert similarity_histograms(x, x, labels, bins=3).false_negative[1] == 2 + 2 * (abs(s) < 1 / 3)
    assert bool(uniformity(x).isfinite())
    assert bool(interclass_uniformity(x, labels).isfinite())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision_is_computed_in_fp32_and_summed_in_fp64(dtype):
    x, y = embeddings(dtype=dtype), embeddings(seed=1, dtype=dtype)
    for metric, args in ((alignment, (x, y)), (uniformity, (x,)), (tolerance, (x, LABELS))):
        value = metric(*args)
        assert value.dtype == torch.float64
        expected = metric(*(a.double() if a.is_floating_point() else a for a in args))
        assert float(value) == pytest.approx(float(expected), rel=1e-5)


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


@pytest.mark.parametrize(
    ("metric", "args", "words"),
    [
        (alignment, (torch.ones(2, 3), torch.ones(3, 3)), "2, 3.*3, 3"),
        (alignment, (torch.ones(0, 2), torch.ones(0, 2)), "alignment"),
        (uniformity, (torch.ones(1, 2),), "two rows"),
        (interclass_uniformity, (torch.ones(3, 2), torch.tensor([1, 1, 1])), "two"),
        (tolerance, (torch.ones(3, 2), torch.tensor([0, 1])), "labels"),
        (tolerance, (torch.ones(3, 2), torch.tensor([0, 1, 2])), "two members"),
        (similarity_histograms, (torch.ones(3, 2), torch.ones(4, 2), torch.zeros(3)), "3, 2.*4, 2"),
    ],
)
def test_what_does_not_fit_is_refused(metric, args, words):
    with pytest.raises(ValueError, match=words):
        metric(*args)
