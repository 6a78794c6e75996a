"""Random views of an image set: small images are cropped on the device, pictures when decoded."""

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

    A picture is decoded once for all its views, and each is a crop of the whole picture at its own
    resolution. The crops depend on the seed, the step and the image alone, so a resumed run sees
    the same. What is drawn on the device, such as flips and colours, comes from torch's generator.
    """

    images: ImageSet
    augment: CropAndFlip
    count: int = 2  # views of each image
    seed: int = 0  # of the crops of pictures
    # further kinds, such as smaller ones, and how many of them
    others: tuple[tuple[CropAndFlip, int], ...] = ()

    @property
    def kinds(self) -> tuple[tuple[CropAndFlip, int], ...]:
        return (self.augment, self.count), *self.others  # in the order of the views

    def load(self, rows: NDArray[np.int64], step: int) -> Batch:
        """Return what :meth:`on_device` needs of the images at ``rows``, on the CPU.

        Another step gives other crops.
        """
        kinds = [(augment.crop, count) for augment, count in self.kinds]
        return self.images.to_crop(rows, kinds, (self.seed, step))

    def on_device(self, batch: Batch) -> list[Tensor]:
        """Return the views of a batch from :meth:`load`: each (b, 3, size, size), normalised."""
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
        """Yield the views on the device of batches of rows (b,), loaded ahead by a thread."""
        rows = (batch.numpy() for batch in batches)
        return map(self.on_device, prefetch(lambda rows: self.load(rows, step), rows, device))
