"""Load models for evaluation, and embed texts, queries and documents."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer, SimilarityFunction
from sentence_transformers.sentence_transformer.modules import Dense
from sentence_transformers.util import semantic_search
from torch import Tensor, nn

from dystress_text.errors import ParameterError
from dystress_text.io.paths import model_path
from dystress_text.losses.vectors import positive_similarity, unit_vectors
from dystress_text.models.embedder import Role, encode, without_normalization
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

OWN_POOLER = "pooler"  # the encoder's pooler_output; cls in SimCSE's evaluation.py


class TextEncoder:
    """Embed sentences, queries and documents for evaluation.

    A final ``Normalize`` is left out: SentEval's classifiers are fitted on embeddings before it,
    and a cosine does not depend on it.

    Args:
        model: on any device.
        progress: whether to show bars.
    """

    def __init__(self, model: SentenceTransformer, progress: bool = False) -> None:
        self.model = without_normalization(model)
        self.progress = progress

    def __call__(self, sentences: Sequence[str]) -> Tensor:
        """Return embeddings (sentences, dim) in fp32 on the CPU, where classifiers are fitted."""
        return self._encode(sentences).cpu()

    def cosines(self, first: Sequence[str], second: Sequence[str]) -> NDArray[np.float64]:
        """Return the cosine of each pair, (pairs,), computed in fp64."""
        a = unit_vectors(self(first).double())  # (pairs, dim)
        b = unit_vectors(self(second).double())
        return positive_similarity(a, b).numpy()

    def search(
        self, queries: Sequence[str], documents: Sequence[str], most: int
    ) -> list[list[tuple[int, float]]]:
        """Return indices and similarities of each query's nearest documents, nearest first.

        Args:
            queries: texts.
            documents: texts.
            most: number of documents.
        """
        found = semantic_search(
            self._encode(queries, "query"),
            self._encode(documents, "document"),
            top_k=most,
            score_function=SimilarityFunction.to_similarity_fn(self.model.similarity_fn_name),
        )
        return [[(int(hit["corpus_id"]), hit["score"]) for hit in hits] for hits in found]

    def _encode(self, texts: Sequence[str], role: Role = "") -> Tensor:
        with readable("the model", "encode with"):
            embeddings = encode(self.model, texts, role, progress=self.progress)
        if not embeddings.isfinite().all():
            raise ParameterError(
                "model", "its embeddings are not finite, so no score can be computed"
            )
        return embeddings


def load_model(model: str, pooler_type: str | None) -> tuple[TextEncoder, dict[str, Any]]:
    """Load a model for evaluation.

    Args:
        model: folder or hub name.
        pooler_type: for a Hugging Face encoder; None for a sentence-transformers model.

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
    return prepare(loaded.to(single_process_device()), model, pooler_type)


def prepare(
    loaded: SentenceTransformer, name: str, pooler_type: str | None = None
) -> tuple[TextEncoder, dict[str, Any]]:
    """Return the encoder of a loaded model, on its device, and metadata for result lines."""
    digest = hashlib.sha256()
    for tensor in loaded.state_dict().values():
        digest.update(tensor.cpu().flatten().view(torch.uint8).numpy())
    limit = loaded.max_seq_length
    prompts = None
    if any(loaded.prompts.values()) or loaded.similarity_fn_name != "cosine":
        prompts = {**prompts_of(loaded), "similarity_fn_name": loaded.similarity_fn_name}
    metadata = {
        "model": name,
        "pooler_type": pooler_type,
        "max_seq_length": None if limit is None or math.isinf(limit) else int(limit),
        "device": loaded.device.type,
        "weights": digest.hexdigest(),
        "prompts": prompts,
    }
    return TextEncoder(loaded, progress=True), metadata


def with_pooler(encoder: PretrainedEncoder, pooler: str) -> SentenceTransformer:
    """Return an encoder with a pooler and without a head, or with its own pooler."""
    if pooler != OWN_POOLER:
        if encoder.is_simcse:
            reason = f"{pooler} leaves out the MLP of {encoder.name!r}; {OWN_POOLER} keeps it"
            warnings.warn(f"pooler_type: {reason}", stacklevel=2)
        modules = [encoder.module, *pooling_modules(pooler, encoder.module)]
        return SentenceTransformer(modules=modules, device="cpu")
    if encoder.pooler is None:
        reason = f"{encoder.name!r} has no weights of a pooler of dense + tanh"
        raise ParameterError("pooler_type", reason)
    dense = Dense(
        encoder.transformer.config.hidden_size,
        encoder.pooler.out_features,
        activation_function=nn.Tanh(),
        init_weight=encoder.pooler.weight.detach(),
        init_bias=encoder.pooler.bias.detach(),
    )
    modules = [encoder.module, *pooling_modules("cls", encoder.module), dense]
    return SentenceTransformer(modules=modules, device="cpu")
