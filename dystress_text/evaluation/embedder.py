"""Encoders under evaluation: loading them, and keeping their vectors so that each sentence is encoded once."""

from __future__ import annotations

import hashlib
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from dystress_text.encoders.encoder import build_encoder, length_limit, pooler_encoder, position_limit
from dystress_text.encoders.pooling import POOLERS
from dystress_text.encoders.pretrained import load_pretrained, load_sentence_transformer, readable
from dystress_text.errors import UserError
from dystress_text.evaluation.sts import Embed
from dystress_text.files.whole import whole_file

OWN_POOLER = "pooler"  # the encoder's pooler_output, which SimCSE's evaluation.py calls cls
EVALUATED = (*POOLERS, OWN_POOLER)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class EvaluatedModel:
    """What was evaluated, for the record.

    Attributes:
        model: as the user named it.
        pooler_type: of a Hugging Face encoder; None for a sentence-transformers model, which has a pooler of its own.
        max_seq_length: tokens read from a sentence.
        dtype: of the forward pass.
        device: where it ran.
        sha256: of weights, modules, tokenizer and the settings above except the device.
    """

    model: str
    pooler_type: str | None
    max_seq_length: int
    dtype: str
    device: str
    sha256: str


class EncodedOnce:
    """A function from sentences to vectors that encodes each distinct sentence once.

    The new sentences of a call are encoded by themselves, so the first caller gets bit for bit what the encoder alone
    would give.

    Args:
        encode: the encoder.
        cache: a file that keeps vectors from run to run; None keeps them for this run alone.
    """

    def __init__(self, encode: Embed, cache: Path | None = None) -> None:
        self.encode = encode
        self.cache = cache
        self._has_new = False
        self._rows: dict[bytes, int] = {}  # of each sentence in the vectors
        self._vectors: Tensor | None = None  # (distinct sentences, dim)
        if cache is not None:
            self._rows, self._vectors = _read_cache(cache)

    def __call__(self, sentences: Sequence[str]) -> Tensor:
        """Vectors of sentences: (n, dim), fp32, on the device of the encoder's vectors."""
        keys = [hashlib.blake2b(sentence.encode(), digest_size=16).digest() for sentence in sentences]
        new = {key: s for key, s in zip(keys, sentences, strict=True) if key not in self._rows}
        if new:
            vectors = self.encode(list(new.values())).float()
            self._vectors = vectors if self._vectors is None else torch.cat([self._vectors, vectors])
            self._rows.update(zip(new, range(len(self._rows), len(self._vectors)), strict=True))
            self._has_new = True
        assert self._vectors is not None
        return self._vectors[torch.tensor([self._rows[key] for key in keys], device=self._vectors.device)]

    def save(self) -> None:
        """Write the cache file, if there is one and it lacks vectors."""
        if self.cache is None or not self._has_new or self._vectors is None:
            return
        self.cache.parent.mkdir(parents=True, exist_ok=True)
        keys = np.frombuffer(b"".join(self._rows), dtype=np.uint8).reshape(-1, 16)
        with whole_file(self.cache, "wb") as file:
            file.write(save({"keys": keys, "vectors": self._vectors.cpu().numpy()}))


def refusing_useless(encode: Embed) -> Embed:
    """The encoder, with a check of its vectors at each call.

    Raises:
        UserError: on a call, if vectors are not finite, or all sentences have the same vector.
    """

    def checked(sentences: Sequence[str]) -> Tensor:
        vectors = encode(sentences).float().cpu()
        if not vectors.isfinite().all():
            raise UserError("--model: the model gives NaN or infinite vectors; scores would mean nothing")
        if len(vectors) > 1 and (vectors == vectors[0]).all():
            raise UserError("--model: the model gives the same vector for every sentence; scores would mean nothing")
        return vectors

    return checked


def _read_cache(file: Path) -> tuple[dict[bytes, int], Tensor | None]:
    """The row of each sentence, by its key, and the vectors; nothing where there is no cache."""
    if not file.is_file():
        return {}, None
    try:
        tensors = load_file(file)
        vectors = torch.from_numpy(tensors["vectors"])
        rows = dict(zip((key.tobytes() for key in tensors["keys"]), range(len(vectors)), strict=True))
        if vectors.ndim != 2 or vectors.dtype != torch.float32 or len(rows) != len(vectors):
            raise ValueError("it does not hold one vector a sentence")
        return rows, vectors
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        warnings.warn(f"the cache {file} is damaged and will be rewritten: {error}", stacklevel=2)
        return {}, None


def load_model(
    model: str, pooler_type: str | None, dtype: str = "fp32", batch_size: int = 64, progress: bool = False
) -> tuple[Embed, EvaluatedModel]:
    """Load an encoder, as a function from sentences to vectors and a description for the record.

    Args:
        model: a sentence-transformers folder, or with ``pooler_type`` a Hugging Face folder or name.
        pooler_type: one of :data:`EVALUATED`.
        dtype: ``fp32`` or ``bf16``.
        batch_size: sentences at a time.
        progress: show a progress bar.

    Raises:
        UserError: no encoder can be loaded from there.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.random.fork_rng(devices=[]):  # weights missing from a file are drawn at random
        if pooler_type is None:
            return _load_sentence_transformer(model, dtype, batch_size, progress, device)
        found = load_pretrained(model)
        if pooler_type == OWN_POOLER:
            encoder = pooler_encoder(found)
        elif pooler_type in POOLERS:
            encoder = build_encoder(found, pooler_type, mlp_head=False)
            if found.pooler == "mlp":
                warnings.warn(
                    f"{model!r} is a SimCSE checkpoint; --pooler_type {pooler_type} leaves its MLP out, "
                    f"--pooler_type {OWN_POOLER} applies it",
                    stacklevel=2,
                )
        else:
            raise UserError(f"--pooler_type: unknown pooler {pooler_type!r}; known are {', '.join(EVALUATED)}")
    tokenizer = found.tokenizer
    encoder.to(device)
    limit = length_limit(tokenizer, encoder.transformer)

    def embed(sentences: Sequence[str]) -> Tensor:
        return encoder.encode(sentences, tokenizer, batch_size, progress=progress, dtype=DTYPES[dtype])

    return embed, _described(encoder, tokenizer, model, pooler_type, limit, dtype, device)


def _load_sentence_transformer(
    model: str, dtype: str, batch_size: int, progress: bool, device: str
) -> tuple[Embed, EvaluatedModel]:
    if not (Path(model) / "modules.json").is_file():
        raise UserError(
            f"--model: {model!r} is not a sentence-transformers folder; for a Hugging Face folder or name "
            "give --pooler_type"
        )
    with readable(model, kind=""):
        encoder = load_sentence_transformer(model, device=device)
        limit = int(encoder.max_seq_length or 0)
        transformer = getattr(encoder[0], "model", None) or getattr(encoder[0], "auto_model", None)
        positions = position_limit(transformer) if transformer is not None else limit
        # some errors in a configuration appear only in the forward pass
        if encoder.encode(["One sentence."], convert_to_tensor=True, show_progress_bar=False).ndim != 2:
            raise ValueError("it does not give one vector a sentence")
    if limit < positions:
        warnings.warn(
            f"{model!r} cuts sentences at {limit} tokens, its encoder reads {positions}; the protocol does not cut",
            stacklevel=3,
        )

    def embed(sentences: Sequence[str]) -> Tensor:
        with torch.autocast(device, DTYPES[dtype], enabled=dtype != "fp32"):
            return encoder.encode(
                list(sentences),
                batch_size=batch_size,
                convert_to_tensor=True,
                show_progress_bar=progress and sys.stderr.isatty(),  # its bar would fill a log file
            )

    return embed, _described(encoder, encoder.tokenizer, model, None, limit, dtype, device)


def _described(
    network: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    model: str,
    pooler_type: str | None,
    max_seq_length: int,
    dtype: str,
    device: str,
) -> EvaluatedModel:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    digest = hashlib.sha256(repr((str(network), pooler_type, max_seq_length, dtype)).encode())
    digest.update((backend.to_str() if backend is not None else repr(tokenizer)).encode())
    for name, tensor in network.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return EvaluatedModel(model, pooler_type, max_seq_length, dtype, device, digest.hexdigest())
