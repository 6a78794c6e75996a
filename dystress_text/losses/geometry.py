"""The shape of an embedding space: alignment, uniformity, tolerance, inter-class uniformity,
similarity histograms.

Embeddings need not be normalised; they are L2-normalised here. Computations over all pairs run in
blocks of rows, so that there is never an N x N matrix. Products are in fp32 (fp64 for fp64 input),
sums in fp64.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from dystress_text.losses.vectors import positive_similarity, unit_vectors

BLOCK = 1024  # rows a block: 1024 x N similarities at a time


def alignment(x: Tensor, y: Tensor) -> Tensor:
    """Mean squared distance of positive pairs (Eq. alignment; Wang and Isola, 2020); lower is
    closer.

    ``x`` and ``y`` are (pairs, dim), row i of one belonging to row i of the other.

    Examples:
        >>> x, y = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 2.0]])  # at right angles
        >>> float(alignment(x, y))
        2.0
    """
    if x.shape != y.shape or x.ndim != 2 or len(x) == 0:
        shapes = f"{tuple(x.shape)}, {tuple(y.shape)}"
        raise ValueError(f"alignment needs two (pairs, dim) tensors of one shape, got {shapes}")
    return (unit_vectors(x) - unit_vectors(y)).double().square().sum(dim=1).mean()


def uniformity(x: Tensor, t: float = 2.0) -> Tensor:
    """log mean exp(-t ||x_i - x_j||^2) over all pairs i != j (Eq. unif; Wang and Isola, 2020);
    lower is more uniform.

    ``x`` is (n, dim) with at least two rows, ``t`` the width of the Gaussian potential, the field's
    2.

    Examples:
        >>> opposite = torch.tensor([[1.0, 0.0], [-3.0, 0.0]])
        >>> round(float(uniformity(opposite)), 4)  # -2 times the square of 2
        -8.0
    """
    if x.ndim != 2 or len(x) < 2:
        shape = tuple(x.shape)
        raise ValueError(f"uniformity needs at least two rows of shape (n, dim), got {shape}")
    z = unit_vectors(x)
    square = positive_similarity(z, z)  # 1, or 0 for a zero vector
    total = torch.zeros((), dtype=torch.float64, device=x.device)
    for start in range(0, len(z), BLOCK):
        block = z[start : start + BLOCK]
        own = slice(start, start + len(block))
        distance = square[own, None] + square - 2 * block @ z.T  # (block, n), squared
        distance.clamp_(min=0)[:, own].fill_diagonal_(torch.inf)  # leave out i = j
        total += torch.exp(-t * distance).sum(dtype=torch.float64)
    return torch.log(total / (len(x) * (len(x) - 1)))


def interclass_uniformity(x: Tensor, labels: Tensor, t: float = 2.0) -> Tensor:
    """Uniformity of the class centroids (Eq. incu); lower is farther apart.

    A centroid is the mean of its class's normalised embeddings, normalised again. At least two
    classes; ``x`` is (n, dim), ``labels`` (n,).

    Examples:
        >>> x, labels = torch.tensor([[1.0, 0.0], [2.0, 0.0], [-1.0, 0.0]]), torch.tensor([0, 0, 1])
        >>> float(interclass_uniformity(x, labels))
        -8.0
    """
    return uniformity(_class_sums(x, labels)[0], t)


def tolerance(x: Tensor, labels: Tensor, over_all_pairs: bool = False) -> Tensor:
    """Mean similarity of pairs of one class, i != j (Wang and Liu, CVPR 2021); higher is more
    tolerant.

    With ``over_all_pairs``, ``s * 1[same class]`` is averaged over all pairs i != j instead of over
    those of one class.

    Examples:
        >>> x, labels = torch.tensor([[1.0, 0.0], [2.0, 0.0], [-1.0, 0.0]]), torch.tensor([0, 0, 1])
        >>> float(tolerance(x, labels))
        1.0
        >>> round(float(tolerance(x, labels, over_all_pairs=True)), 4)
        0.3333
    """
    sums, counts = _class_sums(x, labels)
    z = unit_vectors(x).double()
    same = (counts * (counts - 1)).sum()
    if same == 0:
        raise ValueError("tolerance needs a class with at least two members")
    # over a class, the sum of s_ij with i != j is |sum of its vectors|^2 minus the sum of their
    # |z_i|^2
    total = sums.square().sum() - z.square().sum()
    if over_all_pairs:
        return total / (len(x) * (len(x) - 1))
    return total / same


class SimilarityHistograms(NamedTuple):
    """Counts of pair similarities in equal bins over [-1, 1]."""

    edges: Tensor  # (bins + 1,)
    true_positive: Tensor  # (bins,), pairs of two views of one sample
    false_negative: Tensor  # (bins,), pairs of different samples of one class
    true_negative: Tensor  # (bins,), pairs of different classes


def similarity_histograms(
    view1: Tensor, view2: Tensor, labels: Tensor, bins: int = 100
) -> SimilarityHistograms:
    """Histograms of the similarities between two views of a data set, by kind of pair.

    Both views are (n, dim), their rows i of one sample, of class ``labels[i]``.
    """
    if view1.shape != view2.shape:
        shapes = f"{tuple(view1.shape)} and {tuple(view2.shape)}"
        raise ValueError(f"both views must have one shape, got {shapes}")
    _check_labels(view1, labels)
    z1 = unit_vectors(view1)
    z2 = unit_vectors(view2)
    counts = torch.zeros(3, bins, dtype=torch.int64, device=z1.device)
    for rows in torch.split(torch.arange(len(z1), device=z1.device), BLOCK):
        similarity = z1[rows] @ z2.T  # (block, n)
        kind = 2 - (labels[rows, None] == labels).long()  # 1 for one class, 2 for different classes
        kind[torch.arange(len(rows)), rows] = 0
        place = ((similarity + 1) * (bins / 2)).long().clamp(0, bins - 1) + bins * kind
        counts += torch.bincount(place.flatten(), minlength=3 * bins).view(3, bins)
    return SimilarityHistograms(torch.linspace(-1, 1, bins + 1), *counts.cpu())


def _check_labels(x: Tensor, labels: Tensor) -> None:
    if x.ndim != 2 or labels.shape != x.shape[:1]:
        shapes = f"{tuple(labels.shape)} for {tuple(x.shape)} embeddings"
        raise ValueError(f"labels must hold one class a row: {shapes}")


def _class_sums(x: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of the unit vectors of each class present, (classes, dim) in fp64, and the classes'
    sizes, (classes,).
    """
    _check_labels(x, labels)
    _, place, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    sums = torch.zeros(len(counts), x.shape[1], dtype=torch.float64, device=x.device)
    return sums.index_add_(0, place, unit_vectors(x).double()), counts
