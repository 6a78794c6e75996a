"""Geometry of embeddings: alignment, uniformity, tolerance and similarity histograms.

Embeddings are L2-normalised here. Computations over all pairs run in blocks of rows, without an
N x N matrix. Products are in fp32 (fp64 for fp64 embeddings), sums in fp64.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dystress_text.losses.vectors import unit_vectors

BLOCK = 1024  # rows a block: 1024 x N similarities at a time


def alignment(x: Tensor, y: Tensor) -> Tensor:
    """Return the mean squared distance of positive pairs (Wang and Isola, 2020); lower is closer.

    Args:
        x: (pairs, dim).
        y: (pairs, dim); row i belongs to row i of ``x``.

    Examples:
        >>> x, y = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]])  # at right angles
        >>> float(alignment(x, y))
        2.0
    """
    if x.shape != y.shape:
        raise ValueError(f"both views must have one shape, got {x.shape} and {y.shape}")
    return (unit_vectors(x) - unit_vectors(y)).double().square().sum(dim=1).mean()


def uniformity(x: Tensor, t: float = 2.0) -> Tensor:
    """Return log mean exp(-t ||x_i - x_j||^2) over all i != j (Wang and Isola, 2020).

    Lower is more uniform.

    Args:
        x: (n, dim), at least two rows; else NaN.
        t: width of the Gaussian potential; 2 is usual.

    Examples:
        >>> opposite = torch.tensor([[1.0, 0.0], [-3.0, 0.0]])
        >>> round(float(uniformity(opposite)), 4)  # -2 times the square of 2
        -8.0
    """
    z = unit_vectors(x)
    total = torch.zeros((), dtype=torch.float64, device=x.device)
    for start in range(0, len(z), BLOCK):
        similarity = z[start : start + BLOCK] @ z.T  # (block, n)
        similarity[:, start : start + BLOCK].fill_diagonal_(-torch.inf)  # leave out i = j
        total += torch.exp(2 * t * (similarity - 1)).sum(dtype=torch.float64)
    return torch.log(total / (len(x) * (len(x) - 1)))


def interclass_uniformity(x: Tensor, labels: Tensor, t: float = 2.0) -> Tensor:
    """Return the uniformity of the class centroids (Eq. incu); lower is farther apart.

    A centroid is the mean of its class's normalised embeddings, normalised again.

    Args:
        x: (n, dim).
        labels: (n,), at least two classes.
        t: as for :func:`uniformity`.

    Examples:
        >>> x, labels = torch.tensor([[1.0, 0.0], [2.0, 0.0], [-1.0, 0.0]]), torch.tensor([0, 0, 1])
        >>> float(interclass_uniformity(x, labels))
        -8.0
    """
    return uniformity(_class_sums(x, labels)[0], t)


def tolerance(x: Tensor, labels: Tensor) -> Tensor:
    """Return the mean similarity of pairs of one class, i != j (Wang and Liu, CVPR 2021).

    Higher is more tolerant.

    Args:
        x: (n, dim).
        labels: (n,), a class with at least two members.

    Examples:
        >>> x, labels = torch.tensor([[1.0, 0.0], [2.0, 0.0], [-1.0, 0.0]]), torch.tensor([0, 0, 1])
        >>> float(tolerance(x, labels))
        1.0
    """
    sums, counts = _class_sums(x, labels)
    # in a class, the sum of s_ij over i != j is |sum of z_i|^2 - sum of |z_i|^2
    total = sums.square().sum() - unit_vectors(x).double().square().sum()
    return total / (counts * (counts - 1)).sum()


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
        labels: the class of each sample, (n,).
        bins: the number of bins.
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


def _class_sums(x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return per-class sums of unit vectors, (classes, dim) in fp64, and class sizes."""
    _, index, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    sums = torch.zeros(len(counts), x.shape[1], dtype=torch.float64, device=x.device)
    return sums.index_add_(0, index, unit_vectors(x).double()), counts
