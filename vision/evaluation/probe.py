"""The linear probe: one layer on frozen features, with the paper's schedule for ImageNet.

On augmented images, as for published figures, each epoch sees other crops and the encoder runs in
each step. On fixed features, the fast choice, the features of each image are computed once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.svm import LinearSVC
from torch import Tensor

from dystress_text.cli.progress import progress_bar
from dystress_text.losses.vectors import unit_vectors
from vision.data.views import RandomViews
from vision.evaluation.features import evaluating, in_parts
from vision.resnet import ImageEncoder

BATCH_SIZE = 256
LEARNING_RATE = 0.1  # for 256 images a step; proportional to that number
MOMENTUM = 0.9


def linear_probe(
    train: Tensor, labels: Tensor, queries: Tensor, classes: int, epochs: int, seed: int
) -> Tensor:
    """Return scores (m, classes) of a linear classifier on fixed features.

    It is trained by SGD with momentum and a cosine schedule, without decay.

    Features are first shifted by their mean and divided by one number, so that their entries have a
    mean square of 1 over the training images. This does not change what a linear classifier can
    express, but one learning rate then suits all encoders, also those whose features differ little
    from their mean, such as untrained ones. The caller's random state does not change.

    Args:
        train: training features (n, dim).
        labels: their classes, (n,).
        queries: test features (m, dim).
        classes: number of classes.
        epochs: passes over the training features.
        seed: of the order of the features.
    """
    mean = train.mean(0)
    x = train - mean
    y = labels.to(train.device)
    deviation = torch.linalg.vector_norm(x) / math.sqrt(x.numel())
    # identical features leave rounding errors, which must not be scaled up
    scale = torch.where(deviation > 1e-6 * mean.abs().max(), 1 / deviation, 0)
    x *= scale
    generator = torch.Generator().manual_seed(seed)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(epochs):
            order = torch.randperm(len(x), generator=generator).to(x.device)
            for rows in torch.split(order, BATCH_SIZE):
                yield x[rows], y[rows]

    steps = epochs * math.ceil(len(x) / BATCH_SIZE)
    weight, bias = _train(batches(), steps, classes, BATCH_SIZE, x)
    return F.linear((queries - mean) * scale, weight, bias)


def balanced_svm(
    train: Tensor, labels: Tensor, queries: Tensor, truth: Tensor, seed: int
) -> dict[str, Any]:
    """Return the accuracy of a linear SVM on balanced classes, FS of Kukleva et al.

    It is trained on unit vectors, as many of each class as there are of the rarest.

    Args:
        train: training features (n, dim).
        labels: their classes, (n,).
        queries: test features (m, dim).
        truth: their classes, (m,).
        seed: of the choice of images.

    Returns:
        The accuracy x 100, ``top1``, the number of training images, ``images``, and the labels that
        are ``predicted``, (m,).
    """
    x = unit_vectors(train).cpu().numpy()
    y = labels.cpu().numpy()
    asked = unit_vectors(queries).cpu().numpy()
    present, counts = np.unique(y, return_counts=True)
    random = np.random.default_rng(seed)
    chosen = []
    for label in present:
        of_class = random.permutation(np.flatnonzero(y == label))
        chosen.append(of_class[: counts.min()])
    rows = np.concatenate(chosen)
    svm = LinearSVC(random_state=seed).fit(x[rows], y[rows])
    predicted = torch.from_numpy(svm.predict(asked))
    top1 = 100 * (predicted == truth.cpu()).double().mean().item()
    return {"top1": top1, "images": len(rows), "predicted": predicted}


def augmented_probe(
    encoder: ImageEncoder,
    views: RandomViews,
    queries: Tensor,
    epochs: int,
    seed: int,
    encoded_at_once: int = BATCH_SIZE,
) -> Tensor:
    """Return scores (m, classes) of a linear classifier trained on random views, as SimCLR's.

    The schedule is that of :func:`linear_probe`. The encoder is frozen and in evaluation mode.
    Features enter as they are, and images that do not fill the last batch of an epoch are left out
    of it. What the views draw on the device comes from the caller's random state.

    Args:
        encoder: gives the features.
        views: one random view of each training image.
        queries: test features (m, dim).
        epochs: passes over the training images.
        seed: of the order of the images.
        encoded_at_once: most images that go through the encoder together.
    """
    labels = views.images.targets
    device = queries.device
    generator = torch.Generator().manual_seed(seed)
    batch_size = min(BATCH_SIZE, len(labels))
    per_epoch = len(labels) // batch_size

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for epoch in range(epochs):
            order = torch.randperm(len(labels), generator=generator)
            batches = torch.split(order[: per_epoch * batch_size], batch_size)
            for rows, parts in in_parts(views, batches, encoded_at_once, device, epoch):
                with torch.no_grad(), torch.autocast(device.type, enabled=False):
                    features = [encoder.features(view).float() for _, (view,) in parts]
                yield torch.cat(features), labels[rows].to(device)

    steps = epochs * per_epoch
    with evaluating(encoder):
        shown = progress_bar(batches(), total=steps, desc="linear probe", unit=" steps")
        weight, bias = _train(shown, steps, len(views.images.classes), batch_size, queries)
    return F.linear(queries, weight, bias)


def _train(
    batches: Iterable[tuple[Tensor, Tensor]],
    steps: int,
    classes: int,
    batch_size: int,
    like: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return weight (classes, dim) and bias (classes,), trained from 0 on batches and labels.

    Features of the batches have the dimension, type and device of ``like``.
    """
    weight = like.new_zeros(classes, like.shape[1], requires_grad=True)
    bias = like.new_zeros(classes, requires_grad=True)
    rate = LEARNING_RATE * batch_size / 256
    optimizer = torch.optim.SGD([weight, bias], lr=rate, momentum=MOMENTUM)
    for step, (x, y) in enumerate(batches):
        decay = (1 + math.cos(math.pi * step / steps)) / 2
        optimizer.param_groups[0]["lr"] = rate * decay
        loss = F.cross_entropy(F.linear(x, weight, bias), y)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
    return weight.detach(), bias.detach()
