"""Image files as RGB, and what is said of broken ones; crops of whole pictures, parquet files of
any size.
"""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from vision_cases import encoded, write_parquet

from dystress_text.errors import DataError
from vision.data.crops import RandomCrop, draw_box
from vision.data.decoding import decode, image_size, resized
from vision.data.image_files import ImageFiles
from vision.data.images import EncodedImages
from vision.data.loading import load_images

CROP = RandomCrop(224)
RED, WHITE = (255, 0, 0), (255, 255, 255)


def photo(height=375, width=500, seed=0, kind="JPEG", mode="RGB"):
    """Smooth colours with noise, as the content of a file."""
    chance = np.random.default_rng(seed)
    coarse = chance.integers(0, 256, (height // 25, width // 25, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    image = Image.fromarray(
        np.clip(np.asarray(image) + chance.normal(0, 8, (height, width, 3)), 0, 255).astype("u1")
    )
    return encoded(image.convert(mode), kind, quality=90)


@pytest.mark.parametrize(
    ("kind", "mode"), [("JPEG", "RGB"), ("JPEG", "L"), ("PNG", "RGBA"), ("JPEG", "CMYK")]
)
def test_crops_equal_pillows_box_by_box(kind, mode):
    content, chance = photo(kind=kind, mode=mode), np.random.default_rng(3)
    boxes = [draw_box(375, 500, CROP, chance) for _ in range(20)]
    boxes += [(0, 0, 500, 375), (499, 374, 500, 375), (100, 50, 324, 274)]
    found = decode(content)
    whole = Image.open(io.BytesIO(content)).convert("RGB")
    for box in boxes:
        theirs = np.asarray(whole.crop(box).resize((224, 224), Image.Resampling.BILINEAR))
        assert np.array_equal(resized(found, 224, box).permute(1, 2, 0), theirs)
    whole.paste(
        (255, 255, 255), (0, 0, 500, 50)
    )  # beyond the last box, which is made smaller, so its filter is wide
    assert torch.equal(resized(whole, 64, boxes[-1]), resized(found, 64, boxes[-1]))


def test_crops_depend_on_seed_step_and_picture_alone(tmp_path):
    paths, crop = [tmp_path / f"{i}.jpg" for i in range(6)], RandomCrop(32)
    for i, path in enumerate(paths):
        path.write_bytes(photo(120 + 10 * i, 160, seed=i))
    images = EncodedImages(name="photos", files=ImageFiles(paths, np.arange(6)), size=256)
    whole = images.crops(np.arange(6), [(crop, 2)], (1, 5))[0]
    assert whole.shape == (6, 2, 3, 32, 32)
    assert torch.equal(images.crops(np.array([4, 0]), [(crop, 2)], (1, 5))[0], whole[[4, 0]])
    for key in ((1, 6), (2, 5)):
        other = images.crops(np.arange(6), [(crop, 2)], key)[0]
        assert (other != whole).flatten(1).any(1).all()
    assert (whole[:, 0] != whole[:, 1]).flatten(1).any(1).all()
    chance, picture = np.random.default_rng([1, 5, 4]), decode(*images.files[4])
    assert torch.equal(
        whole[4],
        torch.stack([resized(picture, 32, draw_box(160, 160, crop, chance)) for _ in range(2)]),
    )


def test_parquet_files(tmp_path):
    """Three files of the hub's layout, of pictures of other grays, with class names."""
    for k in range(3):
        grays = [50 * k + i for i in range(4)]
        write_parquet(
            tmp_path / f"train-0000{k}-of-00003.parquet",
            grays,
            [0, 1, 1, 0],
            ["tick", "tock"],
            side=100,
        )
    pictures = load_images(str(tmp_path))
    assert (type(pictures), pictures.classes, pictures.labels.tolist()) == (
        EncodedImages,
        ("tick", "tock"),
        [0, 1, 1, 0] * 3,
    )
    grays = [50 * k + i for k in range(3) for i in range(4)]
    assert pictures.batch(np.arange(12))[:, 0, 0, 0].tolist() == grays
    part = pictures.subset([11, 5, 0]).subset([1, 2])
    assert part.batch(np.array([1, 0]))[:, 0, 0, 0].tolist() == [0, 51]
    assert part.files[0][1].endswith(
        "train-00000-of-00003.parquet to train-00002-of-00003.parquet, row 5"
    )
    assert part.checksum() != pictures.checksum() == load_images(str(tmp_path)).checksum()


def gray16(value):
    return Image.fromarray(np.full((4, 6), value, dtype=np.uint16))


@pytest.mark.parametrize(
    ("image", "kind", "expected"),
    [
        (gray16(value), kind, (value >> 8,) * 3)
        for value in (0, 300, 65_535)
        for kind in ("PNG", "TIFF")
    ]
    + [
        (Image.new("RGBA", (6, 4), (*RED, alpha)), "PNG", on_white)
        for alpha, on_white in ((255, RED), (0, WHITE), (128, (255, 127, 127)))
    ],
)
def test_16_bits_keep_their_upper_8_and_transparent_pixels_lie_on_white(image, kind, expected):
    found = decode(encoded(image, kind))
    assert (found.mode, found.size, found.getpixel((2, 1))) == ("RGB", (6, 4), expected)


def test_decompression_bombs(monkeypatch):
    """Twice Pillow's limit is refused; from the limit on Pillow warns, and the picture is read."""
    content = encoded(Image.new("RGB", (15, 10)))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 60)
    for read in (decode, image_size):
        with pytest.raises(DataError, match="row 3 has more pixels than the 120 that Pillow"):
            read(content, "row 3")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.warns(Image.DecompressionBombWarning):
        assert decode(content).size == (15, 10)


def test_missing_and_cut_files_text_and_fractions(tmp_path):
    with pytest.raises(DataError, match=r"nowhere\.png"):
        decode(tmp_path / "nowhere.png")
    whole = encoded(Image.effect_noise((64, 64), 50), "JPEG")
    with pytest.raises(DataError, match=r"row 3 cannot be decoded: .*truncated"):
        decode(whole[: len(whole) // 2], "row 3")
    for mode in "IF":
        with pytest.raises(DataError, match="pixels have 32 bits, of unknown range"):
            decode(encoded(Image.new(mode, (6, 4), 1), "TIFF"))
