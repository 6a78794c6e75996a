"""A model's vector with that of a table of words beside it: [the model's ; weight x the words'],
each of unit length.

This file lies in the folder of such a model, and needs nothing but sentence-transformers, which
loads it if asked to trust the folder's code. ``dystress train --hybrid`` of dystress-text wrote
both.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import sentence_transformers
import torch
import torch.nn.functional as F
from packaging.version import Version
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import load_dir_path
from tokenizers import Tokenizer
from torch import Tensor, nn

MODEL, WORDS, TOKENIZER, SETTINGS = "model", "words.safetensors", "words.json", "beside.json"
FIRST_RELEASE = "5.4"  # of sentence-transformers that tells a module the prompt; before, it is text


class HybridEmbedding(nn.Module):
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
        first: Any = model[0]
        if hasattr(first, "unpad_inputs"):
            first.unpad_inputs = False  # with flash attention its features would not be rows
        self.table = nn.Embedding(len(table), table.shape[1], _weight=table)

    def preprocess(
        self, inputs: Sequence[str], prompt: str | None = None, **options: Any
    ) -> dict[str, Any]:
        """What both parts read of texts: one row a text in each tensor, so that losses may join,
        cut and cache columns of them.
        """
        if hasattr(self.model, "preprocess"):
            features: dict[str, Any] = self.model.preprocess(list(inputs), prompt=prompt, **options)
        else:  # before 5.4
            features = self.model.tokenize(list(inputs), **options)
        if "offsets" in features:  # a static model's tokens lie text after text
            starts = features.pop("offsets")[1:].tolist()
            rows = [ids.tolist() for ids in features["input_ids"].tensor_split(starts)]
            features["input_ids"], features["attention_mask"] = padded(rows)
        plain = [without_prompt(self.model, text) for text in inputs]
        encodings = self.words.encode_batch(plain, add_special_tokens=False)
        # cached losses cut each tensor that is as wide as the model's mask to its longest text, so
        # these are wider
        width = 1 + features["attention_mask"].shape[1] if "attention_mask" in features else 1
        features["lexical_ids"], features["lexical_mask"] = padded(
            [encoding.ids for encoding in encodings], width
        )
        return features

    def tokenize(self, texts: Sequence[str], **options: Any) -> dict[str, Any]:
        """:meth:`preprocess` by its older name."""
        return self.preprocess(texts, **options)

    def forward(self, features: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Add ``sentence_embedding``, (n, dim), of unit length."""
        ids, starts = flat(features["lexical_ids"], features["lexical_mask"])
        lexical = F.embedding_bag(ids, self.table.weight, starts, mode="mean")  # 0 without a token
        if is_table(self.model):
            ids, starts = flat(features["input_ids"], features["attention_mask"])
            dense = self.model({"input_ids": ids, "offsets": starts}, **options)
            empty = features["attention_mask"].sum(1, keepdim=True) == 0  # NaN in half precision
            own = dense["sentence_embedding"].masked_fill(empty, 0)
        else:
            features = self.model(features, **options)
            own = features["sentence_embedding"]
        features["sentence_embedding"] = joined(own, lexical, self.weight)
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
    def load(cls, model_name_or_path: str, subfolder: str = "", **options: Any) -> HybridEmbedding:
        """Read what :meth:`save` wrote, the model inside with the options of the whole; no code of
        it is run.
        """
        if Version(sentence_transformers.__version__) < Version(FIRST_RELEASE):
            raise ImportError(
                f"this model needs sentence-transformers {FIRST_RELEASE} or newer; "
                f"{sentence_transformers.__version__} is installed"
            )
        names = ("token", "cache_folder", "revision", "local_files_only")
        source: dict[str, Any] = {name: options[name] for name in names if name in options}
        folder = Path(str(load_dir_path(model_name_or_path, subfolder, **source)))
        names = ("model_kwargs", "processor_kwargs", "config_kwargs", "backend")
        given: dict[str, Any] = {name: options[name] for name in names if name in options}
        model = SentenceTransformer(str(folder / MODEL), device="cpu", **given)
        if is_table(model) and given.get("backend", "torch") != "torch":
            raise ValueError(
                f"backend {given['backend']!r} is of transformers; this model has none"
            )
        return cls.from_folder(model, folder)

    @classmethod
    def from_folder(cls, model: SentenceTransformer, folder: Path) -> HybridEmbedding:
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


def is_table(model: SentenceTransformer) -> bool:
    """Whether a model is a table of tokens itself."""
    return type(model[0]).__name__ == "StaticEmbedding"


def padded(ids: Sequence[Sequence[int]], width: int = 0) -> tuple[Tensor, Tensor]:
    """Token ids and their mask, both (n, length), at least ``width`` long; 0 pads."""
    lengths = torch.tensor([len(of_text) for of_text in ids])
    mask = torch.arange(max(width, int(lengths.max()))) < lengths.unsqueeze(1)
    rows = torch.zeros(mask.shape, dtype=torch.long)
    rows[mask] = torch.tensor([i for of_text in ids for i in of_text], dtype=torch.long)
    return rows, mask.long()


def flat(ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """The tokens (tokens,) of padded ids (n, length), text after text, and where each text begins
    (n,).
    """
    lengths = mask.sum(1)
    return ids[mask.bool()], lengths.cumsum(0) - lengths


def unit(vectors: Tensor) -> Tensor:
    """Vectors (n, dim) at length 1, in fp32; 0 stays 0 and has no gradient.

    ``F.normalize`` divides by an epsilon there, which gives a slope of 1e12, and in half precision
    NaN.
    """
    vectors = vectors.float()
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    return vectors / lengths.masked_fill(lengths == 0, torch.inf)


def joined(own: Tensor, words: Tensor, weight: float) -> Tensor:
    """Vectors (n, a + b) of unit length, as precise as the model's, from those of a model (n, a)
    and of words (n, b); a part may be 0.
    """
    return unit(torch.cat([unit(own), weight * unit(words)], 1)).to(own.dtype)
