"""A hybrid model: the dense model's embedding and the lexical one, joined in one vector.

The vector is [dense ; weight x lexical], each part of unit length. This file is saved with such a
model and needs nothing but sentence-transformers (5.4 or newer), which loads it if asked to trust
the folder's code. ``dystress train --hybrid`` of dystress-text wrote both.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import load_dir_path
from tokenizers import Tokenizer
from torch import Tensor, nn

MODEL = "model"
SETTINGS = "hybrid.json"
FILES = (SETTINGS, "lexical.safetensors", "lexical.json")
FILES_OF_0_2 = ("beside.json", "words.safetensors", "words.json")  # still read
_SOURCE = ("token", "cache_folder", "revision", "local_files_only")
_OF_DENSE = ("model_kwargs", "processor_kwargs", "config_kwargs", "backend")


class HybridEmbedding(nn.Module):
    """The only module of a SentenceTransformer; the dense model is inside.

    Args:
        model: the dense model, whose embedding comes first.
        table: the vectors of the lexical part's tokens, (vocabulary, dim).
        lexical_tokenizer: of the table; it reads the whole text without the model's prompts.
        weight: of the lexical part.
    """

    save_in_root = True

    def __init__(
        self,
        model: SentenceTransformer,
        table: Tensor,
        lexical_tokenizer: Tokenizer,
        weight: float,
    ) -> None:
        super().__init__()
        self.model = model
        self.lexical_tokenizer = lexical_tokenizer
        self.weight = weight
        self.table = nn.Embedding(len(table), table.shape[1], _weight=table)

    def preprocess(
        self, inputs: Sequence[str], prompt: str | None = None, **options: Any
    ) -> dict[str, Any]:
        """Return the features of both parts.

        The lexical tokens are concatenated, and their offsets end with the number of tokens. So no
        tensor has one row for each text, and losses of sentence-transformers that concatenate or
        split batches leave these whole or raise an error.
        """
        features: dict[str, Any] = self.model.preprocess(list(inputs), prompt=prompt, **options)
        encodings = self.lexical_tokenizer.encode_batch(list(inputs), add_special_tokens=False)
        ids = [torch.tensor(encoding.ids, dtype=torch.long) for encoding in encodings]
        lengths = torch.tensor([0, *(len(of_text) for of_text in ids)])
        features["lexical_ids"] = torch.cat(ids)  # (tokens,)
        features["lexical_offsets"] = lengths.cumsum(0)  # (n + 1,)
        return features

    def forward(self, features: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Add ``sentence_embedding``, (n, dim), of unit length."""
        lexical = F.embedding_bag(  # 0 without a token
            features["lexical_ids"],
            self.table.weight,
            features["lexical_offsets"],
            mode="mean",
            include_last_offset=True,
        )
        features = self.model(features, **options)
        dense = features["sentence_embedding"]  # (n, dim of the dense model)
        both = torch.cat([unit(dense), self.weight * unit(lexical)], 1)
        features["sentence_embedding"] = unit(both).to(dense.dtype)
        return features

    def get_embedding_dimension(self) -> int:
        """Return the dimension of both parts together."""
        return int(self.model.get_embedding_dimension() or 0) + self.table.embedding_dim

    @property
    def tokenizer(self) -> Any:
        """The dense model's tokenizer."""
        return self.model.tokenizer

    @property
    def max_seq_length(self) -> int | None:
        """The most tokens that the dense model reads."""
        return self.model.max_seq_length

    @max_seq_length.setter
    def max_seq_length(self, value: int) -> None:
        self.model.max_seq_length = value

    def save(self, path: str, **_: Any) -> None:
        """Write both parts into a folder."""
        folder = Path(path)
        self.model.save(str(folder / MODEL), create_model_card=False)
        settings, table, tokenizer = FILES
        save_file({"table": self.table.weight.detach().contiguous()}, folder / table)
        self.lexical_tokenizer.save(str(folder / tokenizer))
        (folder / settings).write_text(json.dumps({"weight": self.weight}) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **options: Any) -> HybridEmbedding:
        """Load what :meth:`save` wrote.

        The dense model gets the options of the whole model. Code that comes with it is not run.
        """
        source: dict[str, Any] = {name: options[name] for name in _SOURCE if name in options}
        folder = Path(str(load_dir_path(model_name_or_path, subfolder, **source)))
        given: dict[str, Any] = {name: options[name] for name in _OF_DENSE if name in options}
        model = SentenceTransformer(str(folder / MODEL), device="cpu", **given)
        return cls.from_folder(model, folder)

    @classmethod
    def from_folder(cls, model: SentenceTransformer, folder: Path) -> HybridEmbedding:
        """Load the lexical part from a folder and join it with a dense model."""
        settings, table, tokenizer = FILES if (folder / SETTINGS).is_file() else FILES_OF_0_2
        return cls(
            model,
            load_file(folder / table)["table"],
            Tokenizer.from_file(str(folder / tokenizer)),
            json.loads((folder / settings).read_text(encoding="utf-8"))["weight"],
        )


def unit(vectors: Tensor) -> Tensor:
    """Scale vectors (n, dim) to length 1, in fp32; a zero vector stays 0, without a gradient.

    ``F.normalize`` divides a zero vector by an epsilon, which gives a gradient of 1e12, or NaN in
    half precision.
    """
    vectors = vectors.float()
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    return vectors / lengths.masked_fill(lengths == 0, torch.inf)
