"""An objective at several dimensions of the same vectors (Kusupati et al., NeurIPS 2022)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from dystress_text.core.objectives import ContrastiveLoss


def matryoshka(objective: ContrastiveLoss, views: Sequence[Tensor], dims: Sequence[int], **inputs: Any) -> Tensor:
    """The sum of the objective's losses on the first d dimensions, for each d; as ``MatryoshkaLoss`` with its defaults.

    Pairs are counted and observed at the most dimensions alone. A temperature that follows the batch's similarities
    follows those of each truncation.

    Args:
        objective: any but one with a temperature for each sample, which would change several times a batch.
        views: (n, dim) each.
        dims: each at most dim.
        **inputs: of the objective beside the views.

    Raises:
        ValueError: a dimension is not there, or the objective's temperature has one for each sample.
    """
    if not dims or min(dims) < 1 or max(dims) > views[0].shape[1]:
        raise ValueError(f"dims must lie in [1, {views[0].shape[1]}], got {list(dims)}")
    if objective.temperature.by_sample:
        raise ValueError(
            f"{type(objective.temperature).__name__} has a state for each sample, which is for one loss a batch"
        )
    first, *others = sorted(dims, reverse=True)
    loss: Tensor = objective(*(view[:, :first] for view in views), **inputs)
    with _unobserved(objective):
        for dim in others:
            loss = loss + objective(*(view[:, :dim] for view in views), **inputs)
    return loss


@contextmanager
def _unobserved(objective: ContrastiveLoss) -> Iterator[None]:
    before = objective.observer, objective.duplicates, objective.guided
    objective.observer = None
    try:
        yield
    finally:
        objective.observer, objective.duplicates, objective.guided = before
