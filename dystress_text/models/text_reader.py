"""Tokenise texts for training exactly as the model's ``encode`` does."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Transformer

from dystress_text.models.encoding import tokens_of
from dystress_text.training.batches import Batch


class TextReader:
    """Tokenises texts with the model's own ``preprocess`` and truncates them for training.

    It has a copy of the tokenizer: it runs in a thread, while an evaluation may change the
    truncation of the model's own.

    Args:
        model: a model whose first module is a ``Transformer`` or a ``StaticEmbedding``.
        max_seq_length: the greatest length in tokens, special tokens included.
    """

    def __init__(self, model: SentenceTransformer, max_seq_length: int) -> None:
        module: Any = copy.copy(model[0])  # shares the weights
        if isinstance(module, Transformer):
            module.processor = copy.deepcopy(module.processor)
            module.max_seq_length = max_seq_length
        self._module = module
        self.tokenizer = module.tokenizer
        self._max_length = max_seq_length
        self._padding = getattr(self.tokenizer, "pad_token_id", None) or 0

    def identity(self) -> str:
        """Return a checksum of everything that determines the tokens of a text."""
        digest = hashlib.sha256(f"{self._max_length} {self._module.get_config_dict()}".encode())
        with TemporaryDirectory() as folder:
            self._module.save_tokenizer(f"{folder}/tokenizer")  # one file, or a folder
            for file in sorted(Path(folder).rglob("*")):
                if file.is_file():
                    digest.update(file.read_bytes())
        return digest.hexdigest()[:32]

    def read(self, texts: Sequence[str]) -> tuple[list[NDArray[np.int64]], list[int]]:
        """Return for each text its token ids, and how many tokens were cut off.

        A text without tokens becomes a single padding token.
        """
        features = self._module.preprocess(list(texts))
        ids, lengths = tokens_of(features)
        by_text = np.split(ids.numpy(), np.cumsum(lengths)[:-1])
        cut = [max(0, length - self._max_length) for length in lengths]
        for i, encoding in enumerate(getattr(features, "encodings", None) or []):
            cut[i] += sum(part.special_tokens_mask.count(0) for part in encoding.overflowing)
        padding = np.array([self._padding])
        return [ids[: self._max_length] if len(ids) else padding for ids in by_text], cut

    def batch(self, texts: Sequence[str]) -> Batch:
        """Return ``token_ids`` (tokens,) of all texts, ``lengths`` (n,), and ``longest``."""
        by_text, _ = self.read(texts)
        lengths = [len(ids) for ids in by_text]
        return {
            "token_ids": torch.from_numpy(np.concatenate(by_text)),
            "lengths": torch.tensor(lengths),
            "longest": max(lengths),
        }
