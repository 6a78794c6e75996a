"""Load models for evaluation, and embed texts, queries and documents."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer, SimilarityFunction
from sentence_transformers.sentence_transformer.modules import Dense
from torch import Tensor, nn

from dystress_text.errors import ParameterError, UserError
from dystress_text.io.paths import model_path
from dystress_text.losses.vectors import positive_similarity, unit_vectors
from dystress_text.models.embedder import Role, encode, without_normalization
from dystress_text.models.loading import (
    PretrainedEncoder,
    check_sentence_transformer,
    load_encoder,
    load_sentence_transformer,
    position_limit,
    prompts_of,
    readable,
)
from dystress_text.models.poolers import pooling_modules
from dystress_text.training.accelerator import single_process_device

OWN_POOLER = "pooler"  # the encoder's pooler_output; cls in SimCSE's evaluation.py
QUERIES_AT_ONCE = 64  # bounds the memory of similarities with all documents
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class TextEncoder:
    """Embed sentences, queries and documents for evaluation.

    A final ``Normalize`` is left out: SentEval's classifiers are fitted on embeddings before it,
    and a cosine does not depend on it.

    Attributes:
        model: without a final ``Normalize``.
        dtype: of the matrix products.
        progress: whether to show bars.
    """

    model: SentenceTransformer
    dtype: torch.dtype = torch.float32
    progress: bool = False

    @classmethod
    def of(
        cls,
        model: SentenceTransformer,
        dtype: torch.dtype = torch.float32,
        progress: bool = False,
    ) -> TextEncoder:
        """Return the encoder of a model, without its final ``Normalize``."""
        return cls(without_normalization(model), dtype, progress)

    @property
    def similarity(self) -> str:
        """The model's similarity of a query and a document."""
        return str(self.model.similarity_fn_name)

    def __call__(self, sentences: Sequence[str]) -> Tensor:
        """Return embeddings (sentences, dim) in fp32 on the CPU, where classifiers are fitted."""
        return self._encode(sentences).cpu()

    def query(self, queries: Sequence[str]) -> Tensor:
        """Return embeddings of queries, with the model's prompt for them, on its device."""
        return self._encode(queries, "query")

    def document(self, documents: Sequence[str]) -> Tensor:
        """Return embeddings of documents, with the model's prompt for them, on its device."""
        return self._encode(documents, "document")

    def cosines(self, first: Sequence[str], second: Sequence[str]) -> NDArray[np.float64]:
        """Return the cosine of each pair, (pairs,), computed in fp64."""
        a = unit_vectors(self(first).double())  # (pairs, dim)
        b = unit_vectors(self(second).double())
        return positive_similarity(a, b).numpy()

    def search(
        self, queries: Sequence[str], documents: Sequence[str], most: int
    ) -> list[list[tuple[int, float]]]:
        """Return indices and similarities of each query's nearest documents, in no order.

        Args:
            queries: texts.
            documents: texts.
            most: number of documents; ties with the last one are added.
        """
        similarity = SimilarityFunction.to_similarity_fn(self.similarity)
        targets = self.document(documents)  # (documents, dim)
        count = min(most, len(targets))
        hits = []
        for batch in torch.split(self.query(queries), QUERIES_AT_ONCE):
            for row in similarity(batch, targets):  # (documents,)
                nearest = (row >= row.topk(count).values[-1]).nonzero().flatten()
                hits.append(list(zip(nearest.tolist(), row[nearest].tolist(), strict=True)))
        return hits

    def _encode(self, texts: Sequence[str], role: Role = "") -> Tensor:
        what = "encode with"
        if not all(text.strip() for text in texts):
            what = "encode texts of which one is empty with"
        with readable("the model", what):
            embeddings = encode(self.model, texts, role, self.dtype, self.progress)
        check_embeddings(embeddings)
        return embeddings


def check_embeddings(embeddings: Tensor) -> None:
    """Refuse embeddings (n, dim) that are not finite, or the same for all texts."""
    if not embeddings.isfinite().all():
        raise ParameterError("model", "its vectors are not finite; scores would mean nothing")
    if len(embeddings) > 1 and (embeddings == embeddings[0]).all():
        raise ParameterError("model", "all its vectors are equal; scores would mean nothing")


def load_model(
    model: str, pooler_type: str | None, dtype: str = "fp32"
) -> tuple[TextEncoder, dict[str, Any]]:
    """Load a model for evaluation.

    Args:
        model: folder or hub name.
        pooler_type: for a Hugging Face encoder; None for a sentence-transformers model.
        dtype: of :data:`DTYPES`.

    Returns:
        The encoder, and metadata for result lines.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # weights missing from a file are drawn at random
        if pooler_type is None:
            loaded = _load_sentence_transformer(model_path(model))
        else:
            loaded = with_pooler(load_encoder(model_path(model)), pooler_type)
    return prepare(loaded.to(single_process_device()), model, pooler_type, dtype)


def prepare(
    loaded: SentenceTransformer, name: str, pooler_type: str | None = None, dtype: str = "fp32"
) -> tuple[TextEncoder, dict[str, Any]]:
    """Return the encoder of a loaded model, on its device, and metadata for result lines."""
    digest = hashlib.sha256()
    for tensor in loaded.state_dict().values():
        digest.update(tensor.cpu().flatten().view(torch.uint8).numpy())
    limit = loaded.max_seq_length
    metadata = {
        "model": name,
        "pooler_type": pooler_type,
        "max_seq_length": None if limit is None or math.isinf(limit) else int(limit),
        "dtype": dtype,
        "device": loaded.device.type,
        "weights": digest.hexdigest(),
        "prompts": metadata_of_prompts(loaded),
    }
    encoder = TextEncoder.of(loaded, DTYPES[dtype], progress=True)
    return encoder, metadata


def with_pooler(encoder: PretrainedEncoder, pooler: str) -> SentenceTransformer:
    """Return an encoder with a pooler and without a head, or with its own pooler."""
    if pooler != OWN_POOLER:
        if encoder.is_simcse:
            warnings.warn(
                f"{encoder.name!r} is a SimCSE checkpoint; the pooler {pooler} leaves out its MLP, "
                f"{OWN_POOLER} does not",
                stacklevel=3,
            )
        modules = [encoder.module, *pooling_modules(pooler, encoder.module)]
        return SentenceTransformer(modules=modules, device="cpu")
    if encoder.pooler is None:
        raise ParameterError(
            "pooler_type", f"{encoder.name!r} has no weights of a pooler of dense + tanh"
        )
    dim = encoder.transformer.config.hidden_size
    dense = Dense(
        dim,
        encoder.pooler.out_features,
        activation_function=nn.Tanh(),
        init_weight=encoder.pooler.weight.detach(),
        init_bias=encoder.pooler.bias.detach(),
    )
    modules = [encoder.module, *pooling_modules("cls", encoder.module), dense]
    return SentenceTransformer(modules=modules, device="cpu")


def metadata_of_prompts(model: SentenceTransformer) -> dict[str, Any] | None:
    """Return a model's prompts and similarity; None without prompts and with cosine."""
    if not any(model.prompts.values()) and model.similarity_fn_name == "cosine":
        return None
    return {**prompts_of(model), "similarity_fn_name": model.similarity_fn_name}


def _load_sentence_transformer(name: str) -> SentenceTransformer:
    check_sentence_transformer(name)
    model = load_sentence_transformer(name)
    with readable(name):  # some errors in a configuration appear only in the forward pass
        embeddings = encode(model, ["One sentence."], "document")
        if embeddings.ndim != 2:
            raise UserError(f"{name!r} does not give one vector a sentence")
    transformer = model.transformers_model
    limit = model.max_seq_length
    if transformer is not None and limit is not None and limit < position_limit(transformer):
        warnings.warn(
            f"{name!r} cuts sentences at {limit} tokens, its encoder reads "
            f"{position_limit(transformer)}; the protocol does not cut",
            stacklevel=3,
        )
    return model
