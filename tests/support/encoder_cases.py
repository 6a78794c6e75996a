"""Small encoders and images that tests of evaluation share."""

import torch

from vision.data.images import ImageSet
from vision.resnet import ImageInput, build_encoder

HALF = ImageInput(16, 1.0, (0.5,) * 3, (1.0,) * 3)  # what as_float does


def tiny_encoder(seed=0, out_dim=16):
    torch.manual_seed(seed)
    return build_encoder("resnet10_narrow", "imagenet", "cifar", out_dim)


def colour_images(n, classes=3, size=16, seed=0, name="colours", variant=None):
    """Noise around a colour that is the class's."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    colours = torch.tensor([[200.0, 60, 60], [60, 200, 60], [60, 60, 200], [200, 200, 60]])[labels]
    pixels = colours[:, :, None, None] + 60 * torch.randn(n, 3, size, size, generator=generator)
    names = tuple("abcd"[:classes])
    return ImageSet(pixels.clamp(0, 255).to(torch.uint8), None, labels, names, name, variant, size)


class GivenViews:
    """Views of an image set that are what ``view`` makes of rows and epoch."""

    def __init__(self, images, view):
        self.images, self.view = images, view

    def batches(self, batch_size, device, step, order):
        for rows in torch.split(order, batch_size):
            yield rows, [self.view(rows, step)]


def whole(images):
    """Views that are the images themselves."""
    return GivenViews(images, lambda rows, epoch: as_float(images.images[rows]))


def as_float(images):
    return images.float() / 255 - 0.5
