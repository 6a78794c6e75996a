"""Fine-tuning of a whole encoder on a labelled image set, with class weights where classes are unbalanced."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from torch import Tensor, nn

from dystress_text.errors import TrainingError, UserError
from vision.data.images import ImageSet
from vision.data.views import RandomViews
from vision.evaluation.accuracy import Accuracy
from vision.evaluation.features import Transform, evaluating
from vision.resnet import ImageEncoder

# the paper's; a single number is the weight of the second (positive) of two classes
NAMED_WEIGHTS: dict[str, tuple[float, ...]] = {
    "mura": (0.7097,),
    "isic2016": (4.24,),
    "mhist": (2.45,),
    "chaoyang": (1.264, 1.667, 1.0, 2.114),
}


@dataclass(frozen=True)
class FineTuningRecipe:
    """How fine-tuning runs; the defaults are the paper's.

    Attributes:
        epochs: of training.
        batch_size: images a step.
        learning_rate: None for 0.1, with two classes 1.0.
        momentum: of SGD; the paper names none.
        drops: shares of the run after which the learning rate is a tenth: epochs 30 and 40 of 50.
    """

    epochs: int = 50
    batch_size: int = 128
    learning_rate: float | None = None
    momentum: float = 0.0
    drops: tuple[float, ...] = (0.6, 0.8)

    def rate(self, epoch: int, classes: int) -> float:
        """The learning rate of an epoch, counted from 0."""
        start = self.learning_rate or (1.0 if classes == 2 else 0.1)
        return start * 0.1 ** sum(epoch >= round(share * self.epochs) for share in self.drops)


@dataclass(frozen=True)
class FineTuningResult:
    """Figures of the classifier after the last epoch, on the test images.

    Attributes:
        accuracy: top-1 and top-5.
        balanced_accuracy: mean over the classes of their accuracy, x 100; None unless there are two.
        auc: area under the ROC curve of the second class, x 100; None unless there are two.
        last_loss: mean training loss of the last epoch.
    """

    accuracy: Accuracy
    balanced_accuracy: float | None
    auc: float | None
    last_loss: float


class Classifier(nn.Module):
    """An encoder's backbone and a new linear layer; for two classes one output, the second's logit."""

    def __init__(self, encoder: ImageEncoder, classes: int, seed: int) -> None:
        super().__init__()
        self.encoder = copy.deepcopy(encoder)
        self.encoder.projector = nn.Identity()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.layer = nn.Linear(encoder.feature_dim, 1 if classes == 2 else classes)
        self.to(next(encoder.parameters()).device)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of images (n, 3, h, w): (n, classes), or (n, 1) for two classes."""
        logits: Tensor = self.layer(self.encoder.features(images))
        return logits


def fine_tune(
    encoder: ImageEncoder,
    views: RandomViews,
    class_weights: tuple[float, ...] = (),
    recipe: FineTuningRecipe | None = None,
    seed: int = 0,
) -> tuple[Classifier, float]:
    """Train a classifier that starts from a copy of an encoder.

    Args:
        encoder: on the device that computes.
        views: of labelled images, one view of each.
        class_weights: see :func:`check_class_weights`.
        recipe: the paper's by default.
        seed: of the new layer and the order. Only the views draw from the caller's random state.

    Returns:
        The classifier and its mean training loss in the last epoch.

    Raises:
        UserError: weights that do not fit the classes, or fewer than two images a step.
        TrainingError: the loss is not finite.
    """
    recipe, train = recipe or FineTuningRecipe(), views.images
    check_class_weights(class_weights, train.classes)
    if min(recipe.batch_size, len(train)) < 2:
        raise UserError("fine-tuning needs at least two images a step: batch normalisation needs two")
    assert train.labels is not None
    model = Classifier(encoder, len(train.classes), seed).train()
    device = next(model.parameters()).device
    labels = train.labels.to(device)
    weights = torch.tensor(class_weights, device=device) if class_weights else None
    optimizer = torch.optim.SGD(model.parameters(), lr=recipe.rate(0, len(train.classes)), momentum=recipe.momentum)
    generator = torch.Generator().manual_seed(seed)
    total = torch.zeros((), device=device)
    for epoch in range(recipe.epochs):
        optimizer.param_groups[0]["lr"] = recipe.rate(epoch, len(train.classes))
        total.zero_()
        seen = 0
        order = torch.randperm(len(train), generator=generator)
        for rows, (view,) in views.batches(recipe.batch_size, device, epoch, order):
            if len(rows) == 1:
                continue  # batch norm again; in another epoch another image is left over
            loss = classification_loss(model(view), labels[rows.to(device)], weights)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            total += loss.detach() * len(rows)
            seen += len(rows)
        if not total.isfinite():
            raise TrainingError(
                f"fine-tuning diverged in epoch {epoch + 1}: the loss is {total.item() / seen}; lower --transfer_lr"
            )
    return model, total.item() / seen


@torch.no_grad()
def score_classifier(
    model: Classifier, test: ImageSet, transform: Transform, last_loss: float, batch_size: int = 256
) -> FineTuningResult:
    """The figures of a fine-tuned classifier on test images."""
    assert test.labels is not None
    device = next(model.parameters()).device
    labels = test.labels
    with evaluating(model):
        batches = test.batches(batch_size, device)
        logits = torch.cat([model(transform(batch["images"])).cpu() for batch in batches])
    if logits.shape[1] > 1:
        return FineTuningResult(Accuracy.of(logits, labels), None, None, last_loss)
    scores = torch.cat([torch.zeros_like(logits), logits], dim=1)  # the first class's logit is 0
    return FineTuningResult(
        Accuracy.of(scores, labels),
        100 * float(balanced_accuracy_score(labels, scores.argmax(1))),
        100 * float(roc_auc_score(labels, logits[:, 0])),
        last_loss,
    )


def parse_class_weights(words: Sequence[str]) -> tuple[float, ...]:
    """Weights from the words of ``--class_weights``: one of :data:`NAMED_WEIGHTS`, or numbers.

    Raises:
        UserError: the words are neither.
    """
    if len(words) == 1 and words[0] in NAMED_WEIGHTS:
        return NAMED_WEIGHTS[words[0]]
    try:
        return tuple(float(word) for word in words)
    except ValueError as error:
        raise UserError(
            f"--class_weights: {' '.join(words)!r} is neither numbers nor one of {', '.join(NAMED_WEIGHTS)}"
        ) from error


def check_class_weights(weights: Sequence[float], classes: Sequence[str]) -> None:
    """Refuse weights that do not fit the classes: one for each, or with two classes one for the second.

    Raises:
        UserError: there are too many or too few, or one is not positive and finite.
    """
    if not weights:
        return
    wanted = 1 if len(classes) == 2 else len(classes)
    if len(weights) != wanted:
        names = ", ".join(classes[:10]) + (", ..." if len(classes) > 10 else "")
        of = f"one, that of the positive class {classes[1]!r}" if wanted == 1 else f"{wanted}, one for each of {names}"
        raise UserError(f"--class_weights: got {len(weights)} numbers, but these classes need {of}")
    if not all(0 < weight < float("inf") for weight in weights):
        raise UserError(f"--class_weights: must be above 0, got {' '.join(f'{weight:g}' for weight in weights)}")


def classification_loss(logits: Tensor, labels: Tensor, weights: Tensor | None = None) -> Tensor:
    """Weighted cross-entropy.

    Args:
        logits: (n, classes); for two classes (n, 1), the logit of the second.
        labels: (n,) classes.
        weights: (classes,), the weight of each image by its class, and the mean is divided by their sum; for two
            classes (1,), a factor of the positive images' terms, and the mean is over images. None: no weights.
    """
    if logits.shape[1] == 1:
        return F.binary_cross_entropy_with_logits(logits[:, 0], labels.to(logits), pos_weight=weights)
    return F.cross_entropy(logits, labels, weight=weights)
