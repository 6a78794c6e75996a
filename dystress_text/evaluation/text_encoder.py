"""Load models for evaluation; embed sentences, queries and documents with them."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Iterator, Sequence
from copy import copy
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense
from torch import Tensor, nn

from dystress_text.errors import ParameterError
from dystress_text.evaluation.lexical import LexicalBaseline
from dystress_text.evaluation.ranking import ranked, with_bm25
from dystress_text.evaluation.sts import pair_similarities
from dystress_text.io.paths import model_path
from dystress_text.models.encoding import Role, encode
from dystress_text.models.hybrid import dense_columns
from dystress_text.models.loading import (
    PretrainedEncoder,
    check_sentence_transformer,
    load_encoder,
    load_sentence_transformer,
    prompts_of,
    readable,
)
from dystress_text.models.poolers import pooling_modules
from dystress_text.training.accelerator import single_process_device

DOCUMENTS_AT_ONCE = 50_000  # converted to fp64
SIMILARITIES_AT_ONCE = 2**26  # 512 MB in fp64
OWN_POOLER = "pooler"  # the encoder's pooler_output; cls in SimCSE's evaluation.py


class TextEncoder:
    """Embed sentences, queries and documents for evaluation.

    Args:
        model: the model, on any device and in any mode; neither changes.
        progress: whether to show bars.
    """

    def __init__(self, model: SentenceTransformer, progress: bool = False) -> None:
        self.model = model
        self.progress = progress
        self.dimensions: int | None = None  # the first ones, which are used; None for all
        self.lexical: LexicalBaseline | None = None  # adds BM25 scores in search
        self._kept = lru_cache(maxsize=2)(self._vectors)  # for both sides; copies share it

    def with_bm25(self, lexical: LexicalBaseline) -> TextEncoder:
        """Return an encoder with the same vectors whose search also uses BM25."""
        fused = copy(self)
        fused.lexical = lexical
        return fused

    @property
    def dense(self) -> TextEncoder | None:
        """The dense model of a hybrid, which reuses the hybrid's vectors; None for other models."""
        dimensions = dense_columns(self.model)
        if dimensions is None:
            return None
        dense = copy(self)
        dense.dimensions = dimensions
        return dense

    def __call__(self, sentences: Sequence[str]) -> Tensor:
        """Return embeddings for SentEval's classifiers, (sentences, dim), in fp32 on the CPU.

        A final ``Normalize`` of the model is left out.
        """
        return self._encode(sentences, normalize=False)

    def similarities(
        self, first: Sequence[str], second: Sequence[str], name: str | None = None
    ) -> NDArray[np.float64]:
        """Return the similarity of each pair, (pairs,), computed in fp64.

        Args:
            first: the first text of each pair.
            second: the second text of each pair.
            name: a similarity function of sentence-transformers; None for the model's own.
        """
        own = self.model.similarity_fn_name
        return pair_similarities(self._encode(first), self._encode(second), name or own)

    def search(
        self, queries: Sequence[str], documents: Sequence[str], most: int
    ) -> Iterator[list[tuple[int, float]]]:
        """Yield, for each query, the indices and similarities of the nearest documents.

        Similarities are those of the model, in fp64, or with BM25 those of :func:`with_bm25`.

        Args:
            queries: texts.
            documents: texts.
            most: the number of documents to return for a query.

        Raises:
            DataError: no document has a word for BM25.
        """
        lexical = self.lexical
        bm25 = None if lexical is None else iter(lexical.scores(queries, documents))
        parts = torch.split(self._encode(documents, "document"), DOCUMENTS_AT_ONCE)
        queries_at_once = max(1, SIMILARITIES_AT_ONCE // len(documents))
        for block in torch.split(self._encode(queries, "query"), queries_at_once):
            by_part = [self.model.similarity(block.double(), part.double()) for part in parts]
            for scores in torch.cat(by_part, 1).numpy():  # (documents,)
                if bm25 is not None:
                    scores = with_bm25(scores, next(bm25))
                yield [(i, float(scores[i])) for i in ranked(scores, most)]

    def _encode(self, texts: Sequence[str], role: Role = "", normalize: bool = True) -> Tensor:
        return self._kept(tuple(texts), role, normalize)[:, : self.dimensions]

    def _vectors(self, texts: Sequence[str], role: Role, normalize: bool) -> Tensor:
        with readable("the model", "encode with"):
            embeddings = encode(self.model, texts, role, self.progress, normalize).cpu()
        if not embeddings.isfinite().all():
            raise ParameterError(
                "model", "its embeddings are not finite, so no score can be computed"
            )
        return embeddings


Encoder = TextEncoder | LexicalBaseline


def load_model(model: str, pooler_type: str | None) -> tuple[TextEncoder, dict[str, Any]]:
    """Load a model for evaluation.

    Args:
        model: a folder or a hub name.
        pooler_type: how to pool a Hugging Face encoder; None for a sentence-transformers model.

    Returns:
        The encoder, and metadata for result lines.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # weights missing from a file are drawn at random
        if pooler_type is None:
            check_sentence_transformer(model_path(model))
            loaded = load_sentence_transformer(model_path(model))
        else:
            loaded = with_pooler(load_encoder(model_path(model)), pooler_type)
    return describe_model(loaded.to(single_process_device()), model, pooler_type)


def describe_model(
    loaded: SentenceTransformer, name: str, pooler_type: str | None = None
) -> tuple[TextEncoder, dict[str, Any]]:
    """Return the encoder of a loaded model, and metadata for result lines."""
    digest = hashlib.sha256()
    for tensor in loaded.state_dict().values():
        digest.update(tensor.cpu().flatten().view(torch.uint8).numpy())
    limit = loaded.max_seq_length
    similarity = loaded.similarity_fn_name
    prompts = None
    if any(loaded.prompts.values()) or similarity != "cosine":
        prompts = {**prompts_of(loaded), "similarity_fn_name": similarity}
    metadata = {
        "model": name,
        "pooler_type": pooler_type,
        "max_seq_length": None if limit is None or math.isinf(limit) else int(limit),
        "weights": digest.hexdigest(),
        "prompts": prompts,
        "similarity": similarity,
        "truncate_dim": loaded.truncate_dim,
    }
    return TextEncoder(loaded, progress=True), metadata


def with_pooler(encoder: PretrainedEncoder, pooler: str) -> SentenceTransformer:
    """Add a pooler of this package, without a head, or the encoder's own pooler."""
    if pooler != OWN_POOLER:
        if encoder.is_simcse:
            reason = f"{pooler} leaves out the MLP of {encoder.name!r}; {OWN_POOLER} keeps it"
            warnings.warn(f"pooler_type: {reason}", stacklevel=2)
        modules = [encoder.module, *pooling_modules(pooler, encoder.module)]
        return SentenceTransformer(modules=modules, device="cpu")
    if encoder.pooler is None:
        reason = f"{encoder.name!r} has no pooler of its own (dense + tanh)"
        raise ParameterError("pooler_type", f"{reason}; use another, such as avg")
    dense = Dense(
        encoder.transformer.config.hidden_size,
        encoder.pooler.out_features,
        activation_function=nn.Tanh(),
        init_weight=encoder.pooler.weight.detach(),
        init_bias=encoder.pooler.bias.detach(),
    )
    modules = [encoder.module, *pooling_modules("cls", encoder.module), dense]
    return SentenceTransformer(modules=modules, device="cpu")
