"""k nearest neighbours on features, weighted by cosine similarity.

Votes are scores (queries, classes), and their argmax is the prediction; the lower label wins a tie.
Neighbours are found for blocks of queries, so that memory does not grow with the number of queries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from dystress_text.losses.vectors import unit_vectors
from dystress_text.training.run_record import Metric
from vision.data.images import ImageSet
from vision.evaluation.features import image_features
from vision.resnet import ImageEncoder

PRODUCTS = 2**24  # similarities that are computed at a time
TEMPERATURE = 0.1  # of the votes; the paper names none


@dataclass(frozen=True)
class Accuracy:
    """Shares of images x 100 whose class is ranked first, or among the first five."""

    top1: float
    top5: float | None  # None for five classes or fewer, or fewer than five neighbours

    @classmethod
    def of(cls, scores: Tensor, labels: Tensor) -> Accuracy:
        """Return the accuracy of scores (n, classes) with labels (n,).

        A class with a score of -inf does not count as predicted.
        """
        ranked = scores.sort(dim=1, descending=True, stable=True)
        right = ranked.indices[:, :5] == labels.to(scores.device)[:, None]  # (n, 5 at most)
        right &= ranked.values[:, :5] > -math.inf
        top1 = 100 * right[:, 0].double().mean().item()
        if scores.shape[1] <= 5:
            return cls(top1, None)
        top5 = 100 * right.any(1).double().mean().item()
        return cls(top1, top5)


def figures_of(scores: Tensor, labels: Tensor, classes: Sequence[str]) -> dict[str, Any]:
    """Return the accuracy of scores (n, classes) with labels (n,), in all and ``by_class``."""
    predicted = scores.argmax(1)
    return {
        **asdict(Accuracy.of(scores, labels)),
        "by_class": accuracy_by_class(predicted, labels, classes),
    }


def accuracy_by_class(
    predicted: Tensor, labels: Tensor, classes: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Return the top-1 accuracy x 100, and the number of images, of each class that has any.

    Args:
        predicted: labels, (n,).
        labels: the true ones, (n,).
        classes: names, by label.
    """
    labels = labels.to(predicted.device)
    counts = torch.bincount(labels, minlength=len(classes))
    right = torch.bincount(labels[predicted == labels], minlength=len(classes))
    by_class = {}
    for name, hits, images in zip(classes, right.tolist(), counts.tolist(), strict=True):
        if images:
            by_class[name] = {"top1": 100 * hits / images, "images": images}
    return by_class


def cosine_votes(
    bank: Tensor, bank_labels: Tensor, queries: Tensor, classes: int, k: int = 200
) -> Tensor:
    """Return votes (m, classes) of the k most similar features, each weighing ``exp(s / 0.1)``.

    They are relative to the weight of the nearest neighbour, so that they cannot overflow.

    Args:
        bank: features (n, dim), of any length.
        bank_labels: their classes, (n,).
        queries: features (m, dim), of any length.
        classes: number of classes.
        k: number of neighbours.
    """
    similarity, nearest = _nearest(unit_vectors(bank), unit_vectors(queries), k)  # (m, k)
    highest = similarity[:, :1]
    weights = ((similarity - highest) / TEMPERATURE).exp()
    votes = weights.new_zeros(len(queries), classes)
    return votes.scatter_add_(1, bank_labels[nearest], weights)


def _nearest(bank: Tensor, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Return values and indices of the k highest products of each query, (m, k)."""
    at_once = max(1, PRODUCTS // len(bank))
    values = []
    indices = []
    for rows in torch.split(queries, at_once):
        nearest = (rows @ bank.T).topk(k, dim=1)
        values.append(nearest.values)
        indices.append(nearest.indices)
    return torch.cat(values), torch.cat(indices)


@dataclass(frozen=True, eq=False)
class OnlineKnn:
    """Measure the kNN accuracy of an encoder while it trains."""

    bank: ImageSet  # training images, whose labels vote
    queries: ImageSet  # labelled test images
    k: int
    batch_size: int  # images that are encoded at a time

    @property
    def metric(self) -> Metric:
        """Return the accuracy, such as ``knn200``."""
        return Metric(f"knn{self.k}", title=f"accuracy x 100 of {self.k} nearest neighbours")

    @property
    def description(self) -> str:
        return (
            f"kNN while training ({self.metric.name}): {len(self.bank):,} training images vote on "
            f"{len(self.queries):,} test images"
        )

    def __call__(self, encoder: ImageEncoder) -> dict[str, float]:
        known = image_features(encoder, self.bank, self.batch_size)
        asked = image_features(encoder, self.queries, self.batch_size)
        labels = self.bank.targets.to(known.device)
        votes = cosine_votes(known, labels, asked, len(self.bank.classes), self.k)
        return {self.metric.name: Accuracy.of(votes, self.queries.targets).top1}
