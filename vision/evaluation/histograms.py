"""Histograms of the similarities between two views of labelled images."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dystress_text.losses.geometry import BLOCK
from dystress_text.losses.vectors import unit_vectors


class SimilarityHistograms(NamedTuple):
    """Counts of pair similarities in equal bins over [-1, 1]."""

    edges: Tensor  # (bins + 1,)
    true_positive: Tensor  # (bins,), pairs of two views of one sample
    false_negative: Tensor  # (bins,), pairs of different samples of one class
    true_negative: Tensor  # (bins,), pairs of different classes


def similarity_histograms(
    view1: Tensor, view2: Tensor, labels: Tensor, bins: int = 100
) -> SimilarityHistograms:
    """Count the similarities between two views of a data set, by kind of pair.

    Args:
        view1: (n, dim).
        view2: (n, dim); rows i of both views belong to one sample.
        labels: (n,), the samples' classes.
        bins: their number.
    """
    z1 = unit_vectors(view1)
    z2 = unit_vectors(view2)
    counts = torch.zeros(3, bins, dtype=torch.int64, device=z1.device)
    for rows in torch.split(torch.arange(len(z1), device=z1.device), BLOCK):
        similarity = z1[rows] @ z2.T  # (block, n)
        kind = 2 - (labels[rows, None] == labels).long()  # 1 for one class, 2 for different classes
        kind[torch.arange(len(rows)), rows] = 0
        index = ((similarity + 1) * (bins / 2)).long().clamp(0, bins - 1) + bins * kind
        counts += torch.bincount(index.flatten(), minlength=3 * bins).view(3, bins)
    return SimilarityHistograms(torch.linspace(-1, 1, bins + 1), *counts.cpu())
