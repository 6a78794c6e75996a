"""k nearest neighbours on features: weighted by similarity as in the paper, or by Euclidean
distance.

Votes are scores (queries, classes). Their argmax is the prediction; on a tie the lower class number
wins. Neighbours are found in blocks of queries and of the bank, so that memory does not grow with
the product of their sizes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dystress_text.core.vectors import unit_vectors
from vision.data.images import ImageSet
from vision.evaluation.features import image_features
from vision.resnet import ImageEncoder, ImageInput

QUERIES, BANK = 512, 32_768  # rows in a block: 16 M products at a time
TEMPERATURE = 0.1  # the paper's


@dataclass(frozen=True)
class Accuracy:
    """Shares of images x 100 whose class is ranked first, or among the first five."""

    top1: float
    top5: float | None  # None for five classes or fewer

    @classmethod
    def of(cls, scores: Tensor, labels: Tensor, above: float = -math.inf) -> Accuracy:
        """Of scores (n, classes) and labels (n,); a class whose score is not ``above`` is no
        prediction.
        """
        values, ranked = (
            found[:, :5] for found in torch.sort(scores, dim=1, descending=True, stable=True)
        )
        right = (ranked == labels.to(scores.device)[:, None]) & (values > above)  # (n, 5 at most)
        top5 = 100 * right.any(1).double().mean().item() if scores.shape[1] > 5 else None
        return cls(100 * right[:, 0].double().mean().item(), top5)


def cosine_votes(
    bank: Tensor, bank_labels: Tensor, queries: Tensor, classes: int, k: int = 200
) -> Tensor:
    """Votes (m, classes) of the k most similar features, each weighing ``exp(s / 0.1)`` (Wu et al.,
    2018).

    Of a bank (n, dim) with labels (n,) on queries (m, dim), of any length. They are relative to the
    weight of the nearest neighbour, so that they cannot overflow.
    """
    similarity, place = _nearest(unit_vectors(bank), unit_vectors(queries), k)
    return _count(
        ((similarity - similarity[:, :1]) / TEMPERATURE).exp(), bank_labels[place], classes
    )


def l2_votes(
    bank: Tensor, bank_labels: Tensor, queries: Tensor, classes: int, numbers: Sequence[int]
) -> dict[int, Tensor]:
    """Votes of the features at the least Euclidean distance, each weighing its inverse, by the
    number of neighbours.

    scikit-learn's KNeighborsClassifier counts them so: exact matches, if any, are the only ones
    that count. Arguments are those of :func:`cosine_votes`, but the features' length matters.
    """
    # in fp64, as products of close vectors cancel
    norms = torch.linalg.vector_norm(bank, dim=1, dtype=torch.float64).square()
    _, place = _nearest(bank, queries, max(numbers), -norms / 2)
    distances = [
        torch.linalg.vector_norm(
            bank[near].double() - rows.double()[:, None], dim=2
        )  # of (QUERIES, k, dim)
        for near, rows in zip(
            torch.split(place, QUERIES), torch.split(queries, QUERIES), strict=True
        )
    ]
    distance, order = torch.cat(distances).sort(
        dim=1, stable=True
    )  # (m, k); products have rounding errors
    labels, exact = bank_labels[place.gather(1, order)], distance == 0
    weights = torch.where(exact.any(1, keepdim=True), exact.double(), 1 / distance)
    return {k: _count(weights[:, :k], labels[:, :k], classes) for k in numbers}


def _nearest(
    bank: Tensor, queries: Tensor, k: int, offset: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The k highest products (plus ``offset`` (n,), in its precision) of each query: values and
    places, (m, k).
    """
    dtype = bank.dtype if offset is None else offset.dtype
    values, places = [], []
    for rows in torch.split(queries.to(dtype), QUERIES):
        best, place = [], []  # of each block of the bank
        for start in range(0, len(bank), BANK):
            products = rows @ bank[start : start + BANK].to(dtype).T  # (QUERIES, BANK)
            if offset is not None:
                products += offset[start : start + BANK]
            value, column = products.topk(min(k, products.shape[1]), dim=1)
            best.append(value)
            place.append(column + start)
        value, chosen = torch.cat(best, 1).topk(k, dim=1)
        values.append(value)
        places.append(torch.cat(place, 1).gather(1, chosen))
    return torch.cat(values), torch.cat(places)


def _count(weights: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Sums of weights (m, k) by label (m, k): (m, classes)."""
    return weights.new_zeros(len(weights), classes).scatter_add_(1, labels, weights)


@dataclass(frozen=True, eq=False)
class OnlineKnn:
    """The paper's kNN accuracy of an encoder while it trains, by its name, such as ``knn200``."""

    bank: ImageSet  # training images, whose labels vote
    queries: ImageSet  # test images with labels, on which they vote
    input: ImageInput
    k: int

    def __call__(self, encoder: ImageEncoder) -> dict[str, float]:
        assert self.bank.labels is not None
        assert self.queries.labels is not None
        sets = self.bank, self.queries
        known, asked = (image_features(encoder, images, self.input) for images in sets)
        votes = cosine_votes(
            known, self.bank.labels.to(known.device), asked, len(self.bank.classes), self.k
        )
        return {f"knn{self.k}": Accuracy.of(votes, self.queries.labels).top1}
