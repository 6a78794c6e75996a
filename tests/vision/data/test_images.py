"""Random crops of whole pictures, the square that evaluation sees, and the mean of the squares."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from vision_cases import noise

from vision.data.augment import CropAndFlip
from vision.data.crops import RandomCrop
from vision.data.images import DecodedImages, EncodedImages, ImageFiles, mean_std, square_of
from vision.data.loading import load_images
from vision.data.views import RandomViews
from vision.resnet import Square

PLAIN = ((0.0,) * 3, (1.0,) * 3)  # mean and deviation that change nothing


def pictures_of(*files):
    return EncodedImages(name="pictures", files=ImageFiles(files, np.arange(len(files))))


def views_of(images, *crop, **options):
    """Random views in their own colours."""
    return RandomViews(images, CropAndFlip(RandomCrop(*crop), *PLAIN), **options)


def test_crops_depend_on_seed_step_and_picture_alone(tmp_path):
    files = [tmp_path / f"{i}.png" for i in range(4)]
    for i, file in enumerate(files):
        noise(120 + 10 * i, 160, seed=i).save(file)
    images = pictures_of(*files)

    def crops(rows, step, seed=1):
        return views_of(images, 32, count=3, seed=seed).load(np.array(rows), step)["crops0"]

    whole = crops(range(4), 5)
    assert whole.shape == (4, 3, 3, 32, 32)
    assert torch.equal(crops([3, 0], 5), whole[[3, 0]])
    for other in (crops(range(4), 6), crops(range(4), 5, seed=2)):
        assert (other != whole).flatten(1).any(1).all()
    assert (whole[:, 0] != whole[:, 1]).any()


def test_views_of_several_kinds(tmp_path):
    """Each kind by itself, the views of a kind one after the other."""
    for i in range(2):
        noise(200, 300, i).save(tmp_path / f"{i}.png")
    small = CropAndFlip(RandomCrop(16), (0.5,) * 3, (2.0,) * 3)
    views = views_of(load_images(str(tmp_path)), 24, others=((small, 3),))
    loaded = views.load(np.arange(2), 0)
    seen = views.on_device(loaded)
    assert [view.shape[2] for view in seen] == [24, 24, 16, 16, 16]
    assert torch.equal(seen[1], loaded["crops0"][:, 1] / 255)
    torch.testing.assert_close(seen[4], (loaded["crops1"][:, 2] / 255 - 0.5) / 2)
    (batch,) = views.batches([torch.arange(2)], torch.device("cpu"), 0)
    assert all(map(torch.equal, batch, seen))


def test_crops_are_at_the_pictures_own_size(tmp_path):
    """Of a photo next to small icons, which once set the size of both."""
    for i in range(3):
        noise(64, 64, i).save(tmp_path / f"icon{i}.png")
    noise(600, 800).save(tmp_path / "photo.png")
    views = views_of(load_images(str(tmp_path)), 224, 0.08, 0.1)
    for view in views.on_device(views.load(np.array([3]), 0)):
        # crops of 200 x 200 pixels; those of icons are smooth
        assert view.diff(dim=2).abs().mean() > 0.1


def test_the_ends_of_long_pictures_are_seen(tmp_path):
    strip = Image.new("RGB", (320, 40))
    strip.paste((255, 0, 0), (0, 0, 20, 40))
    strip.save(tmp_path / "0.png")
    views = views_of(pictures_of(*[tmp_path / "0.png"] * 40), 32)
    seen = torch.cat(views.on_device(views.load(np.arange(40), 0)))
    assert (seen[:, 0] > 0.9).any()
    assert (seen[:, 0, :, 0] > 0.9).any()
    assert (seen[:, 0, :, -1] > 0.9).any()  # mirrored


def test_crops_of_a_large_jpeg_are_nearly_those_of_the_picture(tmp_path):
    picture = noise(30, 40).resize((2400, 1800), Image.Resampling.BICUBIC)
    views = []
    for name in ("large.jpg", "large.bmp"):
        picture.save(tmp_path / name)
        images = pictures_of(tmp_path / name)
        (crops,) = images.to_crop(np.arange(1), [(RandomCrop(96, 0.2), 8)], (0, 0)).values()
        views.append(crops.float())
    assert 0 < (views[0] - views[1]).abs().mean() < 3


@pytest.mark.parametrize(
    ("widths", "side", "crop"),
    [([48], 48, 1.0), ([48, 50], 48, 0.875), ([48], 32, 0.875), ([120], 120, 1.0)],
)
def test_images_of_the_inputs_size_enter_whole(widths, side, crop, tmp_path):
    for width in widths:
        noise(widths[0], width).save(tmp_path / f"{width}.png")
    assert square_of(load_images(str(tmp_path), input_size=side), side) == Square(side, crop)


@pytest.mark.parametrize("count", [1, 8])
def test_the_mean_is_that_of_the_squares(count, tmp_path):
    pixels = np.stack([noise(100, 120, seed) for seed in range(count)])
    pixels[..., 2] = 51
    for i, values in enumerate(pixels):
        Image.fromarray(values).save(tmp_path / f"{i}.png")
    decoded = DecodedImages(name="", pixels=torch.from_numpy(pixels.transpose(0, 3, 1, 2)))
    seen = pixels[:, :, 10:110] / 255
    for images in (load_images(str(tmp_path), input_size=100), decoded):
        mean, std = mean_std(images, Square(100, 1.0))
        assert mean == pytest.approx(seen.mean((0, 1, 2)).tolist(), abs=1e-6)
        assert std[:2] == pytest.approx(seen.std((0, 1, 2)).tolist()[:2], abs=1e-6)
        assert std[2] == pytest.approx(1 / 255, abs=1e-5)  # at least


PEAK = """
import resource, sys
from concurrent.futures import ThreadPoolExecutor
from vision.data import images, loading

images.DECODERS = ThreadPoolExecutor(4)  # whatever this machine has
photos = loading.load_images(sys.argv[1], input_size=1024)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
images.mean_std(photos, images.square_of(photos, 1024))
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_the_mean_needs_little_memory(tmp_path):
    """Of photos at 1,024 pixels, a hundred of which were once decoded together, in 3.7 GB."""
    for i in range(30):
        noise(15, 20, i).save(tmp_path / f"{i}.png")
    command = [sys.executable, "-c", PEAK, str(tmp_path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    assert int(done.stdout) < 200_000  # KiB
