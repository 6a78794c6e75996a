"""The augmentation: its distributions against torchvision's rules, its pixels against Pillow's."""

import math

import numpy as np
import pytest
import torch
from kornia.enhance import adjust_hue
from PIL import Image, ImageEnhance, ImageFilter
from scipy.stats import ks_2samp

from vision.data import augment
from vision.data.augment import CropAndFlip, SimclrAugment
from vision.data.crops import Crops, RandomCrop, crop_resize_flip, draw_crops

BILINEAR = Image.Resampling.BILINEAR
PLAIN = ((0.0,) * 3, (1.0,) * 3)  # mean and deviation that change nothing
DRAWN = 10_000


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


def assert_alike(ours, theirs):
    """Assert that two samples are of one distribution."""
    assert ks_2samp(ours, theirs, method="asymp").pvalue > 1e-3


# pixels against Pillow, which rounds to whole numbers, once an operation


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("box", [(0, 0, 32, 32), (3, 5, 23, 22), (31, 31, 32, 32)])
def test_crop_resize_and_flip(box, flip):
    image = Image.fromarray(picture()).crop(box).resize((32, 32), BILINEAR)
    if flip:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    crops = Crops(torch.tensor([box]), torch.tensor([flip]))
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


def drawn_by_the_rule(height, width, low, high):
    """torchvision's RandomResizedCrop.get_params, as a loop: left, top, width, height."""
    chance = np.random.default_rng(1)
    boxes = []
    while len(boxes) < DRAWN:
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
    ("height", "width", "low"), [(32, 32, 0.08), (60, 200, 0.2), (201, 60, 0.5), (4, 4, 0.01)]
)
def test_crops_follow_torchvisions_rule(height, width, low):
    drawn = draw_crops(DRAWN, height, width, RandomCrop(16, low))
    assert abs(drawn.flip.float().mean() - 0.5) < 0.02
    left, top, right, bottom = drawn.boxes.T.double().numpy()
    ours = (left, top, right - left, bottom - top)
    for mine, expected in zip(ours, drawn_by_the_rule(height, width, low, 1.0), strict=True):
        assert_alike(mine, expected)
    assert right.max() <= width
    assert bottom.max() <= height


def test_views_of_a_call_and_of_crops():
    """The first views of all images come first, and each channel is normalised."""
    crop_and_flip = CropAndFlip(RandomCrop(2, 1.0), (0.0, 0.5, 0.0), (1.0, 0.25, 2.0))
    images = torch.tensor([0, 51, 255], dtype=torch.uint8).view(3, 1, 1, 1).expand(3, 3, 4, 6)
    expected = torch.tensor([[0, -2, 0], [0.2, -1.2, 0.1], [1, 2, 0.5]]).repeat(2, 1)
    crops = images[:, None, :, :2, :2].expand(3, 2, 3, 2, 2)
    for views in (crop_and_flip(images, 2), crop_and_flip.of_crops(crops)):
        assert views.shape == (6, 3, 2, 2)
        for pixels in views.flatten(2).unbind(2):
            torch.testing.assert_close(pixels, expected)


@pytest.mark.parametrize(("jitter", "weakest"), [(1.0, 0.6), (0.5, 0.8)])
def test_brightness_of_gray_views(jitter, weakest):
    """Of gray images of one value the other operations change nothing."""
    images = torch.full((DRAWN, 3, 1, 1), 102, dtype=torch.uint8)
    views = SimclrAugment(RandomCrop(1), *PLAIN, jitter)(images)
    chance = np.random.default_rng(1)
    expected = np.where(chance.random(DRAWN) < 0.8, chance.uniform(weakest, 2 - weakest, DRAWN), 1)
    assert_alike(views[:, 0].flatten() / 0.4, expected)
    torch.testing.assert_close(views[:, 2], views[:, 0])


def test_a_fifth_of_the_views_is_gray():
    images = torch.tensor([200, 100, 50], dtype=torch.uint8).expand(DRAWN, 1, 1, 3)
    views = SimclrAugment(RandomCrop(1), *PLAIN)(images.permute(0, 3, 1, 2)).flatten(1)
    gray = views.max(1).values - views.min(1).values < 1e-5
    assert abs(gray.float().mean() - 0.2) < 0.02
    assert views[~gray].std(0).min() > 0.05  # colours differ


@pytest.mark.parametrize(("side", "kernel"), [(16, 3), (50, 5)])
def test_half_of_the_views_are_blurred(side, kernel):
    """A white line becomes as wide as the kernel: a tenth of the side, odd, at least 3."""
    images = torch.zeros(400, 3, side, side, dtype=torch.uint8)
    images[:, :, :, side // 2] = 255
    views = SimclrAugment(RandomCrop(side, 1.0), *PLAIN, 0.0, blur=True)(images)
    widths = (views[:, 0, 0] > 1e-3).sum(1)
    assert abs((widths > 1).float().mean() - 0.46) < 0.08  # sigmas below 0.27 show nothing
    assert widths.max() == kernel
    assert views[:, 0, 0].amax(1).min() < 0.45
    assert SimclrAugment(RandomCrop(1), *PLAIN, blur=True)(images).isfinite().all()
