"""Features: what the encoder gives image by image, and what they leave as it was."""

import numpy as np
import pytest
import torch
from encoder_cases import as_float, colour_images, tiny_encoder
from PIL import Image

from dystress_text.errors import DataError, UserError
from vision.data.images import ImageSet
from vision.data.pictures import PictureFiles
from vision.evaluation.features import evaluating, image_features, seeded


@pytest.mark.parametrize("batch_size", [1, 7, 20, 256])
def test_features_are_those_of_each_image_alone(batch_size):
    encoder, images = tiny_encoder(), colour_images(20)
    found = image_features(encoder, images, as_float, batch_size)
    encoder.eval()
    with torch.no_grad():
        one_by_one = torch.cat([encoder.features(as_float(image[None])) for image in images.images])
    torch.testing.assert_close(found, one_by_one, rtol=1e-4, atol=1e-5)
    assert (found.dtype, found.requires_grad) == (torch.float32, False)


def test_normalised_features():
    encoder, images = tiny_encoder(), colour_images(6)
    plain = image_features(encoder, images, as_float)
    units = image_features(encoder, images, as_float, normalise=True)
    torch.testing.assert_close(units, plain / plain.norm(dim=1, keepdim=True))


def test_modes_statistics_and_random_state_stay():
    encoder = tiny_encoder().train()
    encoder.projector.eval()
    before = [part.training for part in encoder.modules()]
    weights = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    state = torch.get_rng_state()
    image_features(encoder, colour_images(6), as_float)
    assert [part.training for part in encoder.modules()] == before
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, weights[name]) for name, tensor in encoder.state_dict().items())
    with pytest.raises(RuntimeError), evaluating(encoder):
        raise RuntimeError
    assert [part.training for part in encoder.modules()] == before


def test_seeded_draws_repeat_and_leave_the_random_state():
    state = torch.get_rng_state()
    draws = []
    for seed in (1, 1, 2):
        with seeded(seed, torch.device("cpu")):
            draws.append(torch.rand(3))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert torch.equal(torch.get_rng_state(), state)


def test_features_that_are_no_numbers_are_refused():
    encoder = tiny_encoder()
    with torch.no_grad():
        encoder.backbone.embedder.embedder.convolution.weight.fill_(float("nan"))
    with pytest.raises(UserError, match="--model: the encoder gives features with NaN"):
        image_features(encoder, colour_images(3), as_float)


def as_files(images, folder):
    files = []
    for i, pixels in enumerate(images.images):
        files.append(folder / f"{i}.png")
        Image.fromarray(pixels.permute(1, 2, 0).numpy().astype(np.uint8)).save(files[-1])
    return ImageSet(None, PictureFiles(files), images.labels, images.classes, images.name, None, images.size)


def test_files_come_in_order_like_images_in_memory(tmp_path):
    images = colour_images(11)
    files = as_files(images, tmp_path)
    order = torch.randperm(11)[:9]
    for one, other in zip(images.batches(2, order=order), files.batches(2, order=order), strict=True):
        assert torch.equal(one["rows"], other["rows"])
        assert torch.equal(one["images"], other["images"])
    encoder = tiny_encoder()
    assert torch.equal(image_features(encoder, images, as_float, 4), image_features(encoder, files, as_float, 4))


def test_a_damaged_file_is_named(tmp_path):
    files = as_files(colour_images(11), tmp_path)
    damaged = files.pictures.content(7)
    damaged.write_bytes(damaged.read_bytes()[:100])
    with pytest.raises(DataError, match=r"7\.png"):
        image_features(tiny_encoder(), files, as_float, 2)
