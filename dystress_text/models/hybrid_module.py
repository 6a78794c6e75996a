"""A model's vector with that of a table of words beside it: [the model's ; weight x the words'],
each of unit length.

This file lies in the folder of such a model, and needs nothing but sentence-transformers, which
loads it if asked to trust the folder's code. ``dystress train --beside`` of dystress-text wrote
both.
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

MODEL, WORDS, TOKENIZER, SETTINGS = "model", "words.safetensors", "words.json", "beside.json"


class BesideEmbedding(nn.Module):
    """The only module of a SentenceTransformer, with another one inside.

    Args:
        model: the model, whose vectors come first.
        table: the words' vectors, (vocabulary, dim); a text's is the sum over its tokens.
        words: the table's tokenizer, which reads the whole text, without a prompt of the model's at
            its beginning.
        weight: of the words' part.
    """

    save_in_root = True

    def __init__(
        self, model: SentenceTransformer, table: Tensor, words: Tokenizer, weight: float
    ) -> None:
        super().__init__()
        self.model, self.words, self.weight = model, words, weight
        self.table = nn.Embedding(len(table), table.shape[1], _weight=table)

    def preprocess(
        self, inputs: Sequence[str], prompt: str | None = None, **options: Any
    ) -> dict[str, Any]:
        """What both parts read of texts."""
        if hasattr(self.model, "preprocess"):
            features: dict[str, Any] = self.model.preprocess(list(inputs), prompt=prompt, **options)
        else:  # before sentence-transformers 5.4, which puts a prompt before the texts by itself
            features = self.model.tokenize(list(inputs), **options)
        plain = [without_prompt(self.model, text) for text in inputs]
        ids = [
            encoding.ids for encoding in self.words.encode_batch(plain, add_special_tokens=False)
        ]
        features["word_ids"] = torch.tensor(
            [word for of_text in ids for word in of_text], dtype=torch.long
        )  # (words,)
        features["word_starts"] = torch.tensor([0, *map(len, ids)][:-1]).cumsum(0)  # (n,)
        return features

    def tokenize(self, texts: Sequence[str], **options: Any) -> dict[str, Any]:
        """:meth:`preprocess` by its older name."""
        return self.preprocess(texts, **options)

    def forward(self, features: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Add ``sentence_embedding``, (n, dim), of unit length."""
        features = self.model(features, **options)
        words = F.embedding_bag(
            features["word_ids"], self.table.weight, features["word_starts"], mode="sum"
        )
        features["sentence_embedding"] = joined(features["sentence_embedding"], words, self.weight)
        return features

    def get_sentence_embedding_dimension(self) -> int:
        """Numbers of a vector."""
        own: Any = (
            getattr(self.model, "get_embedding_dimension", None)
            or self.model.get_sentence_embedding_dimension
        )
        return int(own()) + self.table.embedding_dim

    get_embedding_dimension = get_sentence_embedding_dimension

    @property
    def tokenizer(self) -> Any:
        """The model's."""
        return self.model.tokenizer

    @property
    def max_seq_length(self) -> int | None:
        """The most tokens that the model reads."""
        return self.model.max_seq_length

    @max_seq_length.setter
    def max_seq_length(self, value: int) -> None:
        self.model.max_seq_length = value

    def save(self, path: str, **_: Any) -> None:
        """Write both parts."""
        self.model.save(str(Path(path) / MODEL), create_model_card=False)
        self.save_words(Path(path))

    def save_words(self, folder: Path) -> None:
        """Write all but the model."""
        save_file({"table": self.table.weight.detach().contiguous()}, folder / WORDS)
        self.words.save(str(folder / TOKENIZER))
        (folder / SETTINGS).write_text(json.dumps({"weight": self.weight}) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **options: Any) -> BesideEmbedding:
        """Read what :meth:`save` wrote; no code of the model inside is run."""
        names = ("token", "cache_folder", "revision", "local_files_only")
        source: dict[str, Any] = {name: options[name] for name in names if name in options}
        folder = Path(str(load_dir_path(model_name_or_path, subfolder, **source)))
        model = SentenceTransformer(
            str(folder / MODEL), device="cpu", model_kwargs=options.get("model_kwargs")
        )
        return cls.beside(model, folder)

    @classmethod
    def beside(cls, model: SentenceTransformer, folder: Path) -> BesideEmbedding:
        """Read what :meth:`save_words` wrote."""
        weight = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))["weight"]
        return cls(
            model,
            load_file(folder / WORDS)["table"],
            Tokenizer.from_file(str(folder / TOKENIZER)),
            weight,
        )


def without_prompt(model: SentenceTransformer, text: str) -> str:
    """A text without one of the model's prompts at its beginning."""
    prompts = [prompt for prompt in model.prompts.values() if prompt and text.startswith(prompt)]
    return text.removeprefix(max(prompts, key=len, default=""))


def joined(own: Tensor, words: Tensor, weight: float) -> Tensor:
    """Vectors (n, a + b) of unit length from those of a model (n, a) and of words (n, b); a part
    may be 0.
    """
    parts = [F.normalize(own, dim=1), weight * F.normalize(words.to(own.dtype), dim=1)]
    return F.normalize(torch.cat(parts, 1), dim=1)
