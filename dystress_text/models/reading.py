"""Read texts for training exactly as the model's ``encode`` reads them."""

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

from dystress_text.models.embedder import tokens_of
from dystress_text.training.batches import Batch


class TextReader:
    """Turns texts into token ids with the model's own ``preprocess``, truncated for training.

    The reader has its own copy of the tokenizer, as it reads in a thread while an evaluation may
    change the truncation of the model's tokenizer.

    Args:
        model: a model whose first module is a ``Transformer`` or a ``StaticEmbedding``.
        max_seq_length: greatest length in tokens, special tokens included.
    """

    def __init__(self, model: SentenceTransformer, max_seq_length: int) -> None:
        module: Any = copy.copy(model[0])  # shares the weights
        if isinstance(module, Transformer):
            module.processor = copy.deepcopy(module.processor)
            module.max_seq_length = max_seq_length
        self._module = module
        self.tokenizer = module.tokenizer
        self._most = max_seq_length
        self._padding = getattr(self.tokenizer, "pad_token_id", None) or 0

    def identity(self) -> str:
        """Return a checksum of everything that determines the tokens of a text."""
        digest = hashlib.sha256(f"{self._most} {self._module.get_config_dict()}".encode())
        with TemporaryDirectory() as folder:
            self._module.save_tokenizer(f"{folder}/tokenizer")  # one file, or a folder
            for file in sorted(Path(folder).rglob("*")):
                if file.is_file():
                    digest.update(file.read_bytes())
        return digest.hexdigest()[:32]

    def read(self, texts: Sequence[str]) -> tuple[list[NDArray[np.int64]], list[int]]:
        """Return the token ids of each text, and the number of its tokens that were cut off.

        A text without tokens becomes a padding token.
        """
        features = self._module.preprocess(list(texts))
        ids, lengths = tokens_of(features)
        rows = np.split(ids.numpy(), np.cumsum(lengths)[:-1])
        cut = [max(0, length - self._most) for length in lengths]
        for i, encoding in enumerate(getattr(features, "encodings", None) or []):
            cut[i] += sum(part.special_tokens_mask.count(0) for part in encoding.overflowing)
        padding = np.array([self._padding])
        return [row[: self._most] if len(row) else padding for row in rows], cut

    def batch(self, texts: Sequence[str]) -> Batch:
        """Return a batch of texts, as :meth:`dystress_text.finetuning.corpus.Corpus.batch` does."""
        rows, _ = self.read(texts)
        lengths = [len(row) for row in rows]
        return {
            "token_ids": torch.from_numpy(np.concatenate(rows)),
            "lengths": torch.tensor(lengths),
            "longest": max(lengths),
        }
