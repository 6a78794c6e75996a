"""The augmentation: its distributions against torchvision's rules, its pixels against Pillow's."""

import math

import numpy as np
import pytest
import torch
from kornia.enhance import adjust_hue
from PIL import Image, ImageEnhance, ImageFilter

from vision.data import augment
from vision.data.augment import evaluation_transform
from vision.data.crops import Crops, RandomCrop, crop_resize_flip, draw_crops


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


def pixels_of(image):
    """A float image in [0, 1] as numbers of 0 to 255."""
    return (image[0].permute(1, 2, 0) * 255).numpy()


# pixels against Pillow; Pillow rounds to whole numbers, once an operation


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("box", [(0, 0, 32, 32), (3, 5, 20, 17), (31, 31, 1, 1)])
def test_crop_resize_and_flip(box, flip):
    """Within 1 of 255: Pillow rounds after each of its two passes."""
    left, top, width, height = box
    image = Image.fromarray(picture()).crop((left, top, left + width, top + height))
    image = image.resize((32, 32), Image.Resampling.BILINEAR)
    if flip:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    crops = Crops(*(torch.tensor([float(v)]) for v in box), torch.tensor([flip]))
    ours = crop_resize_flip(tensor(picture()), crops, 32)
    assert np.abs(pixels_of(ours) - np.asarray(image, dtype=float)).max() <= 1.01


def test_colour_operations():
    """Hue against kornia; the others within 1.5 of 255 of Pillow, which cuts fractions off."""
    for operation, enhancer in enumerate(
        (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
    ):
        ours = augment.OPERATIONS[operation](tensor(picture()) / 255, torch.tensor([1.4]))
        theirs = np.asarray(enhancer(Image.fromarray(picture())).enhance(1.4), dtype=float)
        assert np.abs(pixels_of(ours) - theirs).max() <= 1.5
    for turns in (-0.5, -0.1, 0.0, 0.03, 0.45):
        image = tensor(picture()) / 255
        ours = augment.shift_hue(image, torch.tensor([turns]))
        torch.testing.assert_close(ours, adjust_hue(image, turns * 2 * math.pi), rtol=0, atol=1e-5)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
def test_blur(sigma):
    """Within 4 of 255 and 1 on average: Pillow's blur is three box blurs."""
    ours = augment.blur(tensor(picture(64)) / 255, torch.tensor([sigma]), 23)
    theirs = np.asarray(
        Image.fromarray(picture(64)).filter(ImageFilter.GaussianBlur(sigma)), dtype=float
    )
    difference = np.abs(pixels_of(ours) - theirs)[8:-8, 8:-8]  # edges are continued otherwise
    assert difference.max() <= 4
    assert difference.mean() <= 1


# distributions; with so many samples a bound of 0.01 is five standard errors or more


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
                boxes.append((left, chance.integers(0, height - h + 1), w, h))
                break
        else:
            h = min(height, round(width * 4 / 3))
            w = min(width, round(height * 4 / 3))
            boxes.append(((width - w) // 2, (height - h) // 2, w, h))
    return np.array(boxes).T


@pytest.mark.parametrize(
    ("height", "width", "low", "high"),
    [(32, 32, 0.08, 1.0), (60, 200, 0.2, 1.0), (375, 500, 0.05, 0.14)],
)
def test_crops_follow_torchvisions_rule(height, width, low, high):
    drawn = draw_crops(100_000, height, width, RandomCrop(16, low, high))
    assert abs(drawn.flip.float().mean() - 0.5) < 0.01
    ours = np.stack([v.numpy() for v in (drawn.left, drawn.top, drawn.width, drawn.height)])
    theirs = drawn_by_the_rule(40_000, height, width, low, high)
    boxes = np.array(drawn.boxes()).T  # left, top, right, bottom
    assert (boxes[:2] == ours[:2]).all()
    assert (boxes[:2] >= 0).all()
    assert (boxes[2:] == ours[:2] + ours[2:]).all()
    assert (boxes[2:] <= [[width], [height]]).all()

    def measures(b):  # area, aspect and place
        return b[2] * b[3] / (height * width), np.log(b[2] / b[3]), b[0] / width, b[1] / height

    quantiles = np.linspace(0.02, 0.98, 25)
    for mine, expected in zip(measures(ours), measures(theirs), strict=True):
        assert np.abs(np.quantile(mine, quantiles) - np.quantile(expected, quantiles)).max() < 0.035
        assert abs(mine.mean() - expected.mean()) < 0.01


@pytest.mark.parametrize("side", [48, 100])
def test_evaluation_resizes_and_crops_as_pillow(side):
    """Within 1.5 of 255."""
    seen = pixels_of(
        evaluation_transform(tensor(picture(side)[:, : side - 10]), 28, (0.0,) * 3, (1.0,) * 3)
    )
    height, width = round(side * 32 / (side - 10)), 32
    image = Image.fromarray(picture(side)[:, : side - 10]).resize(
        (width, height), Image.Resampling.BILINEAR
    )
    top = (height - 28) // 2
    theirs = np.asarray(image, dtype=float)[top : top + 28, 2:30]
    assert np.abs(seen - theirs).max() <= 1.5
