"""The linear probe: one layer on frozen features, with the paper's schedule for ImageNet.

On augmented images, as for published figures, each epoch sees other crops and the encoder runs in
each step. On fixed features, the fast choice, the features of each image are computed once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import chain
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.svm import LinearSVC
from torch import Tensor

from dystress_text.cli.progress import progress_bar
from dystress_text.losses.vectors import unit_vectors
from vision.data.views import RandomViews
from vision.evaluation.features import features_of
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

    def shuffled(epoch: int) -> tuple[Tensor, Tensor]:
        order = torch.randperm(len(x), generator=generator).to(x.device)
        return x[order], y[order]

    weight, bias = _train(map(shuffled, range(epochs)), epochs, classes, BATCH_SIZE, x)
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
    used = len(labels) // batch_size * batch_size

    def encoded(epoch: int) -> tuple[Tensor, Tensor]:
        order = torch.randperm(len(labels), generator=generator)[:used]
        inputs = views.batches(torch.split(order, encoded_at_once), device, epoch)
        features = features_of(encoder, chain.from_iterable(inputs), device)
        return torch.cat(features), labels[order].to(device)

    shown = progress_bar(range(epochs), desc="linear probe", unit=" epochs")
    classes = len(views.images.classes)
    weight, bias = _train(map(encoded, shown), epochs, classes, batch_size, queries)
    return F.linear(queries, weight, bias)


def _train(
    shuffled: Iterable[tuple[Tensor, Tensor]],
    epochs: int,
    classes: int,
    batch_size: int,
    like: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return weight (classes, dim) and bias (classes,), trained from 0.

    Args:
        shuffled: features (n, dim) and labels (n,) of each epoch, in the order of its steps.
        epochs: their number.
        classes: number of classes.
        batch_size: of a step.
        like: features of the same dimension and type, on the same device.
    """
    weight = like.new_zeros(classes, like.shape[1], requires_grad=True)
    bias = like.new_zeros(classes, requires_grad=True)
    rate = LEARNING_RATE * batch_size / 256
    optimizer = torch.optim.SGD([weight, bias], lr=rate, momentum=MOMENTUM)
    for epoch, (x, y) in enumerate(shuffled):
        starts = range(0, len(x), batch_size)
        for step, start in enumerate(starts):
            done = (epoch + step / len(starts)) / epochs
            optimizer.param_groups[0]["lr"] = rate * (1 + math.cos(math.pi * done)) / 2
            rows = slice(start, start + batch_size)
            loss = F.cross_entropy(F.linear(x[rows], weight, bias), y[rows])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
    return weight.detach(), bias.detach()
