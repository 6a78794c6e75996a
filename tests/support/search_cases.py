"""Shared by the tests of search and of the demo."""

from __future__ import annotations

import numpy as np

from dystress_text.encoders.encoder import load_encoder


class Drawn:
    """Stands in for a model: draws each text's vector from its bytes."""

    def __init__(self, dim=16, seed=0, levels=None):
        self.dim, self.seed, self.levels, self.asked = dim, seed, levels, []

    def encode(self, sentences, /, *, batch_size, show_progress_bar):
        self.asked.append(len(sentences))
        rows = [np.random.default_rng([self.seed, *s.encode()]).standard_normal(self.dim) for s in sentences]
        vectors = np.array(rows, dtype=np.float32) * 3
        return np.round(vectors * self.levels) if self.levels else vectors


def saved_model(source, folder, pooler="avg"):
    """A sentence-transformers folder."""
    encoder, tokenizer = load_encoder(str(source), pooler)
    encoder.save(folder, tokenizer)
    return folder


def unit(vectors):
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
