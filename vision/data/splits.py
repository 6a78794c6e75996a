"""The labelled training and test images of an evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dystress_text.errors import UserError
from vision.data.images import ImageSet, mean_std
from vision.data.loading import load_images, usual_view


@dataclass(frozen=True)
class Splits:
    """Labelled images for an evaluation.

    Attributes:
        train: the bank of the nearest neighbours, and the training images of classifiers.
        test: the images that are scored.
        view: side of the encoder's input.
        mean: of the training images' channels, of values from 0 to 1.
        std: their standard deviations.
    """

    train: ImageSet
    test: ImageSet
    view: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def describe(self) -> dict[str, Any]:
        """For a record."""
        return {
            "name": self.train.name,
            "variant": self.train.variant,
            "classes": len(self.train.classes),
            "train_images": len(self.train),
            "test_images": len(self.test),
            "corrupt_train_images": self.train.corrupt,
            "corrupt_test_images": self.test.corrupt,
            "image_size": self.view,
            "loaded_size": self.train.size,
            "mean": self.mean,
            "std": self.std,
        }


def load_splits(
    name: str,
    data_dir: str | None = None,
    view: int | None = None,
    limit: int | None = None,
    seed: int = 0,
    skip_corrupt: bool = False,
) -> Splits:
    """Read the two splits; see :func:`vision.data.loading.load_images`.

    Args:
        name: of the data set, or a folder.
        data_dir: folder of prepared data.
        view: side of the encoder's input; None for :func:`vision.data.loading.usual_view`.
        limit: images to draw from each split; None for all.
        seed: of that draw.
        skip_corrupt: count damaged images and leave them out.

    Raises:
        UserError: the data do not exist, have no labels, or are of one class.
        DataError: the data are damaged.
    """
    train = load_images(name, "train", data_dir, None, skip_corrupt, view)
    test = load_images(name, "test", data_dir, train.size, skip_corrupt)
    view = view or usual_view(train.size)
    mean, std = mean_std(train)
    train, test = (images.sample(limit, seed) for images in (train, test))
    check_labels(train, test)
    return Splits(train, test, view, mean, std)


def check_labels(train: ImageSet, test: ImageSet) -> None:
    """Refuse images on which no classifier can be trained and tested.

    Raises:
        UserError: labels are missing, of one class, or of other classes in the test split.
    """
    for images, split in ((train, "training"), (test, "test")):
        if images.labels is None:
            raise UserError(f"--dataset: the {split} images of {images.name} have no labels (class folders)")
    assert train.labels is not None
    if train.classes != test.classes:
        raise UserError(
            f"--dataset: {train.name} has {len(train.classes)} classes for training and {len(test.classes)} for the "
            "test, or their names differ; they must be the same"
        )
    if len(torch.unique(train.labels)) < 2:
        raise UserError(f"--dataset: the training images of {train.name} are of one class only; a classifier needs two")
