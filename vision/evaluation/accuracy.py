"""Top-1 and top-5 accuracy."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Accuracy:
    """Shares of images x 100.

    Attributes:
        top1: whose class is ranked first.
        top5: whose class is among the first five; None for five classes or fewer.
    """

    top1: float
    top5: float | None

    @classmethod
    def of(cls, scores: Tensor, labels: Tensor) -> Accuracy:
        """Rank the classes of each image.

        Args:
            scores: (n, classes), the higher the better; the lower class number wins a tie.
            labels: (n,) classes.
        """
        ranked = torch.sort(scores, dim=1, descending=True, stable=True).indices[:, :5]  # (n, 5 at most)
        right = ranked == labels.to(scores.device)[:, None]
        top5 = 100 * right.any(1).double().mean().item() if scores.shape[1] > 5 else None
        return cls(100 * right[:, 0].double().mean().item(), top5)
