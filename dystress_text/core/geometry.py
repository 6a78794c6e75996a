"""The shape of an embedding space: alignment, uniformity, tolerance, inter-class uniformity, similarity histograms.

Embeddings need not be normalised; they are L2-normalised here. Computations over all pairs run in blocks of rows, so
that there is never an N x N matrix. Products are in fp32 (fp64 for fp64 input), sums in fp64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from dystress_text.core.vectors import positive_similarity, unit_vectors

BLOCK = 1024  # rows a block: 1024 x N similarities at a time


def alignment(x: Tensor, y: Tensor) -> Tensor:
    """Mean squared distance of positive pairs (Eq. alignment; Wang and Isola, 2020); lower is closer.

    Args:
        x: (pairs, dim).
        y: (pairs, dim), row i belonging to row i of ``x``.

    Raises:
        ValueError: the shapes differ, or there are no pairs.
    """
    if x.shape != y.shape or x.ndim != 2 or len(x) == 0:
        raise ValueError(
            f"alignment needs two (pairs, dim) tensors of one shape, got {tuple(x.shape)}, {tuple(y.shape)}"
        )
    return (unit_vectors(x) - unit_vectors(y)).double().square().sum(dim=1).mean()


def uniformity(x: Tensor, t: float = 2.0) -> Tensor:
    """log mean exp(-t ||x_i - x_j||^2) over all pairs i != j (Eq. unif; Wang and Isola, 2020); lower is more uniform.

    Args:
        x: (n, dim), at least two rows.
        t: the width of the Gaussian potential; the field's 2.

    Raises:
        ValueError: fewer than two rows.
    """
    if x.ndim != 2 or len(x) < 2:
        raise ValueError(f"uniformity needs at least two rows of shape (n, dim), got {tuple(x.shape)}")
    z = unit_vectors(x)
    square = positive_similarity(z, z)  # 1, or 0 for a zero vector
    total = torch.zeros((), dtype=torch.float64, device=x.device)
    for start, block in _blocks(z):
        distance = (square[start : start + len(block), None] + square - 2 * block @ z.T).clamp(min=0)  # (block, n)
        distance[:, start : start + len(block)].fill_diagonal_(torch.inf)  # leave out i = j
        total += torch.exp(-t * distance).sum(dtype=torch.float64)
    return torch.log(total / (len(x) * (len(x) - 1)))


def interclass_uniformity(x: Tensor, labels: Tensor, t: float = 2.0) -> Tensor:
    """Uniformity of the class centroids (Eq. incu); lower is farther apart.

    A centroid is the mean of its class's normalised embeddings, normalised again.

    Args:
        x: (n, dim).
        labels: (n,), at least two classes.
        t: as for :func:`uniformity`.

    Raises:
        ValueError: labels do not fit, or there is only one class.
    """
    return uniformity(_class_sums(x, labels)[0], t)


def tolerance(x: Tensor, labels: Tensor, over_all_pairs: bool = False) -> Tensor:
    """Mean similarity of pairs of one class, i != j (Wang and Liu, CVPR 2021); higher is more tolerant.

    Args:
        x: (n, dim).
        labels: (n,).
        over_all_pairs: average ``s * 1[same class]`` over all pairs i != j instead of over those of one class.

    Raises:
        ValueError: labels do not fit, or no class has two members.
    """
    sums, counts = _class_sums(x, labels)
    z = unit_vectors(x).double()
    same = (counts * (counts - 1)).sum()
    if same == 0:
        raise ValueError("tolerance needs a class with at least two members")
    # over a class, the sum of s_ij with i != j is |sum of its vectors|^2 minus the sum of their |z_i|^2
    total = sums.square().sum() - z.square().sum()
    return total / (len(x) * (len(x) - 1) if over_all_pairs else same)


@dataclass(frozen=True)
class SimilarityHistograms:
    """Counts of pair similarities in equal bins over [-1, 1].

    Attributes:
        edges: (bins + 1,) bin edges.
        true_positive: (bins,) pairs of two views of one sample.
        false_negative: (bins,) pairs of different samples of one class.
        true_negative: (bins,) pairs of different classes.
    """

    edges: Tensor
    true_positive: Tensor
    false_negative: Tensor
    true_negative: Tensor


def similarity_histograms(view1: Tensor, view2: Tensor, labels: Tensor, bins: int = 100) -> SimilarityHistograms:
    """Histograms of the similarities between two views of a data set, by kind of pair.

    Args:
        view1: (n, dim).
        view2: (n, dim), row i being another view of the sample of row i of ``view1``.
        labels: (n,) classes.
        bins: number of bins.

    Raises:
        ValueError: shapes do not fit.
    """
    if view1.shape != view2.shape:
        raise ValueError(f"both views must have one shape, got {tuple(view1.shape)} and {tuple(view2.shape)}")
    if bins < 1:
        raise ValueError(f"bins must be at least 1, got {bins}")
    _check_labels(view1, labels)
    z1, z2 = unit_vectors(view1), unit_vectors(view2)
    counts = torch.zeros(3, bins, dtype=torch.int64, device=z1.device)
    for start, block in _blocks(z1):
        rows = slice(start, start + len(block))
        similarity = block @ z2.T  # (block, n)
        kind = 2 - (labels[rows, None] == labels).long()  # 1 for one class, 2 for different classes
        kind[torch.arange(len(block)), torch.arange(start, start + len(block))] = 0
        place = ((similarity + 1) * (bins / 2)).long().clamp(0, bins - 1) + bins * kind
        counts += torch.bincount(place.flatten(), minlength=3 * bins).view(3, bins)
    return SimilarityHistograms(torch.linspace(-1, 1, bins + 1), *counts.cpu())


def _blocks(z: Tensor) -> Iterator[tuple[int, Tensor]]:
    for start in range(0, len(z), BLOCK):
        yield start, z[start : start + BLOCK]


def _check_labels(x: Tensor, labels: Tensor) -> None:
    if x.ndim != 2 or labels.shape != x.shape[:1]:
        raise ValueError(f"labels must hold one class a row: {tuple(labels.shape)} for {tuple(x.shape)} embeddings")


def _class_sums(x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of the unit vectors of each class present, (classes, dim) in fp64, and the classes' sizes, (classes,)."""
    _check_labels(x, labels)
    _, place, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    sums = torch.zeros(len(counts), x.shape[1], dtype=torch.float64, device=x.device)
    return sums.index_add_(0, place, unit_vectors(x).double()), counts
