"""Features of image sets, computed by an encoder."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dystress_text.cli.progress import progress_bar
from dystress_text.errors import ParameterError
from dystress_text.io.atomic import atomic_files
from vision.data.augment import normalised
from vision.data.images import ImageSet
from vision.data.views import RandomViews
from vision.resnet import ImageEncoder


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seed the random numbers inside, and restore the random state afterwards."""
    gpus = []
    if device.type == "cuda":
        gpus.append(device)
    with torch.random.fork_rng(devices=gpus):
        torch.manual_seed(seed)
        yield


def image_features(encoder: ImageEncoder, images: ImageSet, batch_size: int) -> Tensor:
    """Return the features of all images, without augmentation.

    Args:
        encoder: the encoder, on any device.
        images: the images to encode.
        batch_size: images that are encoded at a time.

    Returns:
        (n, feature_dim) in fp32, on the encoder's device.

    Raises:
        ParameterError: if features are not finite.
    """
    batches = images.batches(batch_size, encoder.device, encoder.input)
    total = math.ceil(len(images) / batch_size)
    shown = progress_bar(batches, total=total, desc="features", unit=" batches")
    mean = encoder.input.mean
    std = encoder.input.std
    return torch.cat(features_of(encoder, (normalised(batch / 255, mean, std) for batch in shown)))


def write_features(
    file: Path, encoder: ImageEncoder, sets: Mapping[str, ImageSet], batch_size: int
) -> None:
    """Write the features of image sets to a file of NumPy arrays.

    ``features`` (n, feature_dim) are float32, ``names`` (n,) the file names and ``split`` (n,) the
    names of the splits. Labelled sets also have ``labels`` (n,) and ``classes``, the class names.

    Args:
        file: replaced if it exists.
        encoder: the encoder, on any device.
        sets: image sets by split; either all have labels of the same classes, or none has labels.
        batch_size: images that are encoded at a time.

    Raises:
        ParameterError: if features are not finite.
    """
    names: list[str] = []
    features = []
    for split, images in sets.items():
        files = images.files  # drawn images have none
        names += [files.name(row) if files else f"{split} {row}" for row in range(len(images))]
        features.append(image_features(encoder, images, batch_size).cpu())
    arrays: dict[str, Any] = {
        "features": torch.cat(features),
        "names": names,
        "split": np.repeat([*sets], [*map(len, sets.values())]),
    }
    labels = [images.labels for images in sets.values() if images.labels is not None]
    if labels:
        arrays |= {"labels": torch.cat(labels), "classes": images.classes}
    with atomic_files(file.parent) as staging:
        np.savez(staging / file.name, **arrays)


def view_features(encoder: ImageEncoder, views: RandomViews, batch_size: int) -> list[Tensor]:
    """Return the features of random views of all images: ``views.count`` tensors (n, feature_dim).

    They are computed as by :func:`image_features`.
    """
    rows = torch.split(torch.arange(len(views.images)), batch_size)
    inputs = chain.from_iterable(views.batches(rows, encoder.device, 0))
    batches = features_of(encoder, inputs)  # the views of the first batch, of the second, ...
    return [torch.cat(batches[i :: views.count]) for i in range(views.count)]


@torch.no_grad()
def features_of(encoder: ImageEncoder, inputs: Iterable[Tensor]) -> list[Tensor]:
    """Return the features of each batch of inputs, computed in fp32 and evaluation mode.

    Raises:
        ParameterError: if features are not finite.
    """
    training = encoder.training
    encoder.eval()
    with torch.autocast(encoder.device.type, enabled=False):
        batches = [encoder.features(batch).float() for batch in inputs]
    encoder.train(training)
    # at the end, since it waits for the device
    if not all(features.isfinite().all() for features in batches):
        reason = "its features have NaN or infinite entries, so no score can be computed"
        raise ParameterError("model", reason)
    return batches
