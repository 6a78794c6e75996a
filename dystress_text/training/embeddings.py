"""The embeddings of a batch, from which a task computes its loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from torch import Tensor


@dataclass(frozen=True)
class Embeddings:
    """The views of a batch. A subclass adds the other inputs of its loss: tensors, tuples of tensors, or None.

    Attributes:
        views: the embeddings, one tensor (n, dim) per view.
    """

    views: tuple[Tensor, ...]

    def tensors(self) -> list[Tensor]:
        """All tensors, field by field."""
        return [tensor for entry in fields(self) for tensor in _tensors_of(getattr(self, entry.name))]

    def with_tensors(self, tensors: Sequence[Tensor]) -> Self:
        """A copy with other tensors, in the order of :meth:`tensors`."""
        remaining = iter(tensors)
        changes: dict[str, Any] = {}
        for entry in fields(self):
            value = getattr(self, entry.name)
            if isinstance(value, tuple):
                changes[entry.name] = tuple(next(remaining) for _ in value)
            elif value is not None:
                changes[entry.name] = next(remaining)
        return replace(self, **changes)


def concatenated(chunks: Sequence[Embeddings]) -> list[Tensor]:
    """The tensors of a batch, concatenated over its chunks along the first dimension."""
    return [torch.cat(pieces) for pieces in zip(*(chunk.tensors() for chunk in chunks), strict=True)]


def _tensors_of(value: Tensor | tuple[Tensor, ...] | None) -> tuple[Tensor, ...]:
    return () if value is None else value if isinstance(value, tuple) else (value,)
