"""Features of image sets, computed by an encoder."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from dystress_text.cli.progress import progress_bar
from dystress_text.errors import ParameterError
from vision.data.augment import evaluation_transform
from vision.data.images import ImageSet
from vision.data.views import RandomViews
from vision.resnet import ImageEncoder, ImageInput


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode inside; afterwards each submodule is in the mode that it was in."""
    modes = {submodule: submodule.training for submodule in module.modules()}
    module.eval()
    try:
        yield
    finally:
        for submodule, training in modes.items():
            submodule.training = training


@contextmanager
def seeded(seed: int, device: torch.device) -> Iterator[None]:
    """Seeded random numbers inside; afterwards the random state is what it was before."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def image_features(
    encoder: ImageEncoder, images: ImageSet, image_input: ImageInput, batch_size: int
) -> Tensor:
    """Features of all images, without augmentation: (n, feature_dim) in fp32, on the encoder's
    device.

    Features that are not finite are refused.
    """
    batches = images.batches(batch_size, next(encoder.parameters()).device)
    total = math.ceil(len(images) / batch_size)
    shown = progress_bar(batches, total=total, desc="features", unit=" batches")
    inputs = (
        evaluation_transform(batch, image_input.image_size, image_input.mean, image_input.std)
        for batch in shown
    )
    return torch.cat(_features(encoder, inputs))


def view_features(encoder: ImageEncoder, views: RandomViews, batch_size: int) -> list[Tensor]:
    """Features of each random view of all images, as :func:`image_features`: ``views.count`` times
    (n, feature_dim).
    """
    device = next(encoder.parameters()).device
    rows = torch.split(torch.arange(len(views.images)), batch_size)
    inputs = (torch.cat(seen) for seen in views.batches(rows, device, 0))
    batches = [found.chunk(views.count) for found in _features(encoder, inputs)]
    return [torch.cat(parts) for parts in zip(*batches, strict=True)]


@torch.no_grad()
def _features(encoder: ImageEncoder, inputs: Iterable[Tensor]) -> list[Tensor]:
    """Features of each batch of inputs."""
    device = next(encoder.parameters()).device
    with evaluating(encoder), torch.autocast(device.type, enabled=False):
        found = [encoder.features(batch).float() for batch in inputs]
    if not torch.stack([features.isfinite().all() for features in found]).all():  # one read for all
        reason = "its features have NaN or infinite entries, so no score can be computed"
        raise ParameterError("model", reason)
    return found
