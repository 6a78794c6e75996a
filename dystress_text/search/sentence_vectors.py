"""Unit vectors of sentences, from any model that encodes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch

from dystress_text.cli.progress import progress_bar
from dystress_text.errors import UserError
from dystress_text.search.stored_vectors import Float32

CHUNK = 10_000  # sentences encoded at a time


class Encoder(Protocol):
    """A ``SentenceTransformer``, or any object with its ``encode``."""

    def encode(self, sentences: list[str], /, *, batch_size: int, show_progress_bar: bool) -> Any:
        """Vectors of sentences, (n, dim)."""


def unit_vectors(model: Encoder, sentences: list[str], batch_size: int) -> Float32:
    """Vectors of length 1, (n, dim), fp32; a zero vector stays zero.

    Raises:
        UserError: the model's output has another shape, or entries that are not finite.
    """
    encoded = model.encode(sentences, batch_size=batch_size, show_progress_bar=False)
    vectors = np.asarray(encoded.float().cpu() if isinstance(encoded, torch.Tensor) else encoded, dtype=np.float32)
    if vectors.ndim != 2 or len(vectors) != len(sentences):
        raise UserError(f"the model gives an array of shape {vectors.shape} for {len(sentences)} sentences")
    if not np.isfinite(vectors).all():
        raise UserError("the model gives vectors with NaN or infinite entries")
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    unit: Float32 = (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)
    return unit


def encoded(
    model: Encoder, sentences: Iterable[str], batch_size: int, progress: bool
) -> Iterator[tuple[list[str], Float32]]:
    """Sentences and their unit vectors, ``CHUNK`` at a time; memory holds no more than that.

    Raises:
        UserError: there is no sentence, or one text in place of many; see also :func:`unit_vectors`.
    """
    if isinstance(sentences, str):
        raise UserError("a list of sentences is needed, got one text" if sentences else "no sentences to index")
    rest, some = iter(sentences), False
    total = len(sentences) if isinstance(sentences, Sized) else None
    with progress_bar(None, progress, desc="encoding", unit=" sentences", total=total) as bar:
        while chunk := list(islice(rest, CHUNK)):
            some = True
            yield chunk, unit_vectors(model, chunk, batch_size)
            bar.update(len(chunk))
    if not some:
        raise UserError("no sentences to index")
