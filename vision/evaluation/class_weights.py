"""Class weights for fine-tuning on unbalanced classes, and the loss that uses them."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from dystress_text.errors import UserError

# the paper's; a single number is the weight of the second (positive) of two classes
NAMED_WEIGHTS: dict[str, tuple[float, ...]] = {
    "mura": (0.7097,),
    "isic2016": (4.24,),
    "mhist": (2.45,),
    "chaoyang": (1.264, 1.667, 1.0, 2.114),
}


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
