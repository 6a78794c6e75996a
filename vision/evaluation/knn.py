"""k nearest neighbours on features, weighted by similarity as in the paper.

Votes are scores (queries, classes). Their argmax is the prediction; on a tie the lower class number
wins. Neighbours are found in blocks of queries and of the bank, so that memory does not grow with
the product of their sizes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from dystress_text.losses.vectors import unit_vectors
from vision.data.images import ImageSet
from vision.evaluation.features import image_features
from vision.resnet import ImageEncoder, ImageInput

QUERIES = 512  # rows in a block: 16 M products at a time
BANK = 32_768
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
        ranked = scores.sort(dim=1, descending=True, stable=True)
        right = ranked.indices[:, :5] == labels.to(scores.device)[:, None]  # (n, 5 at most)
        right &= ranked.values[:, :5] > above
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
    similarity, nearest = _nearest(unit_vectors(bank), unit_vectors(queries), k)  # (m, k)
    weights = ((similarity - similarity[:, :1]) / TEMPERATURE).exp()
    votes = weights.new_zeros(len(queries), classes)
    return votes.scatter_add_(1, bank_labels[nearest], weights)


def _nearest(bank: Tensor, queries: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k highest products of each query: values and indices, (m, k)."""
    values = []
    indices = []
    for rows in torch.split(queries, QUERIES):
        best = []  # of each block of the bank
        places = []
        for start in range(0, len(bank), BANK):
            products = rows @ bank[start : start + BANK].T  # (QUERIES, BANK)
            value, column = products.topk(min(k, products.shape[1]), dim=1)
            best.append(value)
            places.append(column + start)
        value, chosen = torch.cat(best, 1).topk(k, dim=1)
        values.append(value)
        indices.append(torch.cat(places, 1).gather(1, chosen))
    return torch.cat(values), torch.cat(indices)


@dataclass(frozen=True, eq=False)
class OnlineKnn:
    """The paper's kNN accuracy of an encoder while it trains, by its name, such as ``knn200``."""

    bank: ImageSet  # training images, whose labels vote
    queries: ImageSet  # test images with labels, on which they vote
    input: ImageInput
    k: int
    batch_size: int  # images that are encoded at a time

    def __call__(self, encoder: ImageEncoder) -> dict[str, float]:
        known = image_features(encoder, self.bank, self.input, self.batch_size)
        asked = image_features(encoder, self.queries, self.input, self.batch_size)
        labels = self.bank.targets.to(known.device)
        votes = cosine_votes(known, labels, asked, len(self.bank.classes), self.k)
        return {f"knn{self.k}": Accuracy.of(votes, self.queries.targets).top1}
