"""Encoders under evaluation: loading them, and keeping their vectors so that each sentence is
encoded once.
"""

from __future__ import annotations

import hashlib
import math
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from dystress_text.encoders.encoder import SentenceEncoder, length_limit, position_limit
from dystress_text.encoders.loading import (
    build_encoder,
    check_loaded,
    is_sentence_transformer,
    load_pretrained,
    load_sentence_transformer,
    pooler_encoder,
    readable,
)
from dystress_text.encoders.saving import PROMPTS, prompt_of, prompts_of
from dystress_text.errors import ParameterError, UserError
from dystress_text.evaluation.sts import Embed
from dystress_text.files.hub import hub_reachable
from dystress_text.files.places import model_path
from dystress_text.training.accelerator import device_alone

OWN_POOLER = "pooler"  # the encoder's pooler_output, which SimCSE's evaluation.py calls cls
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Embedder:
    """What sentence-transformers' ``encode``, ``encode_query`` and ``encode_document`` give, and
    the similarity.

    The vectors are those before a ``Normalize`` at the end: on them SentEval's classifiers are
    fitted in the papers. To a cosine their length is nothing, and a dot product of vectors of
    length 1 is a cosine.
    """

    encode: Embed
    query: Embed
    document: Embed
    similarity: str

    def __call__(self, sentences: Sequence[str]) -> Tensor:
        return self.encode(sentences)


def prompted(encode: Embed, model: SentenceEncoder) -> Embedder:
    """An encoder's ``raw`` vectors, with the prompts before the texts that its configuration keeps."""
    transformer = model.transformer

    def way(role: str) -> Embed:
        return lambda sentences: encode(
            [prompt_of(transformer, role) + sentence for sentence in sentences]
        )

    similarity = getattr(transformer.config, PROMPTS, {}).get("similarity_fn_name", "cosine")
    return Embedder(
        way(""), way("query"), way("document"), "cosine" if model.normalize else similarity
    )


class EncodedOnce:
    """A function from sentences to vectors that encodes each distinct sentence once, and so as
    query and as document.

    The new sentences of a call are encoded by themselves, so the first caller gets bit for bit what
    the encoder alone would give.
    """

    def __init__(self, encode: Embed) -> None:
        self.encode = encode
        self._vectors: dict[str, Tensor] = {}
        self.query = self.document = self
        self.similarity = "cosine"
        if isinstance(encode, Embedder):
            self.query, self.document = EncodedOnce(encode.query), EncodedOnce(encode.document)
            self.similarity = encode.similarity

    def __call__(self, sentences: Sequence[str]) -> Tensor:
        """Vectors of sentences: (n, dim), fp32, on the device of the encoder's vectors."""
        new = [sentence for sentence in dict.fromkeys(sentences) if sentence not in self._vectors]
        if new:
            self._vectors.update(zip(new, self.encode(new).float(), strict=True))
        return torch.stack([self._vectors[sentence] for sentence in sentences])


def refusing_useless(encode: Embed) -> Embed:
    """The encoder with vectors on the CPU; infinite ones, or the same for all sentences, are
    refused.
    """

    def checked(sentences: Sequence[str]) -> Tensor:
        vectors = encode(sentences).float().cpu()
        if not vectors.isfinite().all():
            raise ParameterError(
                "model", "it gives NaN or infinite vectors; scores would mean nothing"
            )
        if len(vectors) > 1 and (vectors == vectors[0]).all():
            raise ParameterError(
                "model", "it gives the same vector for every sentence; scores would mean nothing"
            )
        return vectors

    return checked


def load_model(
    model: str, pooler_type: str | None, dtype: str = "fp32", batch_size: int = 64
) -> tuple[Embed, dict[str, Any]]:
    """Load an encoder, as a function from sentences to vectors and a description for the record.

    Without a ``pooler_type`` it is a sentence-transformers model; it and ``dtype`` are choices of
    ``SentEvalSettings``.
    """
    device = device_alone().type
    forward = DTYPES[dtype], batch_size, device
    embed: Embed
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # weights missing from a file are drawn at random
        if pooler_type is None:
            embed, module, limit = _load_sentence_transformer(model_path(model), *forward)
        else:
            embed, module, limit = _load_encoder(model_path(model), pooler_type, *forward)
    digest = hashlib.sha256()
    for tensor in module.state_dict().values():
        digest.update(tensor.cpu().flatten().view(torch.uint8).numpy())
    return embed, {
        "model": model, "pooler_type": pooler_type, "max_seq_length": limit, "dtype": dtype, "device": device,
        "weights": digest.hexdigest(), "prompts": (prompts_of(module) or None) if pooler_type is None else None,
    }  # fmt: skip


def check_complete(model: str) -> None:
    """Refuse what is no sentence-transformers model and needs a ``pooler_type``."""
    if not is_sentence_transformer(model_path(model)):
        offline = not Path(model_path(model)).is_dir() and not hub_reachable()
        where = (
            "no folder and, with the hub out of reach, not in its cache as a" if offline else "no"
        )
        raise ParameterError(
            "model",
            f"{model!r} is {where} sentence-transformers model; for an encoder alone give a pooler_type",
        )


def _load_encoder(
    model: str, pooler_type: str, dtype: torch.dtype, batch_size: int, device: str
) -> tuple[Embed, nn.Module, int | None]:
    pretrained = load_pretrained(model)
    tokenizer = pretrained.tokenizer
    if pooler_type == OWN_POOLER:
        encoder = pooler_encoder(pretrained)
    else:
        encoder = build_encoder(pretrained, pooler_type, mlp_head=False)
        if pretrained.simcse:
            warnings.warn(
                f"{model!r} is a SimCSE checkpoint; the pooler {pooler_type} leaves out its MLP, {OWN_POOLER} does not",
                stacklevel=3,
            )
    encoder.to(device)
    embed = partial(
        encoder.encode,
        tokenizer=tokenizer,
        batch_size=batch_size,
        progress=True,
        dtype=dtype,
        raw=True,
    )
    return refusing_useless(embed), encoder, length_limit(tokenizer, encoder.transformer)


def _load_sentence_transformer(
    model: str, dtype: torch.dtype, batch_size: int, device: str
) -> tuple[Embedder, nn.Module, int | None]:
    check_complete(model)
    with readable(model):
        encoder = load_sentence_transformer(model, device=device)
        limit = (
            int(most) if math.isfinite(most := encoder.max_seq_length or math.inf) else None
        )  # a static model's
        transformer = getattr(encoder[0], "model", None) or getattr(encoder[0], "auto_model", None)
        check_loaded(model, transformer)
        positions = position_limit(transformer) if isinstance(transformer, PreTrainedModel) else 0
        # some errors in a configuration appear only in the forward pass
        if (
            encoder.encode_document(
                ["One sentence."], convert_to_tensor=True, show_progress_bar=False
            ).ndim
            != 2
        ):
            raise UserError(f"{model!r} does not give one vector a sentence")
        if type(encoder[-1]).__name__ == "Normalize" and encoder.similarity_fn_name != "manhattan":
            del encoder[-1]
            encoder.similarity_fn_name = "cosine"
    if limit is not None and limit < positions:
        warnings.warn(
            f"{model!r} cuts sentences at {limit} tokens, its encoder reads {positions}; the protocol does not cut",
            stacklevel=3,
        )

    def embed(encode: Callable[..., Tensor], sentences: Sequence[str]) -> Tensor:
        what = (
            "encode with"
            if all(map(str.strip, sentences))
            else "encode texts of which one is empty with"
        )
        with readable(model, what), torch.autocast(device, dtype, enabled=dtype != torch.float32):
            return encode(
                list(sentences),
                batch_size=batch_size,
                convert_to_tensor=True,
                show_progress_bar=sys.stderr.isatty(),  # its bar would fill a log file
            )

    ways = (encoder.encode, encoder.encode_query, encoder.encode_document)
    encode, query, document = (refusing_useless(partial(embed, way)) for way in ways)
    return Embedder(encode, query, document, encoder.similarity_fn_name), encoder, limit
