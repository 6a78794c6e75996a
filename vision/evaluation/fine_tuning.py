"""Fine-tuning of a whole encoder on a labelled image set, with a weight for each class."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import torch
import torch.nn.functional as F
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from torch import Tensor, nn

from dystress_text.errors import ParameterError, TrainingError
from vision.data.images import ImageSet
from vision.data.views import RandomViews
from vision.evaluation.features import image_features
from vision.evaluation.knn import accuracies
from vision.evaluation.settings import NAMED_WEIGHTS
from vision.resnet import ImageEncoder

# the paper's; the rates fall to a tenth after epochs 30 and 40 of 50
BATCH_SIZE = 128
LEARNING_RATE = 0.1
TWO_CLASS_RATE = 1.0
DROPS = (0.6, 0.8)  # as shares of the run


def new_classifier(encoder: ImageEncoder, classes: int, seed: int) -> ImageEncoder:
    """Return a copy of an encoder with a new linear layer as its projector.

    For two classes it has one output, the logit of the second class.
    """
    model = copy.deepcopy(encoder)
    outputs = 1 if classes == 2 else classes
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed the GPU too
        model.projector = nn.Linear(encoder.feature_dim, outputs)
    return model.to(encoder.device)


def train_classifier(
    encoder: ImageEncoder,
    views: RandomViews,
    weights: Tensor,
    epochs: int,
    seed: int = 0,
    encoded_at_once: int = BATCH_SIZE,
) -> tuple[ImageEncoder, float]:
    """Train a copy of an encoder as a classifier by plain SGD.

    Only the views draw from torch's random state. A step accumulates gradients over parts of its
    batch, each with its own batch statistics.

    Args:
        encoder: the initial encoder, which does not change.
        views: one random view of each labelled image.
        weights: class weights, (classes,), from :func:`weights_of`.
        epochs: passes over the images.
        seed: determines the new layer and the order of the images.
        encoded_at_once: the largest number of images in a part.

    Returns:
        The classifier and its mean loss in the last epoch.

    Raises:
        TrainingError: if the loss is not finite.
    """
    train = views.images
    device = encoder.device
    labels = train.targets.to(device)
    weights = weights.to(device)
    # the mean loss is over the weights of the images, as in torch's cross_entropy, or for two
    # classes over the images, as with its pos_weight
    divisors = torch.ones_like(weights) if len(weights) == 2 else weights
    model = new_classifier(encoder, len(weights), seed).train()
    rate = TWO_CLASS_RATE if len(weights) == 2 else LEARNING_RATE
    optimizer = torch.optim.SGD(model.parameters(), rate)
    drops = [round(share * epochs) for share in DROPS]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, drops)  # each to a tenth
    generator = torch.Generator().manual_seed(seed)
    mean = float("nan")
    for epoch in range(epochs):
        order = torch.randperm(len(train), generator=generator)
        # a single image has no batch statistics
        batches = [rows for rows in torch.split(order, BATCH_SIZE) if len(rows) > 1]
        # parts of similar sizes, of two images at least
        counts = [min(math.ceil(len(rows) / encoded_at_once), len(rows) // 2) for rows in batches]
        parts_of = list(map(torch.tensor_split, batches, counts))
        seen = views.batches(chain.from_iterable(parts_of), device, epoch)
        total = torch.zeros((), device=device)
        for rows, parts in zip(batches, parts_of, strict=True):
            optimizer.zero_grad()
            divisor = divisors[labels[rows.to(device)]].sum()
            for part, (view,) in zip(parts, seen, strict=False):
                loss = loss_sum(model(view), labels[part.to(device)], weights) / divisor
                torch.autograd.backward(loss)
                total += loss.detach() * len(rows)
            optimizer.step()
        schedule.step()
        mean = total.item() / sum(map(len, batches))
        if not math.isfinite(mean):
            raise TrainingError(f"fine-tuning diverged in epoch {epoch + 1}: the loss is {mean}")
    return model, mean


@torch.no_grad()
def score_classifier(model: ImageEncoder, test: ImageSet, batch_size: int) -> dict[str, Any]:
    """Return the :func:`accuracies` x 100 of a classifier on test images.

    If the test images are of two classes, add ``balanced_accuracy``, the mean accuracy over the
    classes, and ``auc``, the area under the ROC curve.
    """
    labels = test.targets
    logits = model.projector(image_features(model, test, batch_size)).cpu()
    if logits.shape[1] > 1:
        return accuracies(logits, labels, test.classes)
    scores = F.pad(logits, (1, 0))  # the logit of the first class is 0
    figures = accuracies(scores, labels, test.classes)
    if len(torch.unique(labels)) == 2:
        balanced = balanced_accuracy_score(labels, scores.argmax(1))
        figures["balanced_accuracy"] = 100 * float(balanced)
        figures["auc"] = 100 * float(roc_auc_score(labels, logits[:, 0]))
    return figures


def parse_class_weights(entries: Sequence[str]) -> dict[str, float]:
    """Return weights by class from a name in :data:`NAMED_WEIGHTS` or from ``CLASS=WEIGHT``."""
    if len(entries) == 1 and entries[0] in NAMED_WEIGHTS:
        return NAMED_WEIGHTS[entries[0]]
    weights: dict[str, float] = {}
    for entry in entries:
        name, _, number = entry.rpartition("=")
        try:
            weights[name] = float(number)
        except ValueError:
            name = ""
        if not name or not 0 < weights[name] < float("inf"):
            reason = f"neither CLASS=WEIGHT, above 0, nor one of {', '.join(NAMED_WEIGHTS)}"
            raise ParameterError("class_weights", f"{entry!r} is {reason}")
    return weights


def weights_of(class_weights: Mapping[str, float], classes: Sequence[str]) -> Tensor:
    """Return the weight of each class, float32 (classes,), 1 by default.

    Raises:
        ParameterError: a weight is for an unknown class.
    """
    for name in class_weights:
        if name not in classes:
            reason = f"no class {name!r}; the {len(classes):,} begin {', '.join(classes[:20])}"
            raise ParameterError("class_weights", reason)
    return torch.tensor([class_weights.get(name, 1.0) for name in classes])


def loss_sum(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Return the sum of the cross-entropies, each times the weight of its class.

    Args:
        logits: (n, classes), or for two classes (n, 1), the logit of the second.
        labels: (n,).
        weights: class weights, (classes,).
    """
    if logits.shape[1] > 1:
        return F.cross_entropy(logits, labels, weight=weights, reduction="sum")
    return F.binary_cross_entropy_with_logits(
        logits[:, 0], labels.to(logits), weights[labels], reduction="sum"
    )
