"""Image files that nobody thought of: a picture of the right form, or one line of ours."""

import io

import numpy as np
import pytest
import torch
from fuzz_cases import ODD_BYTES, accepted, inputs, spoiled
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vision.data.decoding import decode, decode_square, image_size


def picture(kind, mode):
    pixels = np.random.default_rng(0).integers(0, 256, (12, 9, 4), dtype=np.uint8)
    sink = io.BytesIO()
    Image.fromarray(pixels, "RGBA").convert(mode).save(sink, kind)
    return sink.getvalue()


KINDS = (
    ("PNG", "RGBA"), ("PNG", "P"), ("JPEG", "RGB"), ("JPEG", "CMYK"), ("GIF", "P"), ("BMP", "RGB"), ("TIFF", "RGB"),
    ("WEBP", "RGBA"),
)  # fmt: skip
PICTURES = [picture(*kind) for kind in KINDS]


@inputs(800)
@pytest.mark.filterwarnings("ignore")
@given(st.one_of([spoiled(content) for content in PICTURES] + [st.binary(max_size=50), st.sampled_from(ODD_BYTES)]))
def test_pictures(content):
    accepted(image_size, content)
    image = accepted(decode, content)
    if image is not None:
        assert image.dtype == torch.uint8
        assert image.ndim == 3
        assert image.shape[0] == 3
    square = accepted(decode_square, content, 8)
    assert square is None or square.shape == (3, 8, 8)
