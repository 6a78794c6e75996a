"""Fine-tuning of a whole encoder on a labelled image set, with class weights where classes are
unbalanced.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
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
from vision.evaluation.knn import Accuracy
from vision.evaluation.settings import NAMED_WEIGHTS
from vision.resnet import ImageEncoder, ImageInput

BATCH_SIZE = 128  # the paper's
# shares of the run after which the learning rate is a tenth: epochs 30 and 40 of 50
_DROPS = (0.6, 0.8)


def rate_of(epoch: int, epochs: int, classes: int, start: float | None = None) -> float:
    """The learning rate of an epoch, counted from 0; by default it starts at the paper's."""
    start = start or (1.0 if classes == 2 else 0.1)
    return start * 0.1 ** sum(epoch >= round(share * epochs) for share in _DROPS)


def new_classifier(encoder: ImageEncoder, classes: int, seed: int) -> ImageEncoder:
    """A copy of an encoder with a new linear layer as its projector; for two classes one output,
    the second's logit.
    """
    model = copy.deepcopy(encoder)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # torch.manual_seed would reseed the GPU too
        model.projector = nn.Linear(encoder.feature_dim, 1 if classes == 2 else classes)
    return model.to(next(encoder.parameters()).device)


def fine_tune(
    encoder: ImageEncoder,
    views: RandomViews,
    weights: Tensor,
    epochs: int,
    learning_rate: float | None = None,
    seed: int = 0,
    encoded_at_once: int = BATCH_SIZE,
) -> tuple[ImageEncoder, float]:
    """A classifier trained from a copy of an encoder by plain SGD, and its mean loss in the last
    epoch.

    Of one view of each labelled image. ``weights`` (classes,) are from :func:`weights_of`,
    ``learning_rate`` is that at the start. Only the views draw from the caller's random state.
    Gradients of a step's batch are accumulated over parts of ``encoded_at_once`` images, each with
    its own batch statistics.
    """
    train = views.images
    device = next(encoder.parameters()).device
    labels = train.targets.to(device)
    weights = weights.to(device)
    model = new_classifier(encoder, len(weights), seed).train()
    optimizer = torch.optim.SGD(model.parameters())
    generator = torch.Generator().manual_seed(seed)
    mean = float("nan")
    for epoch in range(epochs):
        optimizer.param_groups[0]["lr"] = rate_of(epoch, epochs, len(weights), learning_rate)
        total = torch.zeros((), device=device)
        steps = _parts(torch.randperm(len(train), generator=generator), encoded_at_once)
        seen = views.batches(chain.from_iterable(steps), device, epoch)
        for parts in steps:
            targets = labels[torch.cat(parts).to(device)]
            divisor = len(targets) if len(weights) == 2 else weights[targets].sum()
            optimizer.zero_grad()
            for rows, (view,) in zip(parts, seen, strict=False):
                loss = loss_sum(model(view), labels[rows.to(device)], weights) / divisor
                torch.autograd.backward(loss)
                total += loss.detach() * len(targets)
            optimizer.step()
        mean = total.item() / sum(len(torch.cat(parts)) for parts in steps)
        if not math.isfinite(mean):
            reason = f"the loss is {mean}; lower the learning rate"
            raise TrainingError(f"fine-tuning diverged in epoch {epoch + 1}: {reason}")
    return model, mean


def _parts(order: Tensor, encoded_at_once: int) -> list[list[Tensor]]:
    """The rows of each step, in the parts that are encoded at once.

    A part of one image, which has no batch statistics, is left out; another epoch has another.
    """
    steps = []
    for rows in torch.split(order, BATCH_SIZE):
        parts = [part for part in torch.split(rows, max(2, encoded_at_once)) if len(part) > 1]
        if parts:
            steps.append(parts)
    return steps


@torch.no_grad()
def score_classifier(
    model: ImageEncoder, test: ImageSet, image_input: ImageInput, batch_size: int
) -> dict[str, Any]:
    """The figures of a fine-tuned classifier on test images, x 100.

    Top-1 and top-5; where the test images are of both of two classes the balanced accuracy, the
    mean of the classes' accuracies, and the area under the ROC curve, the same whichever is called
    positive.
    """
    labels = test.targets
    logits = model.projector(image_features(model, test, image_input, batch_size)).cpu()
    binary = logits.shape[1] == 1
    scores = logits
    if binary:  # the first class's logit is 0
        scores = torch.cat([torch.zeros_like(logits), logits], dim=1)
    found: dict[str, Any] = {"accuracy": asdict(Accuracy.of(scores, labels))}
    if binary and 0 < int(labels.count_nonzero()) < len(labels):
        found["balanced_accuracy"] = 100 * float(balanced_accuracy_score(labels, scores.argmax(1)))
        found["auc"] = 100 * float(roc_auc_score(labels, logits[:, 0]))
    return found


def parse_class_weights(words: Sequence[str]) -> dict[str, float]:
    """Weights by class from one of :data:`NAMED_WEIGHTS`, or from ``CLASS=WEIGHT`` each."""
    if len(words) == 1 and words[0] in NAMED_WEIGHTS:
        return NAMED_WEIGHTS[words[0]]
    weights: dict[str, float] = {}
    for word in words:
        name, _, number = word.rpartition("=")
        try:
            weights[name] = float(number)
        except ValueError:
            name = ""
        if not name or not 0 < weights[name] < float("inf"):
            reason = f"neither CLASS=WEIGHT, above 0, nor one of {', '.join(NAMED_WEIGHTS)}"
            raise ParameterError("class_weights", f"{word!r} is {reason}")
    return weights


def weights_of(class_weights: Mapping[str, float], classes: Sequence[str]) -> Tensor:
    """The weight of each class, float32 (classes,); 1 for those that are not named, and no others
    may be named.
    """
    for name in class_weights:
        if name not in classes:
            reason = f"no class {name!r}; the {len(classes):,} begin {', '.join(classes[:20])}"
            raise ParameterError("class_weights", reason)
    return torch.tensor([class_weights.get(name, 1.0) for name in classes])


def loss_sum(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """The sum of weighted cross-entropies of (n, classes), or for two classes (n, 1), the logit of
    the second; weights (classes,).

    Its mean is over the images' weights; for two classes over the images, as torch's
    ``pos_weight``.
    """
    if logits.shape[1] == 1:
        truth = labels.to(logits)
        weight = weights[labels]
        return F.binary_cross_entropy_with_logits(logits[:, 0], truth, weight, reduction="sum")
    return F.cross_entropy(logits, labels, weight=weights, reduction="sum")
