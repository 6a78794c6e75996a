"""Features: what the encoder gives image by image, and what they leave as it was."""

import torch
from encoder_cases import HALF, as_float, colour_images, tiny_encoder

from vision.evaluation.features import image_features


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
