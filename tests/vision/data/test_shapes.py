"""The drawn set: what it holds, that it is seeded, and that its splits vary differently."""

import torch

from vision.data.loading import load_images
from vision.data.shapes import make_shapes


def test_seeds_and_splits():
    first = make_shapes("train", 3, 5).images
    assert torch.equal(first, make_shapes("train", 3, 5).images)
    assert not torch.equal(first, make_shapes("train", 4, 5).images)
    assert not torch.equal(first, make_shapes("test", 3, 5).images)
    assert torch.equal(load_images("shapes", "test").images, make_shapes("test").images)
