"""Features of image sets, computed by an encoder."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dystress_text.cli.progress import progress_bar
from dystress_text.errors import ParameterError
from dystress_text.io.atomic import atomic_files
from vision.data.augment import normalised
from vision.data.images import ImageSet
from vision.data.views import RandomViews
from vision.resnet import ImageEncoder


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Put a module into evaluation mode, and back into its own mode afterwards."""
    training = module.training
    module.eval()
    try:
        yield
    finally:
        module.train(training)


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
        encoder: on any device.
        images: to encode.
        batch_size: images that are encoded at a time.

    Returns:
        (n, feature_dim) in fp32, on the encoder's device.

    Raises:
        ParameterError: if features are not finite.
    """
    batches = images.batches(batch_size, encoder.device, encoder.input)
    total = math.ceil(len(images) / batch_size)
    shown = progress_bar(batches, total=total, desc="features", unit=" batches")
    seen = encoder.input

    def inputs() -> Iterator[Tensor]:
        for batch in shown:
            yield normalised(batch / 255, seen.mean, seen.std)

    return torch.cat(_features(encoder, inputs()))


def in_parts(
    views: RandomViews,
    batches: Sequence[Tensor],
    encoded_at_once: int,
    device: torch.device,
    epoch: int,
) -> Iterator[tuple[Tensor, Iterator[tuple[Tensor, list[Tensor]]]]]:
    """Yield each batch of rows, and parts of its rows with their views, which must be used up.

    Parts have similar sizes, and two images at least, since one has no batch statistics.
    """
    split = []
    for rows in batches:
        count = math.ceil(len(rows) / encoded_at_once)
        split.append(torch.tensor_split(rows, min(count, len(rows) // 2)))
    seen = views.batches(chain.from_iterable(split), device, epoch)
    for rows, parts in zip(batches, split, strict=True):
        yield rows, zip(parts, islice(seen, len(parts)), strict=True)


def write_features(
    file: Path, encoder: ImageEncoder, sets: Mapping[str, ImageSet], batch_size: int
) -> None:
    """Write the features of image sets to a file of NumPy arrays.

    ``features`` (n, feature_dim) is float32. ``names`` (n,) has the images' files and ``split``
    (n,) their sets; with labels there are ``labels`` (n,) and the names of the ``classes``.

    Args:
        file: replaced if it exists.
        encoder: on any device.
        sets: by the name of the split; all have labels of the same classes, or none has.
        batch_size: images that are encoded at a time.

    Raises:
        ParameterError: if features are not finite.
    """
    parts = []
    for split, images in sets.items():
        files = images.files  # drawn images have none
        names = [files.name(row) if files else f"{split} {row}" for row in range(len(images))]
        part: dict[str, Any] = {
            "features": image_features(encoder, images, batch_size).cpu(),
            "names": names,
            "split": [split] * len(images),
        }
        if images.labels is not None:
            part["labels"] = images.labels
        parts.append(part)
    arrays: dict[str, Any] = {}
    for name in parts[0]:
        arrays[name] = np.concatenate([part[name] for part in parts])
    if "labels" in arrays:
        arrays["classes"] = np.array(images.classes)
    with atomic_files(file.parent) as staging:
        np.savez(staging / file.name, **arrays)


def view_features(encoder: ImageEncoder, views: RandomViews, batch_size: int) -> list[Tensor]:
    """Return the features of random views of all images: ``views.count`` tensors (n, feature_dim).

    They are computed as by :func:`image_features`.
    """
    rows = torch.split(torch.arange(len(views.images)), batch_size)
    inputs = chain.from_iterable(views.batches(rows, encoder.device, 0))
    batches = _features(encoder, inputs)  # of the first batch, each view of it, and so on
    return [torch.cat(batches[i :: views.count]) for i in range(views.count)]


@torch.no_grad()
def _features(encoder: ImageEncoder, inputs: Iterable[Tensor]) -> list[Tensor]:
    """Return the features of each batch of inputs."""
    with evaluating(encoder), torch.autocast(encoder.device.type, enabled=False):
        batches = [encoder.features(batch).float() for batch in inputs]
    finite = torch.stack([features.isfinite().all() for features in batches])
    if not finite.all():  # the only wait for the device
        reason = "its features have NaN or infinite entries, so no score can be computed"
        raise ParameterError("model", reason)
    return batches
