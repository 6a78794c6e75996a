"""Random views of an image set, cropped on the device or, for encoded images, when decoded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dystress_text.training.batches import Batch, prefetch
from vision.data.augment import CropAndFlip
from vision.data.images import ImageSet


@dataclass(frozen=True, eq=False)
class RandomViews:
    """Random views of the images of a set.

    Encoded images are decoded once for all their views, each of which is a crop of the whole
    picture at its own resolution. Their crops and flips depend only on the seed, the step and the
    image, so that a resumed run sees the same. What is drawn on the device comes from torch's
    generator.
    """

    images: ImageSet
    augment: CropAndFlip
    count: int = 2  # views of each image
    seed: int = 0  # of the crops of pictures
    # further kinds, such as smaller ones, and how many of them
    others: tuple[tuple[CropAndFlip, int], ...] = ()

    @property
    def kinds(self) -> tuple[tuple[CropAndFlip, int], ...]:
        """Return each augmentation with its number of views, in the order of the views."""
        return (self.augment, self.count), *self.others

    def load(self, rows: NDArray[np.int64], step: int) -> Batch:
        """Load the images at ``rows``, or crops of them that depend on the step, on the CPU."""
        kinds = ((augment.crop, count) for augment, count in self.kinds)
        return self.images.to_crop(rows, kinds, (self.seed, step))

    def on_device(self, batch: Batch) -> list[Tensor]:
        """Augment a batch from :meth:`load`: return the views, each (b, 3, size, size)."""
        views: list[Tensor] = []
        for kind, (augment, count) in enumerate(self.kinds):
            if "images" in batch:
                of_kind = augment(batch["images"], count)
            else:
                of_kind = augment.of_crops(batch[f"crops{kind}"])
            views += of_kind.chunk(count)
        return views

    def batches(
        self, batches: Iterable[Tensor], device: torch.device, step: int
    ) -> Iterator[list[Tensor]]:
        """Yield the views of each batch of rows (b,), on the device; a thread loads ahead."""
        rows = (batch.numpy() for batch in batches)
        return map(self.on_device, prefetch(lambda rows: self.load(rows, step), rows, device))
