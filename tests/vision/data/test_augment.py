"""The augmentation: its distributions against torchvision's rules, its pixels against Pillow's."""

import math
from functools import cache

import numpy as np
import pytest
import torch
from kornia.enhance import adjust_hue
from PIL import Image, ImageEnhance, ImageFilter

from dystress_text.errors import UserError
from vision.data import augment
from vision.data.augment import CropAndFlip, SimclrAugment, evaluation_transform
from vision.data.crops import Crops, RandomCrop, crop_resize_flip, draw_boxes, draw_crops

CPU = torch.device("cpu")
ZERO, ONE = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)


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


def unit(pixels):
    return tensor(pixels).float() / 255


def pixels_of(image):
    """A float image in [0, 1] as numbers of 0 to 255."""
    return (image[0].permute(1, 2, 0) * 255).numpy()


def crops(left, top, width, height, flip=False):
    return Crops(*(torch.tensor([float(v)]) for v in (left, top, width, height)), torch.tensor([flip]))


# pixels against Pillow; Pillow rounds to whole numbers, once an operation


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("box", [(0, 0, 32, 32), (3, 5, 20, 17), (24, 20, 8, 12), (31, 31, 1, 1), (0, 9, 32, 15)])
def test_crop_resize_and_flip(box, flip):
    """Within 1 of 255: Pillow rounds after each of its two passes."""
    left, top, width, height = box
    image = Image.fromarray(picture()).crop((left, top, left + width, top + height))
    image = image.resize((32, 32), Image.Resampling.BILINEAR)
    if flip:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    ours = crop_resize_flip(tensor(picture()), crops(*box, flip), 32)
    assert np.abs(pixels_of(ours) - np.asarray(image, dtype=float)).max() <= 1.01


def test_the_whole_image_and_its_mirror_are_exact():
    images = tensor(picture())
    whole = crop_resize_flip(images, crops(0, 0, 32, 32), 32)
    torch.testing.assert_close(whole, images.float() / 255, rtol=0, atol=1e-5)
    mirror = crop_resize_flip(images, crops(0, 0, 32, 32, True), 32)
    torch.testing.assert_close(mirror, images.float().flip(3) / 255, rtol=0, atol=1e-5)


def test_samples_have_boxes_of_their_own():
    images = tensor(picture()).expand(2, -1, -1, -1)
    boxes = Crops(*(torch.tensor(v) for v in ([0.0, 8.0], [0.0, 4.0], [16.0, 20.0], [16.0, 10.0], [False, True])))
    both = crop_resize_flip(images, boxes, 32)
    for row, box in enumerate([(0, 0, 16, 16, False), (8, 4, 20, 10, True)]):
        torch.testing.assert_close(both[row : row + 1], crop_resize_flip(images[:1], crops(*box), 32))


@pytest.mark.parametrize("factor", [0.6, 1.0, 1.4])
@pytest.mark.parametrize(
    ("operation", "enhancer"),
    [(0, ImageEnhance.Brightness), (1, ImageEnhance.Contrast), (2, ImageEnhance.Color)],
)
def test_brightness_contrast_saturation(operation, enhancer, factor):
    """Within 1.5 of 255: Pillow cuts fractions off, also of the gray and of the mean that it blends with."""
    ours = augment.adjust(unit(picture()), operation, torch.tensor([factor]))
    theirs = np.asarray(enhancer(Image.fromarray(picture())).enhance(factor), dtype=float)
    assert np.abs(pixels_of(ours) - theirs).max() <= 1.5


@pytest.mark.parametrize("turns", [-0.5, -0.1, 0.0, 0.03, 0.1, 0.45])
def test_hue(turns):
    """kornia within 1e-5; Pillow within 12 of 255 and 3 on average: two of its 256 steps of hue."""
    images = unit(picture())
    ours = augment.adjust(images, 3, torch.tensor([turns]))
    torch.testing.assert_close(ours, adjust_hue(images, turns * 2 * math.pi), rtol=0, atol=1e-5)
    hsv = np.asarray(Image.fromarray(picture()).convert("HSV")).copy()
    hsv[..., 0] += np.uint8(round(turns * 255) % 256)
    theirs = np.asarray(Image.fromarray(hsv, "HSV").convert("RGB"), dtype=float)
    difference = np.abs(pixels_of(ours) - theirs)
    assert difference.max() <= 12
    assert difference.mean() <= 3


def test_hue_of_gray_black_and_white():
    images = torch.stack([torch.full((3, 2, 2), value) for value in (0.0, 0.3, 1.0)])
    torch.testing.assert_close(augment.shift_hue(images, torch.tensor([0.1, 0.2, -0.4])), images)


def test_grayscale(monkeypatch):
    """Within 1 of 255 (Pillow rounds)."""
    monkeypatch.setattr(augment, "GRAY_RATE", 1.1)
    monkeypatch.setattr(augment, "draw_crops", lambda *_: crops(0, 0, 32, 32))
    seen = pixels_of(SimclrAugment(RandomCrop(32), ZERO, ONE, jitter=0.0)(tensor(picture())))
    theirs = np.asarray(Image.fromarray(picture()).convert("L"), dtype=float)[..., None]
    assert np.abs(seen - theirs).max() <= 1.01


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.0])
def test_blur(sigma):
    """Within 4 of 255 and 1 on average: Pillow's blur is three box blurs."""
    ours = augment.blur(unit(picture(64)), torch.tensor([sigma]), 23)
    theirs = np.asarray(Image.fromarray(picture(64)).filter(ImageFilter.GaussianBlur(sigma)), dtype=float)
    difference = np.abs(pixels_of(ours) - theirs)[8:-8, 8:-8]  # edges are continued otherwise
    assert difference.max() <= 4
    assert difference.mean() <= 1


def test_blur_leaves_the_others_alone():
    images = unit(picture(64)).expand(2, -1, -1, -1)
    blurred = augment.blur(images, torch.tensor([augment._NO_BLUR, 1.0]), 7)
    torch.testing.assert_close(blurred[0], images[0], rtol=0, atol=1e-6)
    assert (blurred[1] - images[1]).abs().max() > 0.05


# distributions; with so many samples a bound of 0.01 is five standard errors or more


@cache
def drawn_by_the_rule(count, height, width, low, high):
    """torchvision's RandomResizedCrop.get_params, as a loop."""
    chance = np.random.default_rng(1)
    boxes = []
    for _ in range(count):
        for _ in range(10):
            area = height * width * chance.uniform(low, high)
            aspect = math.exp(chance.uniform(math.log(3 / 4), math.log(4 / 3)))
            w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
            if 0 < w <= width and 0 < h <= height:
                boxes.append((chance.integers(0, width - w + 1), chance.integers(0, height - h + 1), w, h))
                break
        else:
            h, w = min(height, round(width * 4 / 3)), min(width, round(height * 4 / 3))
            boxes.append(((width - w) // 2, (height - h) // 2, w, h))
    return np.array(boxes).T


def on_the_device(height, width, crop):
    drawn = draw_crops(100_000, height, width, crop, CPU)
    assert abs(drawn.flip.float().mean() - 0.5) < 0.01
    return np.stack([v.numpy() for v in (drawn.left, drawn.top, drawn.width, drawn.height)])


def picture_by_picture(height, width, crop):
    return np.array(draw_boxes(height, width, crop, 40_000, np.random.default_rng(2))).T


@pytest.mark.parametrize("draw", [on_the_device, picture_by_picture])
@pytest.mark.parametrize(
    ("height", "width", "low", "high"), [(32, 32, 0.08, 1.0), (60, 200, 0.2, 1.0), (375, 500, 0.05, 0.14)]
)
def test_crops_follow_torchvisions_rule(draw, height, width, low, high):
    ours = draw(height, width, RandomCrop(16, low, high))
    theirs = drawn_by_the_rule(40_000, height, width, low, high)
    assert (ours == ours.round()).all()
    assert (ours[:2] >= 0).all()
    assert (ours[0] + ours[2] <= width).all()
    assert (ours[1] + ours[3] <= height).all()
    for measure in (
        lambda b: b[2] * b[3] / (height * width),  # area
        lambda b: np.log(b[2] / b[3]),  # aspect
        lambda b: b[0] / width,  # place
        lambda b: b[1] / height,
    ):
        quantiles = np.linspace(0.02, 0.98, 25)
        assert np.abs(np.quantile(measure(ours), quantiles) - np.quantile(measure(theirs), quantiles)).max() < 0.035
        assert abs(measure(ours).mean() - measure(theirs).mean()) < 0.01


def test_crops_that_never_fit_are_the_middle():
    crop = RandomCrop(8, 1.0)
    wide = draw_crops(1000, 10, 100, crop, CPU)  # a whole area of 10 to 1 has no allowed aspect
    assert set(zip(wide.left.tolist(), wide.top.tolist(), wide.width.tolist(), wide.height.tolist(), strict=True)) == {
        (43, 0, 13, 10)
    }
    assert set(draw_boxes(10, 100, crop, 100, np.random.default_rng(0))) == {(43, 0, 13, 10)}


@pytest.mark.parametrize("strength", [0.5, 1.0])
def test_jitter_factors(strength):
    factors = augment.draw_jitter(200_000, strength, CPU)
    for row, (spread, middle) in enumerate(zip((0.4, 0.4, 0.4, 0.1), (1, 1, 1, 0), strict=True)):
        offsets = (factors[row] - middle) / (spread * strength)
        changed = offsets.abs() > 1e-4
        assert abs(changed.float().mean() - 0.8) < 0.01
        assert offsets.abs().max() <= 1.001
        quantiles = torch.quantile(offsets[changed][:100_000], torch.linspace(0, 1, 11))
        torch.testing.assert_close(quantiles, torch.linspace(-1, 1, 11), rtol=0, atol=0.02)
    neutral = factors[0] == 1
    assert torch.equal(neutral, factors[3] == 0)  # an image is jittered in all four ways or in none
    first, second = factors[:2, ~neutral]
    assert abs(torch.corrcoef(torch.stack((first, second)))[0, 1]) < 0.01


def test_blur_widths():
    sigma = augment.draw_sigma(100_000, CPU)
    blurred = sigma[sigma > augment._NO_BLUR]
    assert abs(len(blurred) / len(sigma) - 0.5) < 0.01
    quantiles = torch.quantile(blurred, torch.linspace(0, 1, 11))
    torch.testing.assert_close(quantiles, torch.linspace(0.1, 2.0, 11), rtol=0, atol=0.03)
    assert [augment.kernel_of(size) for size in (24, 32, 64, 224)] == [3, 3, 7, 23]


def test_rates_in_whole_views():
    images = tensor(picture()).expand(6000, -1, -1, -1)
    views = SimclrAugment(RandomCrop(8), ZERO, ONE)(images)
    gray = (views.amax(1) - views.amin(1)).flatten(1).amax(1) < 1e-5
    assert abs(gray.float().mean() - 0.2) < 0.025


def test_all_orders_of_jitter_occur(monkeypatch):
    seen = []
    monkeypatch.setattr(augment, "adjust", lambda views, operation, factor: (seen.append(operation), views)[1])
    views = SimclrAugment(RandomCrop(8), ZERO, ONE)
    for _ in range(300):
        views(tensor(picture()))
    assert len({tuple(seen[i : i + 4]) for i in range(0, len(seen), 4)}) == 24


# the module


@pytest.mark.parametrize("blur", [False, True])
def test_views(blur):
    images = torch.randint(0, 256, (16, 3, 40, 30), dtype=torch.uint8)
    module = SimclrAugment(RandomCrop(24), (0.4, 0.5, 0.6), (0.2, 0.3, 0.4), blur=blur)
    torch.manual_seed(5)
    views, state = module(images), torch.get_rng_state()
    others = module(images)
    assert (views.shape, views.dtype) == ((16, 3, 24, 24), torch.float32)
    assert views.is_contiguous(memory_format=torch.channels_last)
    assert not torch.equal(views, others)
    torch.manual_seed(5)
    assert torch.equal(module(images), views)
    torch.set_rng_state(state)
    assert torch.equal(module(images), others)  # a run goes on exactly where it stopped
    back = views * module.std + module.mean
    assert back.min() >= -1e-5
    assert back.max() <= 1 + 1e-5
    same = module(images[:1].expand(8, -1, -1, -1))
    assert len({tuple(view.flatten()[:50].tolist()) for view in same}) == 8


def test_views_of_crops_are_flipped_and_coloured_as_others():
    crops = torch.randint(0, 256, (400, 3, 8, 8), dtype=torch.uint8)
    plain = CropAndFlip(RandomCrop(8), ZERO, ONE)
    views = plain.of_crops(crops[:, None]) * 255
    flipped = (views - crops.flip(3)).abs().amax((1, 2, 3)) < 0.01
    kept = (views - crops).abs().amax((1, 2, 3)) < 0.01
    assert (flipped ^ kept).all()
    assert 140 < flipped.sum() < 260
    gray = SimclrAugment(RandomCrop(8), ZERO, ONE, jitter=0.0).of_crops(crops[:, None])
    assert 40 < ((gray.amax(1) - gray.amin(1)).flatten(1).amax(1) < 1e-5).sum() < 130
    whole = SimclrAugment(RandomCrop(8, 1.0), (0.5,) * 3, (0.25,) * 3).of_crops(crops[:, None])
    assert whole.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: RandomCrop(0), "--image_size"),
        (lambda: RandomCrop(8, 0.0), "--min_scale"),
        (lambda: RandomCrop(8, 1.5), "--min_scale"),
        (lambda: SimclrAugment(RandomCrop(8), ZERO, ONE, jitter=-1.0), "--jitter"),
        (lambda: SimclrAugment(RandomCrop(8), ZERO, ONE, jitter=3.0), "--jitter"),
    ],
)
def test_bad_options_are_named(make, named):
    with pytest.raises(UserError, match=named):
        make()


def test_evaluation_keeps_images_of_the_size():
    images = tensor(picture())
    seen = evaluation_transform(images, 32, (0.1, 0.2, 0.3), (0.5, 0.6, 0.7))
    shape = (1, 3, 1, 1)
    expected = (images.float() / 255 - torch.tensor((0.1, 0.2, 0.3)).view(shape)) / torch.tensor((0.5, 0.6, 0.7)).view(
        shape
    )
    torch.testing.assert_close(seen, expected)
    assert seen.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("side", [48, 100])
def test_evaluation_resizes_and_crops_as_pillow(side):
    """Within 1.5 of 255."""
    seen = pixels_of(evaluation_transform(tensor(picture(side)[:, : side - 10]), 28, ZERO, ONE))
    height, width = round(side * 32 / (side - 10)), 32
    image = Image.fromarray(picture(side)[:, : side - 10]).resize((width, height), Image.Resampling.BILINEAR)
    top = (height - 28) // 2
    theirs = np.asarray(image, dtype=float)[top : top + 28, 2:30]
    assert np.abs(seen - theirs).max() <= 1.5
