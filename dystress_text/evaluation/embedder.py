"""Encoders under evaluation: loaded, asked once for each distinct sentence, and remembered."""

from __future__ import annotations

import hashlib
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from dystress_text.encoders.encoder import POOLERS, build_encoder, length_limit, pooler_encoder, position_limit
from dystress_text.encoders.pretrained import load_pretrained
from dystress_text.errors import UserError
from dystress_text.evaluation.sts import Embed

OWN_POOLER = "pooler"  # the encoder's pooler_output: what SimCSE's evaluation.py calls cls
EVALUATED = (*POOLERS, OWN_POOLER)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class ModelCard:
    """What was evaluated.

    Attributes:
        model: as the user named it.
        pooler_type: of a Hugging Face encoder; None for a sentence-transformers model, which has its own.
        max_seq_length: tokens that are read of a sentence.
        dtype: of the forward pass.
        device: that it ran on.
        sha256: of weights, modules, tokenizer and the settings above but the device.
    """

    model: str
    pooler_type: str | None
    max_seq_length: int
    dtype: str
    device: str
    sha256: str


class Embedder:
    """A function from sentences to vectors that encodes each distinct sentence once.

    Args:
        encode: the encoder itself.
        cache: a file that remembers vectors from run to run; None for this run alone.

    Raises:
        UserError: on a call, if the encoder gives vectors that are not finite, or one vector for all sentences.
    """

    def __init__(self, encode: Embed, cache: Path | None = None) -> None:
        self.encode = encode
        self.cache = cache
        self.encoded = 0
        self._vectors: dict[bytes, NDArray[np.float32]] = _read_cache(cache) if cache is not None else {}

    def __call__(self, sentences: Sequence[str]) -> Tensor:
        """Vectors of sentences: (n, dim), fp32, on the CPU."""
        keys = [hashlib.blake2b(sentence.encode(), digest_size=16).digest() for sentence in sentences]
        new = {key: s for key, s in zip(keys, sentences, strict=True) if key not in self._vectors}
        if new:
            vectors = self.encode(list(new.values())).float().cpu()
            if not vectors.isfinite().all():
                raise UserError("--model: the model gives vectors with NaN or infinite entries: no score has a meaning")
            if len(vectors) > 1 and (vectors == vectors[0]).all():
                raise UserError("--model: the model gives the same vector for every sentence: no score has a meaning")
            self._vectors.update(zip(new, vectors.numpy(), strict=True))
            self.encoded += len(new)
        return torch.from_numpy(np.stack([self._vectors[key] for key in keys]))

    def save(self) -> None:
        """Write the cache, if there is one and something is new."""
        if self.cache is None or self.encoded == 0:
            return
        self.cache.parent.mkdir(parents=True, exist_ok=True)
        staging = self.cache.with_suffix(".writing")
        keys = np.frombuffer(b"".join(self._vectors), dtype=np.uint8).reshape(-1, 16)
        save_file({"keys": keys, "vectors": np.stack(list(self._vectors.values()))}, staging)
        staging.replace(self.cache)


def _read_cache(file: Path) -> dict[bytes, NDArray[np.float32]]:
    if not file.is_file():
        return {}
    try:
        tensors = load_file(file)
        return dict(zip((key.tobytes() for key in tensors["keys"]), tensors["vectors"], strict=True))
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        warnings.warn(f"the cache {file} is damaged and is written anew: {error}", stacklevel=2)
        return {}


def load_model(
    model: str, pooler_type: str | None, dtype: str = "fp32", batch_size: int = 64, progress: bool = False
) -> tuple[Embed, ModelCard]:
    """An encoder as a function from sentences to vectors, and what it is.

    Args:
        model: a sentence-transformers folder, or with ``pooler_type`` a Hugging Face folder or name.
        pooler_type: one of :data:`EVALUATED`.
        dtype: ``fp32`` or ``bf16``.
        batch_size: sentences at a time.
        progress: show a progress bar.

    Raises:
        UserError: nothing loads from there.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    with torch.random.fork_rng(devices=[]):  # weights that a file lacks are drawn at random
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
        vectors = encoder.encode(sentences, tokenizer, batch_size, progress=progress, dtype=DTYPES[dtype])
        assert isinstance(vectors, Tensor)
        return vectors

    return embed, _card(encoder, tokenizer, model, pooler_type, limit, dtype, device)


def _load_sentence_transformer(
    model: str, dtype: str, batch_size: int, progress: bool, device: str
) -> tuple[Embed, ModelCard]:
    if not (Path(model) / "modules.json").is_file():
        raise UserError(
            f"--model: {model!r} is no sentence-transformers folder; for a Hugging Face folder or name give "
            "--pooler_type"
        )
    from sentence_transformers import SentenceTransformer  # slow to import

    try:
        encoder = SentenceTransformer(model, device=device, local_files_only=True, trust_remote_code=False)
        limit = int(encoder.max_seq_length or 0)
        transformer = getattr(encoder[0], "model", None) or getattr(encoder[0], "auto_model", None)
        own = position_limit(transformer) if transformer is not None else limit
        # what a configuration names may show itself in the forward pass alone
        if encoder.encode(["One sentence."], convert_to_tensor=True, show_progress_bar=False).ndim != 2:
            raise ValueError("it gives no vectors of sentences")
    except Exception as error:  # a damaged file shows itself as an error of any library underneath
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"--model: cannot load {model!r}: {reason}") from error
    if limit < own:
        warnings.warn(
            f"{model!r} cuts sentences at {limit} tokens, its encoder reads {own}; the protocol has no such cut",
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

    return embed, _card(encoder, encoder.tokenizer, model, None, limit, dtype, device)


def _card(
    network: nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    model: str,
    pooler_type: str | None,
    max_seq_length: int,
    dtype: str,
    device: str,
) -> ModelCard:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    digest = hashlib.sha256(repr((str(network), pooler_type, max_seq_length, dtype)).encode())
    digest.update((backend.to_str() if backend is not None else repr(tokenizer)).encode())
    for name, tensor in network.state_dict().items():
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return ModelCard(model, pooler_type, max_seq_length, dtype, device, digest.hexdigest())
