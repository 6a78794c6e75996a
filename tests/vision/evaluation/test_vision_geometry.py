"""Geometry of an image set: which figure is of which features; tests/core has the figures' definitions."""

import pytest
import torch

from dystress_text.core import geometry
from vision.evaluation.measures import geometry_of


def test_figures_are_of_the_images_and_pairs_of_their_views():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(12, 5, generator=generator)
    views = [features + 0.3 * torch.randn(12, 5, generator=generator) for _ in range(2)]
    labels = torch.arange(12) % 3
    found = geometry_of(features, *views, labels, bins=20)
    assert found["alignment"] == pytest.approx(geometry.alignment(*views).item())
    assert found["uniformity"] == pytest.approx(geometry.uniformity(features).item())
    assert found["interclass_uniformity"] == pytest.approx(geometry.interclass_uniformity(features, labels).item())
    assert found["tolerance"] == pytest.approx(geometry.tolerance(features, labels).item())
    pairs = geometry.similarity_histograms(*views, labels, 20)
    counts = [found[kind] for kind in ("true_positive", "false_negative", "true_negative")]
    assert counts == [of_kind.tolist() for of_kind in pairs[1:]]
