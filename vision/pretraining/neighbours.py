"""What training did, to be seen: test images of several classes with their nearest training
images.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F

from dystress_text.analysis.page import Pictures, raster
from dystress_text.losses.vectors import unit_vectors
from vision.data.images import ImageSet
from vision.evaluation.features import image_features
from vision.evaluation.knn import OnlineKnn
from vision.resnet import ImageEncoder

SHOWN = 6  # classes
NEAREST = 5  # neighbours of an image
SEARCHED = 2_000  # training images that are looked through
SIDE = 64  # pixels of an image on the page, at most
GAP = 2  # pixels between two
HEADING = (
    "Test images (left) and the training images nearest to them: before training (above) and "
    "after it"
)
Rows = list[list[int]]  # for each test image those of its neighbours


def nearest(encoder: ImageEncoder, knn: OnlineKnn) -> Rows:
    """Return the training images that are most similar to the test images on show, the nearest one
    first.
    """
    searched, shown = _sets(knn)
    known = image_features(encoder, searched, knn.input, knn.batch_size)
    asked = image_features(encoder, shown, knn.input, knn.batch_size)
    similarities = unit_vectors(asked) @ unit_vectors(known).T  # (shown, searched)
    return similarities.topk(min(NEAREST, len(known))).indices.tolist()


def gallery(knn: OnlineKnn, found: Mapping[str, Rows]) -> tuple[str, Pictures]:
    """The pictures for the page, of neighbours ``before`` and ``after`` training."""
    searched, shown = _sets(knn)
    pictures = []
    for row, label in enumerate(_labels(shown)):
        strips = []
        names = []
        for when in ("before", "after"):
            near = found[when][row]
            names.append(", ".join(_labels(searched.subset(near))))
            tiles = [shown.image(row), *map(searched.image, near)]  # (3, side, side) each
            strips.append(torch.cat([F.pad(tile, (GAP,) * 4, value=255) for tile in tiles], dim=2))
        pixels = torch.cat(strips, dim=1).permute(1, 2, 0).numpy()  # (height, width, 3)
        title = f"a test image of {label}, and its neighbours"
        said = f"{label}. Nearest before training: {names[0]}; after it: {names[1]}."
        pictures.append((title, said, raster(pixels, SIDE * len(tiles))))
    return HEADING, pictures


def _sets(knn: OnlineKnn) -> tuple[ImageSet, ImageSet]:
    """Return the training images that are searched, and the first test image of classes at even
    distances.
    """
    labels = knn.queries.targets
    classes = torch.unique(labels)
    chosen = classes[torch.linspace(0, len(classes) - 1, min(SHOWN, len(classes))).long()]
    rows = [int((labels == label).nonzero()[0]) for label in chosen]
    return knn.bank.sample(SEARCHED, seed=0), knn.queries.subset(rows)


def _labels(images: ImageSet) -> list[str]:
    return [images.classes[label] for label in images.targets.tolist()]
