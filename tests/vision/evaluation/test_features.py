"""Features: what the encoder gives image by image, and what they leave as it was; which figure is of which of them."""

import pytest
import torch
from encoder_cases import HALF, as_float, colour_images, tiny_encoder

from dystress_text.core import geometry
from vision.evaluation.features import image_features
from vision.evaluation.measures import geometry_of


def test_features_are_those_of_each_image_alone_and_modes_stay():
    encoder, images = tiny_encoder().train(), colour_images(20)
    encoder.projector.eval()
    before = [part.training for part in encoder.modules()]
    found = image_features(encoder, images, HALF, 7)
    assert [part.training for part in encoder.modules()] == before
    encoder.eval()
    with torch.no_grad():
        one_by_one = torch.cat([encoder.features(as_float(image[None])) for image in images.images])
    torch.testing.assert_close(found, one_by_one, rtol=1e-4, atol=1e-5)
    assert (found.dtype, found.requires_grad) == (torch.float32, False)


def test_figures_are_of_the_images_and_pairs_of_their_views():
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(12, 5, generator=generator)
    views = [features + 0.3 * torch.randn(12, 5, generator=generator) for _ in range(2)]
    labels = torch.arange(12) % 3
    found = geometry_of(features, *views, labels, bins=20)
    labelled = (features, labels)
    given = {"uniformity": [features], "alignment": views, "interclass_uniformity": labelled, "tolerance": labelled}
    for name, tensors in given.items():
        assert found[name] == pytest.approx(getattr(geometry, name)(*tensors).item())
    pairs = geometry.similarity_histograms(*views, labels, 20)
    counts = [found[kind] for kind in ("true_positive", "false_negative", "true_negative")]
    assert counts == [of_kind.tolist() for of_kind in pairs[1:]]
