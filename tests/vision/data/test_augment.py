"""The augmentation: its distributions against torchvision's rules, its pixels against Pillow's."""

import math

import numpy as np
import pytest
import torch
from kornia.enhance import adjust_hue
from PIL import Image, ImageEnhance, ImageFilter
from scipy.stats import ks_2samp

from vision.data import augment
from vision.data.crops import Crops, RandomCrop, crop_resize_flip, draw_crops

BILINEAR = Image.Resampling.BILINEAR


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def picture(side=32):
    """Smooth colours with an edge and some noise."""
    y, x = np.mgrid[0:side, 0:side] / side
    channels = np.stack((x, (np.sin(5 * y) + 1) / 2, 1 - x * y), axis=2)
    channels[side // 3 : side // 2] *= 0.3
    channels += 0.05 * np.random.default_rng(0).standard_normal(channels.shape)
    return (channels.clip(0, 1) * 255).astype(np.uint8)


def tensor(pixels):
    return torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None]


def distance(ours, theirs):
    """The largest difference of an image in [0, 1] from Pillow's, of numbers from 0 to 255."""
    pixels = (ours[0].permute(1, 2, 0) * 255).numpy()
    return np.abs(pixels - np.asarray(theirs, dtype=float)).max()


# pixels against Pillow, which rounds to whole numbers, once an operation


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("box", [(0, 0, 32, 32), (3, 5, 20, 17), (31, 31, 1, 1)])
def test_crop_resize_and_flip(box, flip):
    left, top, width, height = box
    image = Image.fromarray(picture()).crop((left, top, left + width, top + height))
    image = image.resize((32, 32), BILINEAR)
    if flip:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    crops = Crops(torch.tensor([[left, top, left + width, top + height]]), torch.tensor([flip]))
    assert distance(crop_resize_flip(tensor(picture()), crops, 32), image) <= 1.01


@pytest.mark.parametrize(
    ("number", "enhancer"),
    enumerate((ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)),
)
def test_colours_change_as_in_pillow(number, enhancer):
    ours = augment.OPERATIONS[number](tensor(picture()) / 255, torch.tensor([1.4]))
    assert distance(ours, enhancer(Image.fromarray(picture())).enhance(1.4)) <= 1.5


@pytest.mark.parametrize("turns", [-0.5, -0.1, 0.0, 0.03, 0.45])
def test_hue_changes_as_in_kornia(turns):
    image = tensor(picture()) / 255
    ours = augment.shift_hue(image, torch.tensor([turns]))
    torch.testing.assert_close(ours, adjust_hue(image, turns * 2 * math.pi), rtol=0, atol=1e-5)


@pytest.mark.parametrize("sigma", [0.5, 2.0])
def test_blur(sigma):
    """Pillow's blur is three box blurs, and continues edges otherwise."""
    ours = augment.blur(tensor(picture(64)) / 255, torch.tensor([sigma]), 23)
    theirs = Image.fromarray(picture(64)).filter(ImageFilter.GaussianBlur(sigma))
    assert distance(ours[..., 8:-8, 8:-8], theirs.crop((8, 8, 56, 56))) <= 4


# distributions


def drawn_by_the_rule(count, height, width, low, high):
    """torchvision's RandomResizedCrop.get_params, as a loop: left, top, width, height."""
    chance = np.random.default_rng(1)
    boxes = []
    while len(boxes) < count:
        for _ in range(10):
            area = height * width * chance.uniform(low, high)
            aspect = math.exp(chance.uniform(-1, 1) * math.log(4 / 3))
            w = round(math.sqrt(area * aspect))
            h = round(math.sqrt(area / aspect))
            if 0 < w <= width and 0 < h <= height:
                left = chance.integers(0, width - w + 1)
                top = chance.integers(0, height - h + 1)
                boxes.append((left, top, w, h))
                break
        else:
            h = min(height, round(width * 4 / 3))
            w = min(width, round(height * 4 / 3))
            boxes.append(((width - w) // 2, (height - h) // 2, w, h))
    return np.array(boxes).T


@pytest.mark.parametrize(
    ("height", "width", "low", "high"),
    [(32, 32, 0.08, 1.0), (60, 200, 0.2, 1.0)],
)
def test_crops_follow_torchvisions_rule(height, width, low, high):
    drawn = draw_crops(30_000, height, width, RandomCrop(16, low, high))
    assert abs(drawn.flip.float().mean() - 0.5) < 0.015
    ours = drawn.boxes.T.double().numpy()
    assert (ours[:2] >= 0).all()
    assert (ours[2:] <= [[width], [height]]).all()
    ours[2:] -= ours[:2]  # width and height
    theirs = drawn_by_the_rule(30_000, height, width, low, high)

    def measures(box):
        left, top, w, h = box
        return w * h / (height * width), np.log(w / h), left / width, top / height

    for mine, expected in zip(measures(ours), measures(theirs), strict=True):
        assert ks_2samp(mine, expected, method="asymp").pvalue > 1e-3
