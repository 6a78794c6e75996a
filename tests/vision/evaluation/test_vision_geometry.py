"""Geometry of an image set: which figure is of which features; tests/core has the figures' definitions."""

import numpy as np
import pytest
import torch

from dystress_text.core import alignment, interclass_uniformity, tolerance, uniformity
from vision.evaluation.geometry import measure_geometry


def test_figures_are_of_the_images_and_pairs_of_their_views():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(12, 5, generator=generator)
    views = [features + 0.3 * torch.randn(12, 5, generator=generator) for _ in range(2)]
    labels = torch.arange(12) % 3
    found = measure_geometry(features, *views, labels, bins=20)
    assert (found.alignment, found.uniformity) == pytest.approx((alignment(*views).item(), uniformity(features).item()))
    assert found.interclass_uniformity == pytest.approx(interclass_uniformity(features, labels).item())
    assert found.tolerance == pytest.approx(tolerance(features, labels).item())
    units = [np.array(view / view.norm(dim=1, keepdim=True)) for view in views]
    same, own = labels[:, None] == labels, torch.eye(12, dtype=torch.bool)
    for counts, pairs in (
        (found.true_positive, own),
        (found.false_negative, same & ~own),
        (found.true_negative, ~same),
    ):
        assert list(counts) == np.histogram((units[0] @ units[1].T)[pairs], 20, (-1, 1))[0].tolist()
