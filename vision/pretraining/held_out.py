"""Measure and show what training does to pictures without labels.

Pictures are held out, and the measure is how often two random views of one find one another. The
page shows pictures with their nearest neighbours before and after training.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageOps
from torch import Tensor

from dystress_text.losses.vectors import unit_vectors
from dystress_text.training.run_record import Metric
from vision.data.images import ImageSet
from vision.data.views import RandomViews
from vision.evaluation.features import image_features, seeded, view_features
from vision.evaluation.knn import OnlineKnn
from vision.resnet import ImageEncoder

FEWEST = 5  # pictures to hold out, but at most a quarter
SEARCHED = 500  # training pictures among which neighbours are searched
MEASURED = 50  # least number of pairs of views; fewer pictures have several pairs each
SHOWN = 12  # pictures on the page
NEAREST = 5  # neighbours of each
HEADING = "Pictures (left) and the five nearest to each: before training (above), after it (below)"
_SIDE = 96  # of a picture on the page, in pixels
_FRAME = 3
Neighbours = Sequence[Sequence[int]]  # rows of those of each picture on the page


class DividedImages(NamedTuple):
    """Images to train on, and others to measure and to show."""

    train: ImageSet
    examples: ImageSet  # those held out, then some to train on
    held_out: int


def divide(images: ImageSet, most: int, k: int, seed: int) -> DividedImages:
    """Hold out a tenth of the images, drawn with the seed, and at most ``most``.

    All copies of a file that a list repeats are held out together. None is held out if 2 k pictures
    or fewer would be compared: by chance alone, half of the pairs would count as found.
    """
    fewest = min(FEWEST, len(images) // 4)
    count = min(most, max(len(images) // 10, fewest))
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(images), generator=generator).tolist()
    held_out = order[:count]
    others = order[count:]
    if held_out:
        name = images.files.name if images.files is not None else str
        names = set(map(name, held_out))
        others = [row for row in others if name(row) not in names]
    shown = held_out + others[:SEARCHED]
    if held_out and len(shown) <= 2 * k:
        return divide(images, 0, k, seed)
    examples = images.subset(shown)
    if held_out:
        images = images.subset(sorted(others))
    return DividedImages(images, examples, count)


def agreement(first: Tensor, second: Tensor, count: int, k: int) -> float:
    """Return how often one view of a picture is among the k nearest to its other view, x 100.

    Each view is compared by cosine with the other views of all n pictures. Ties count as misses, so
    that equal features score 0.

    Args:
        first: features of a view of each picture, (n, dim).
        second: features of another view of each, (n, dim).
        count: number of pictures to measure, from the first on.
        k: number of neighbours.
    """
    hits = []
    for asked, others in ((first, second), (second, first)):
        similarity = unit_vectors(asked[:count]) @ unit_vectors(others).T  # (count, n)
        own = similarity.diagonal()[:, None]
        rank = (similarity >= own).sum(1)
        hits.append(rank <= k)
    return 100 * torch.cat(hits).double().mean().item()


@dataclass(frozen=True, eq=False)
class HeldOutAgreement:
    """Measure :func:`agreement` of held-out pictures while an encoder trains."""

    views: RandomViews  # two of each of the examples of :class:`DividedImages`
    count: int  # pictures held out
    k: int
    batch_size: int  # images that are encoded at a time

    metric = Metric("held_out", "agreement", "held-out pictures: agreement of two views x 100")

    @property
    def counts(self) -> dict[str, int]:
        """Return the number of pictures held out, for the record of a run."""
        return {"held_out": self.count}

    @property
    def description(self) -> str:
        pictures = len(self.views.images)
        chance = 100 * self.k / pictures
        return (
            f"{self.metric.name}: {self.count:,} pictures are held out; is one view of each among "
            f"the {self.k} nearest of {pictures:,} to the other? By chance {chance:.1f} of 100"
        )

    def __call__(self, encoder: ImageEncoder) -> dict[str, float]:
        figures = []
        for i in range(math.ceil(MEASURED / self.count)):
            views = replace(self.views, seed=self.views.seed + i)
            with seeded(views.seed, encoder.device):
                first, second = view_features(encoder, views, self.batch_size)
            figures.append(agreement(first, second, self.count, self.k))
        return {self.metric.name: sum(figures) / len(figures)}


OnlineMeasure = OnlineKnn | HeldOutAgreement  # of the encoder, while it trains


def nearest(encoder: ImageEncoder, images: ImageSet, batch_size: int) -> Neighbours:
    """Return the neighbours of the first images, the nearest ones first."""
    features = unit_vectors(image_features(encoder, images, batch_size))  # (n, dim)
    similarity = features[:SHOWN] @ features.T
    similarity.fill_diagonal_(-math.inf)
    count = min(NEAREST, len(images) - 1)
    neighbours: Neighbours = similarity.topk(count, dim=1).indices.tolist()
    return neighbours


def gallery(images: ImageSet, before: Neighbours, after: Neighbours) -> list[tuple[str, str]]:
    """Return a description and a data URI for each picture on the page.

    The JPEG shows the picture with its neighbours before training, and below with those after it.
    """
    pictures = []
    for row, both in enumerate(zip(before, after, strict=True)):
        shown = _tile(images, row, "black")
        strips = []
        for neighbours in both:
            tiles = [_tile(images, neighbour) for neighbour in neighbours]
            strips.append(np.hstack([shown, *tiles]))
        stream = io.BytesIO()
        Image.fromarray(np.vstack(strips)).save(stream, "JPEG", quality=85)
        content = base64.b64encode(stream.getvalue()).decode()
        description = f"picture {row + 1} and its neighbours before and after training"
        pictures.append((description, f"data:image/jpeg;base64,{content}"))
    return pictures


def _tile(images: ImageSet, row: int, frame: str = "white") -> NDArray[np.uint8]:
    """Return the middle square of an image in a frame, uint8 (height, width, 3)."""
    square = ImageOps.fit(images.picture(row), (_SIDE, _SIDE))
    return np.asarray(ImageOps.expand(square, _FRAME, frame))
