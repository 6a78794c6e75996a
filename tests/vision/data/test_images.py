"""Image files as RGB, damaged ones, random crops of whole pictures, and parquet files."""

import io
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image, ImageOps
from vision_cases import encoded, noise, write_parquet

from dystress_text.errors import DataError
from vision.data.augment import CropAndFlip
from vision.data.crops import RandomCrop
from vision.data.decoding import decode, image_size
from vision.data.images import EncodedImages, ImageFiles, mean_std, square_of
from vision.data.loading import load_images
from vision.data.views import RandomViews
from vision.resnet import Square


def photo(height=150, width=200, seed=0):
    """Noise, as the content of a JPEG file."""
    chance = np.random.default_rng(seed)
    coarse = chance.integers(0, 256, (height // 10, width // 10, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    return encoded(image, "JPEG", quality=90)


def test_crops_depend_on_seed_step_and_picture_alone(tmp_path):
    paths = [tmp_path / f"{i}.jpg" for i in range(4)]
    for i, path in enumerate(paths):
        path.write_bytes(photo(120 + 10 * i, 160, seed=i))
    images = EncodedImages(name="photos", files=ImageFiles(paths, np.arange(4)))
    kinds = [(RandomCrop(32), 2)]
    (crops,) = images.to_crop(np.arange(4), kinds, (1, 5)).values()
    assert crops.shape == (4, 2, 3, 32, 32)
    (again,) = images.to_crop(np.array([3, 0]), kinds, (1, 5)).values()
    assert torch.equal(again, crops[[3, 0]])
    (other,) = images.to_crop(np.arange(4), kinds, (1, 6)).values()
    assert (other != crops).flatten(1).any(1).all()


def test_pictures_of_parquet_files(tmp_path):
    for k in range(3):
        grays = [50 * k + i for i in range(4)]
        file = tmp_path / f"train-0000{k}-of-00003.parquet"
        write_parquet(file, grays, [0, 1, 1, 0], ["tick", "tock"], side=100)
    pictures = load_images(str(tmp_path))
    assert isinstance(pictures, EncodedImages)
    assert pictures.classes == ("tick", "tock")
    part = pictures.subset([11, 5, 0]).subset([1, 2])
    assert part.labels.tolist() == [1, 0]
    assert part.squares(np.array([1, 0]), Square(16, 0.875))[:, 0, 0, 0].tolist() == [0, 51]


def test_crops_are_at_the_pictures_own_size(tmp_path):
    """Of photos among small icons, which once set the size of both."""
    for i in range(6):
        noise(64, 64, i).save(tmp_path / f"icon{i}.png")
    for i in range(4):
        noise(600, 800, i).save(tmp_path / f"photo{i}.png")
    images = load_images(str(tmp_path), input_size=224)
    augment = CropAndFlip(RandomCrop(224, 0.08, 0.1), (0.0,) * 3, (1.0,) * 3)
    views = RandomViews(images, augment)
    (first, second) = views.on_device(views.load(np.arange(6, 10), 0))
    for view in (*first, *second):  # crops of 200 x 200 pixels; those of icons are smooth
        assert view.diff(dim=2).abs().mean() > 0.1


def test_the_ends_of_long_pictures_are_seen(tmp_path):
    strip = Image.new("RGB", (320, 40))
    strip.paste((255, 0, 0), (0, 0, 20, 40))
    for i in range(40):
        strip.save(tmp_path / f"{i}.png")
    images = load_images(str(tmp_path), input_size=32)
    views = RandomViews(images, CropAndFlip(RandomCrop(32), (0.0,) * 3, (1.0,) * 3))
    seen = torch.cat(views.on_device(views.load(np.arange(40), 0)))
    assert (seen[:, 0] > 0.9).any()


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "TIFF", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_pictures_are_upright(kind, orientation):
    colours = np.zeros((16, 32, 3), dtype=np.uint8)
    colours[:8, :16, 0] = 255  # a red corner
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    content = encoded(Image.fromarray(colours), kind, exif=exif, quality=95)
    expected = ImageOps.exif_transpose(Image.open(io.BytesIO(content)))
    assert np.array_equal(decode(content), expected.convert("RGB"))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_damaged_exif_is_ignored(kind):
    content = encoded(noise(20, 30), kind, exif=b"Exif\0\0nonsense")
    assert decode(content).size == (30, 20)


@pytest.mark.parametrize(
    ("widths", "side", "crop"),
    [((48, 48), 48, 1.0), ((48, 50), 48, 0.875), ((48, 48), 32, 0.875), ((120, 120), 120, 1.0)],
)
def test_images_of_the_inputs_size_enter_whole(widths, side, crop, tmp_path):
    for width in widths:
        noise(widths[0], width).save(tmp_path / f"{len(list(tmp_path.iterdir()))}.png")
    assert square_of(load_images(str(tmp_path), input_size=side), side) == Square(side, crop)


@pytest.mark.parametrize("count", [1, 8])
def test_the_mean_is_that_of_the_squares(count, tmp_path):
    pixels = [np.asarray(noise(100, 120, seed)) for seed in range(count)]
    for i, values in enumerate(pixels):
        Image.fromarray(values).save(tmp_path / f"{i}.png")
    images = load_images(str(tmp_path), input_size=100)
    mean, std = mean_std(images, Square(100, 1.0))
    seen = np.stack(pixels)[:, :, 10:110] / 255
    assert mean == pytest.approx(seen.mean((0, 1, 2)).tolist(), abs=1e-6)
    assert std == pytest.approx(seen.std((0, 1, 2)).tolist(), abs=1e-6)


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
        noise(150, 200, i).save(tmp_path / f"{i}.png")
    command = [sys.executable, "-c", PEAK, str(tmp_path)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    assert int(done.stdout) < 200_000  # KiB


@pytest.mark.parametrize(("value", "expected"), [(300, 1), (65_535, 255)])
def test_16_bits_keep_their_upper_8(value, expected):
    pixels = np.full((4, 6), value, dtype=np.uint16)
    pgm = b"P5 6 4 65535\n" + pixels.astype(">u2").tobytes()
    for content in (encoded(Image.fromarray(pixels)), pgm):
        assert decode(content).getpixel((2, 1)) == (expected,) * 3


@pytest.mark.parametrize(("alpha", "expected"), [(0, (255, 255, 255)), (128, (255, 127, 127))])
def test_transparent_pixels_lie_on_white(alpha, expected):
    image = Image.new("RGBA", (6, 4), (255, 0, 0, alpha))
    assert decode(encoded(image)).getpixel((2, 1)) == expected


def test_decompression_bombs(monkeypatch):
    content = encoded(Image.new("RGB", (15, 10)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 60)  # twice as many are refused
    for read in (decode, image_size):
        with pytest.raises(DataError, match="row 3"):
            read(content, "row 3")


def test_damaged_files_are_named(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.png"):
        decode(tmp_path / "nowhere.png")
    content = photo()
    with pytest.raises(DataError, match="row 3"):
        decode(content[: len(content) // 2], "row 3")
    with pytest.raises(DataError, match="32 bits"):
        decode(encoded(Image.new("F", (6, 4), 1), "TIFF"))


def test_a_large_jpeg_is_decoded_smaller(tmp_path):
    """Its crops are those of the whole picture, nearly; smaller ones are equal."""
    noise = np.random.default_rng(0).integers(0, 255, (30, 40, 3), dtype=np.uint8)
    picture = Image.fromarray(noise).resize((2400, 1800), Image.Resampling.BICUBIC)
    picture.save(tmp_path / "large.jpg")
    picture.save(tmp_path / "large.png")
    picture.resize((800, 600)).save(tmp_path / "small.jpg")
    assert decode(tmp_path / "large.jpg", enough=700).size == (1200, 900)
    assert decode(tmp_path / "large.jpg", enough=500).size == (600, 450)
    assert decode(tmp_path / "large.jpg").size == (2400, 1800)
    assert decode(tmp_path / "small.jpg", enough=10).size == (800, 600)
    views = []
    for kind in ("jpg", "png"):
        files = ImageFiles([tmp_path / f"large.{kind}"], np.arange(1))
        images = EncodedImages(name="large", files=files)
        (crops,) = images.to_crop(np.arange(1), [(RandomCrop(96, 0.2), 8)], (0, 0)).values()
        views.append(crops.float())
    assert (views[0] - views[1]).abs().mean() < 3
