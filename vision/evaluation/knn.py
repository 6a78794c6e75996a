"""k nearest neighbours on features, weighted by cosine similarity.

Votes are scores (queries, classes), and their argmax is the prediction; the lower label wins a tie.
Neighbours are found for blocks of queries, so that memory does not grow with the number of queries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
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


def top_accuracy(scores: Tensor, labels: Tensor, k: int) -> float:
    """Return top-k accuracy x 100.

    Among equal scores the lower label ranks first; a class with a score of -inf is never predicted.

    Args:
        scores: (n, classes).
        labels: (n,).
        k: number of predictions; 1 for accuracy.
    """
    ranked = scores.sort(dim=1, descending=True, stable=True)
    right = ranked.indices[:, :k] == labels.to(scores.device)[:, None]  # (n, k)
    right &= ranked.values[:, :k] > -math.inf
    return 100 * right.any(1).double().mean().item()


def accuracies(scores: Tensor, labels: Tensor, classes: Sequence[str]) -> dict[str, Any]:
    """Return top-1 and top-5 accuracy x 100, and :func:`accuracy_by_class`.

    ``top5`` is None for five classes or fewer.

    Args:
        scores: (n, classes).
        labels: (n,).
        classes: names, by label.
    """
    return {
        "top1": top_accuracy(scores, labels, 1),
        "top5": top_accuracy(scores, labels, 5) if len(classes) > 5 else None,
        "by_class": accuracy_by_class(scores.argmax(1), labels, classes),
    }


def accuracy_by_class(
    predicted: Tensor, labels: Tensor, classes: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Map each class that has images to ``top1``, its accuracy x 100, and ``images``, the number.

    Args:
        predicted: labels, (n,).
        labels: the true ones, (n,).
        classes: names, by label.
    """
    labels = labels.to(predicted.device)
    by_class = {}
    for label, name in enumerate(classes):
        of_class = predicted[labels == label]
        if len(of_class):
            right = int((of_class == label).sum())
            by_class[name] = {"top1": 100 * right / len(of_class), "images": len(of_class)}
    return by_class


def cosine_votes(
    bank: Tensor, bank_labels: Tensor, queries: Tensor, classes: int, k: int
) -> Tensor:
    """Return votes (m, classes) of the k most similar features, weighted by ``exp(s / 0.1)``.

    They are relative to the weight of the nearest neighbour, so that they cannot overflow.

    Args:
        bank: features (n, dim), of any norm.
        bank_labels: their classes, (n,).
        queries: features (m, dim), of any norm.
        classes: number of classes.
        k: number of neighbours.
    """
    bank = unit_vectors(bank)
    queries = unit_vectors(queries)
    votes = queries.new_zeros(len(queries), classes)
    at_once = max(1, PRODUCTS // len(bank))
    blocks = zip(torch.split(queries, at_once), torch.split(votes, at_once), strict=True)
    for block, votes_of_block in blocks:
        similarity, nearest = (block @ bank.T).topk(k, dim=1)  # (b, k)
        weights = ((similarity - similarity[:, :1]) / TEMPERATURE).exp()
        votes_of_block.scatter_add_(1, bank_labels[nearest], weights)
    return votes


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
    def counts(self) -> dict[str, int]:
        """Return the numbers of images, for the record of a run."""
        return {"knn_bank": len(self.bank), "knn_queries": len(self.queries)}

    @property
    def description(self) -> str:
        return (
            f"kNN while training ({self.metric.name}): {len(self.bank):,} training images vote on "
            f"{len(self.queries):,} test images"
        )

    def __call__(self, encoder: ImageEncoder) -> dict[str, float]:
        bank = image_features(encoder, self.bank, self.batch_size)
        queries = image_features(encoder, self.queries, self.batch_size)
        labels = self.bank.targets.to(bank.device)
        votes = cosine_votes(bank, labels, queries, len(self.bank.classes), self.k)
        return {self.metric.name: top_accuracy(votes, self.queries.targets, 1)}
