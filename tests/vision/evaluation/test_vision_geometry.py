"""Geometry of an image set: against explicit loops in fp64."""

import math

import pytest
import torch

from vision.evaluation.geometry import measure_geometry


@pytest.fixture
def views():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(12, 5, generator=generator)
    view1, view2 = (features + 0.3 * torch.randn(12, 5, generator=generator) for _ in range(2))
    return features, view1, view2, torch.arange(12) % 3


def unit(row):
    length = math.sqrt(sum(x * x for x in row))
    return [x / length for x in row]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def log_mean_potential(points):
    pairs = [(a, b) for i, a in enumerate(points) for j, b in enumerate(points) if i != j]
    return math.log(sum(math.exp(-2 * (2 - 2 * dot(a, b))) for a, b in pairs) / len(pairs))


def test_every_figure_is_that_of_its_definition(views):
    found = measure_geometry(*views, bins=20)
    features, view1, view2 = ([unit(row) for row in x.tolist()] for x in views[:3])
    labels = views[3].tolist()
    pairs = [(i, j) for i in range(12) for j in range(12)]
    assert found.alignment == pytest.approx(
        sum(2 - 2 * dot(a, b) for a, b in zip(view1, view2, strict=True)) / 12, 1e-5
    )
    assert found.uniformity == pytest.approx(log_mean_potential(features), 1e-5)
    means = [[sum(features[i][d] for i in range(12) if labels[i] == c) for d in range(5)] for c in range(3)]
    assert found.interclass_uniformity == pytest.approx(log_mean_potential([unit(m) for m in means]), 1e-5)
    same = [dot(features[i], features[j]) for i, j in pairs if i != j and labels[i] == labels[j]]
    assert found.tolerance == pytest.approx(sum(same) / len(same), 1e-5)
    counts = {"tp": [0] * 20, "fn": [0] * 20, "tn": [0] * 20}
    for i, j in pairs:
        kind = "tp" if i == j else "fn" if labels[i] == labels[j] else "tn"
        counts[kind][min(int((dot(view1[i], view2[j]) + 1) * 10), 19)] += 1
    assert [list(found.true_positive), list(found.false_negative), list(found.true_negative)] == list(counts.values())
    assert found.edges == pytest.approx([-1 + 0.1 * i for i in range(21)], abs=1e-6)
