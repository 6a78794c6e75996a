"""k nearest neighbours on features: weighted by similarity as in the paper, or by Euclidean distance.

Votes are scores (queries, classes). Their argmax is the prediction; on a tie the lower class number wins.
Neighbours are found in blocks of queries and of the bank, so that memory does not grow with the product of their sizes.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import torch
from torch import Tensor

from dystress_text.core.vectors import unit_vectors
from dystress_text.errors import UserError

QUERIES, BANK = 512, 32_768  # rows in a block: 16 M products at a time

Weights = Literal["distance", "uniform"]
WEIGHTS: tuple[Weights, ...] = get_args(Weights)


def cosine_votes(
    bank: Tensor, bank_labels: Tensor, queries: Tensor, classes: int, k: int = 200, temperature: float = 0.1
) -> Tensor:
    """Votes of the k most similar features, each weighing ``exp(s / temperature)`` (Wu et al., 2018).

    Args:
        bank: (n, dim) features, of any length.
        bank_labels: (n,) classes.
        queries: (m, dim).
        classes: their number.
        k: neighbours.
        temperature: the paper's 0.1.

    Returns:
        (m, classes), relative to the weight of the nearest neighbour, so that they cannot overflow.

    Raises:
        UserError: ``k`` is not within the bank, or the temperature is not positive and finite.
    """
    if not 0 < temperature < math.inf:
        raise UserError(f"--knn_temperature: must be above 0, got {temperature:g}")
    similarity, place = _nearest(unit_vectors(bank), unit_vectors(queries), k, "--k")
    return _count(((similarity - similarity[:, :1]) / temperature).exp(), bank_labels[place], classes)


def l2_votes(
    bank: Tensor, bank_labels: Tensor, queries: Tensor, classes: int, k: int = 1, weights: Weights = "distance"
) -> Tensor:
    """Votes of the k features at the least Euclidean distance, as scikit-learn's KNeighborsClassifier counts them.

    Args:
        bank: (n, dim) features; their length counts.
        bank_labels: (n,) classes.
        queries: (m, dim).
        classes: their number.
        k: neighbours.
        weights: ``distance`` weighs by inverse distance (exact matches, if any, are the only ones that count),
            ``uniform`` counts each as one.

    Returns:
        (m, classes).

    Raises:
        UserError: ``k`` is not within the bank.
    """
    # in fp64, as products of close vectors cancel
    norms = torch.linalg.vector_norm(bank, dim=1, dtype=torch.float64).square()
    _, place = _nearest(bank, queries, k, "--l2_k", -norms / 2)
    if weights == "uniform":
        return _count(torch.ones_like(place, dtype=torch.float64), bank_labels[place], classes)
    votes = [
        _count(_inverse_distances(bank[near], rows), bank_labels[near], classes)
        for near, rows in zip(torch.split(place, QUERIES), torch.split(queries, QUERIES), strict=True)
    ]
    return torch.cat(votes)


def check_neighbours(k: int, bank: int, option: str = "--k") -> None:
    """Refuse a number of neighbours that the bank does not have.

    Raises:
        UserError: ``k`` is not within 1 and ``bank``.
    """
    if not 1 <= k <= bank:
        raise UserError(f"{option}: {k} neighbours of a bank of {bank:,} images; give 1 to {bank:,}")


def _nearest(bank: Tensor, queries: Tensor, k: int, option: str, offset: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The k highest products (plus ``offset`` (n,), in its precision) of each query: values and places, (m, k)."""
    check_neighbours(k, len(bank), option)
    dtype = bank.dtype if offset is None else offset.dtype
    values, places = [], []
    for rows in torch.split(queries.to(dtype), QUERIES):
        best = rows.new_empty(len(rows), 0)
        place = torch.empty(len(rows), 0, dtype=torch.int64, device=rows.device)
        for start in range(0, len(bank), BANK):
            products = rows @ bank[start : start + BANK].to(dtype).T  # (QUERIES, BANK)
            if offset is not None:
                products += offset[start : start + BANK]
            value, column = products.topk(min(k, products.shape[1]), dim=1)
            best, chosen = torch.cat([best, value], 1).topk(min(k, best.shape[1] + value.shape[1]), dim=1)
            place = torch.cat([place, column + start], 1).gather(1, chosen)
        values.append(best)
        places.append(place)
    return torch.cat(values), torch.cat(places)


def _inverse_distances(neighbours: Tensor, queries: Tensor) -> Tensor:
    """Weights of neighbours (m, k, dim) of queries (m, dim): (m, k) in fp64."""
    distance = torch.linalg.vector_norm(neighbours.double() - queries.double()[:, None], dim=2)
    exact = distance == 0
    return torch.where(exact.any(1, keepdim=True), exact.double(), 1 / distance)


def _count(weights: Tensor, labels: Tensor, classes: int) -> Tensor:
    """Sums of weights (m, k) by label (m, k): (m, classes)."""
    return weights.new_zeros(len(weights), classes).scatter_add_(1, labels, weights)
