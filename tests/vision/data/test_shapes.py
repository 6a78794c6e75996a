"""The drawn set: what it holds, that it is seeded, and that its splits vary differently."""

import pytest
import torch

from vision.data.loading import load_images
from vision.data.shapes import make_shapes


@pytest.mark.parametrize("split", ["train", "test"])
def test_what_it_holds(split):
    shapes = make_shapes(split, per_class=5)
    assert shapes.images.shape == (50, 3, shapes.size, shapes.size)
    assert shapes.images.dtype == torch.uint8
    assert torch.bincount(shapes.labels).tolist() == [5] * 10
    assert (len(shapes.classes), shapes.name, shapes.variant, shapes.pictures) == (10, "shapes", None, None)
    spread = shapes.images.float().std((1, 2, 3))
    assert spread.min() > 5  # every picture shows something


def test_seeds_and_splits():
    first = make_shapes("train", 3, 5).images
    assert torch.equal(first, make_shapes("train", 3, 5).images)
    assert not torch.equal(first, make_shapes("train", 4, 5).images)
    assert not torch.equal(first, make_shapes("test", 3, 5).images)
    assert torch.equal(load_images("shapes", "test").images, make_shapes("test").images)
