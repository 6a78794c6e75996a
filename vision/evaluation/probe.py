"""Linear classifiers on frozen features: the linear probe, by the paper's schedule, and an SVM.

The probe on augmented images, as in published figures, encodes other crops in each epoch. The probe
on fixed features, which is faster, encodes each image once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import chain

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

    Features are first centred and divided by one number, so that their entries have a mean square
    of 1 over the training images. A linear classifier can express the same as before, but one
    learning rate now suits all encoders, even untrained ones, whose features differ little from
    their mean. The random state does not change.

    Args:
        train: training features (n, dim).
        labels: their classes, (n,).
        queries: test features (m, dim).
        classes: number of classes.
        epochs: passes over the training features.
        seed: determines the order of the features.
    """
    mean = train.mean(0)
    x = train - mean
    deviation = torch.linalg.vector_norm(x) / math.sqrt(x.numel())
    # identical features leave rounding errors, which must not be scaled up
    scale = torch.where(deviation > 1e-6 * mean.abs().max(), 1 / deviation, 0)
    x *= scale

    def features(rows: Tensor, epoch: int) -> Tensor:
        return x[rows.to(x.device)]

    asked = (queries - mean) * scale
    return _scores(features, labels, asked, classes, BATCH_SIZE, epochs, seed)


def balanced_svm(train: Tensor, labels: Tensor, queries: Tensor, seed: int) -> tuple[Tensor, int]:
    """Train a linear SVM on balanced classes, the few-shot evaluation FS of Kukleva et al.

    Features become unit vectors. Each class has as many training images as the rarest one, drawn
    with the seed.

    Args:
        train: training features (n, dim).
        labels: their classes, (n,).
        queries: test features (m, dim).
        seed: determines the chosen images and seeds the SVM.

    Returns:
        The predicted labels of the test features, (m,), and the number of training images.
    """
    x = unit_vectors(train).cpu().numpy()
    y = labels.cpu().numpy()
    present, counts = np.unique(y, return_counts=True)
    random = np.random.default_rng(seed)
    drawn = [random.permutation(np.flatnonzero(y == label))[: counts.min()] for label in present]
    rows = np.concatenate(drawn)
    svm = LinearSVC(random_state=seed).fit(x[rows], y[rows])
    return torch.from_numpy(svm.predict(unit_vectors(queries).cpu().numpy())), len(rows)


def augmented_probe(
    encoder: ImageEncoder,
    views: RandomViews,
    queries: Tensor,
    epochs: int,
    seed: int,
    encoded_at_once: int = BATCH_SIZE,
) -> Tensor:
    """Return scores (m, classes) of a linear classifier that is trained on random views.

    The schedule is that of :func:`linear_probe`; the evaluation is SimCLR's. The encoder is frozen
    and in evaluation mode. Features enter as they are, and an epoch leaves out the images that do
    not fill its last batch. The views draw from torch's random state.

    Args:
        encoder: gives the features.
        views: one random view of each training image.
        queries: test features (m, dim).
        epochs: passes over the training images.
        seed: determines the order of the images.
        encoded_at_once: the largest number of images in a forward pass of the encoder.
    """
    labels = views.images.targets
    batch_size = min(BATCH_SIZE, len(labels))
    used = len(labels) // batch_size * batch_size

    def features(rows: Tensor, epoch: int) -> Tensor:
        parts = torch.split(rows[:used], encoded_at_once)
        inputs = views.batches(parts, encoder.device, epoch)
        return torch.cat(features_of(encoder, chain.from_iterable(inputs)))

    classes = len(views.images.classes)
    return _scores(features, labels, queries, classes, batch_size, epochs, seed)


def _scores(
    features: Callable[[Tensor, int], Tensor],
    labels: Tensor,
    queries: Tensor,
    classes: int,
    batch_size: int,
    epochs: int,
    seed: int,
) -> Tensor:
    """Train a linear classifier, whose weights begin at 0, and return its scores (m, classes).

    Args:
        features: maps rows (n,) and the epoch to the features of these images, (n, dim); it may
            leave out the last ones, which do not fill a batch.
        labels: the labels of the images, (n,).
        queries: test features (m, dim).
        classes: number of classes.
        batch_size: number of features in a step.
        epochs: passes over the images.
        seed: determines the order of the images.
    """
    weight = queries.new_zeros(classes, queries.shape[1], requires_grad=True)
    bias = queries.new_zeros(classes, requires_grad=True)
    rate = LEARNING_RATE * batch_size / 256
    optimizer = torch.optim.SGD([weight, bias], lr=rate, momentum=MOMENTUM)
    generator = torch.Generator().manual_seed(seed)
    for epoch in progress_bar(range(epochs), desc="linear probe", unit=" epochs"):
        order = torch.randperm(len(labels), generator=generator)
        x = features(order, epoch)
        y = labels[order[: len(x)].to(labels.device)].to(x.device)
        starts = range(0, len(x), batch_size)
        for step, start in enumerate(starts):
            done = (epoch + step / len(starts)) / epochs
            optimizer.param_groups[0]["lr"] = rate * (1 + math.cos(math.pi * done)) / 2
            batch = slice(start, start + batch_size)
            loss = F.cross_entropy(F.linear(x[batch], weight, bias), y[batch])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
    return F.linear(queries, weight, bias).detach()
