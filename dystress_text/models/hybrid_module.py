"""A hybrid model: the dense model's embedding and the lexical one, joined in one vector.

The vector is [dense ; weight x lexical], each part of unit length. This file is saved with such a
model and needs nothing but sentence-transformers, which loads it if asked to trust the folder's
code. ``dystress train --hybrid`` of dystress-text wrote both.
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
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from sentence_transformers.util import load_dir_path
from tokenizers import Tokenizer
from torch import Tensor, nn

MODEL = "model"
SETTINGS = "hybrid.json"
FILES = (SETTINGS, "lexical.safetensors", "lexical.json")
FILES_OF_0_2 = ("beside.json", "words.safetensors", "words.json")  # still read
FIRST_RELEASE = "5.4"  # of sentence-transformers that tells a module the prompt; before, it is text


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
        first: Any = model[0]
        if hasattr(first, "unpad_inputs"):
            first.unpad_inputs = False  # with flash attention its features would not be rows
        self.table = nn.Embedding(len(table), table.shape[1], _weight=table)

    def preprocess(
        self, inputs: Sequence[str], prompt: str | None = None, **options: Any
    ) -> dict[str, Any]:
        """Return the features of both parts.

        Each tensor has one row a text, so that losses can join, cut and cache columns of texts.
        """
        features: dict[str, Any] = self.model.preprocess(list(inputs), prompt=prompt, **options)
        if "offsets" in features:  # a static model's tokens lie text after text
            starts = features.pop("offsets")[1:].tolist()
            rows = [ids.tolist() for ids in features["input_ids"].tensor_split(starts)]
            features["input_ids"], features["attention_mask"] = padded(rows)
        plain = [without_prompt(self.model, text) for text in inputs]
        encodings = self.lexical_tokenizer.encode_batch(plain, add_special_tokens=False)
        # cached losses cut each tensor that is as wide as the model's mask to its longest text, so
        # these are wider
        width = 1 + features["attention_mask"].shape[1] if "attention_mask" in features else 1
        features["lexical_ids"], features["lexical_mask"] = padded(
            [encoding.ids for encoding in encodings], width
        )
        return features

    def tokenize(self, texts: Sequence[str], **options: Any) -> dict[str, Any]:
        """Call :meth:`preprocess` by its older name."""
        return self.preprocess(texts, **options)

    def forward(self, features: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Add ``sentence_embedding``, (n, dim), of unit length."""
        ids, starts = flat(features["lexical_ids"], features["lexical_mask"])
        lexical = F.embedding_bag(ids, self.table.weight, starts, mode="mean")  # 0 without a token
        if is_table(self.model):
            ids, starts = flat(features["input_ids"], features["attention_mask"])
            dense = self.model({"input_ids": ids, "offsets": starts}, **options)
            empty = features["attention_mask"].sum(1, keepdim=True) == 0  # NaN in half precision
            dense = dense["sentence_embedding"].masked_fill(empty, 0)
        else:
            features = self.model(features, **options)
            dense = features["sentence_embedding"]
        features["sentence_embedding"] = joined(dense, lexical, self.weight)
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

        The options of the whole model are the dense model's; code that comes with that is not run.
        """
        installed = sentence_transformers.__version__
        if Version(installed) < Version(FIRST_RELEASE):
            raise ImportError(
                f"this model needs sentence-transformers {FIRST_RELEASE} or newer; "
                f"{installed} is installed"
            )
        names = ("token", "cache_folder", "revision", "local_files_only")
        source: dict[str, Any] = {name: options[name] for name in names if name in options}
        folder = Path(str(load_dir_path(model_name_or_path, subfolder, **source)))
        names = ("model_kwargs", "processor_kwargs", "config_kwargs", "backend")
        given: dict[str, Any] = {name: options[name] for name in names if name in options}
        model = SentenceTransformer(str(folder / MODEL), device="cpu", **given)
        backend = given.get("backend", "torch")
        if is_table(model) and backend != "torch":
            raise ValueError(f"backend {backend!r} needs a transformer; this model has none")
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


def without_prompt(model: SentenceTransformer, text: str) -> str:
    """Return a text without one of the model's prompts at its beginning."""
    prompts = [prompt for prompt in model.prompts.values() if prompt and text.startswith(prompt)]
    return text.removeprefix(max(prompts, key=len, default=""))


def is_table(model: SentenceTransformer) -> bool:
    """Return whether the dense model is a static one."""
    return isinstance(model[0], StaticEmbedding)


def padded(ids: Sequence[Sequence[int]], width: int = 0) -> tuple[Tensor, Tensor]:
    """Return token ids and their mask, both (n, length), at least ``width`` long; 0 pads."""
    lengths = torch.tensor([len(of_text) for of_text in ids])
    mask = torch.arange(max(width, int(lengths.max()))) < lengths.unsqueeze(1)
    rows = torch.zeros(mask.shape, dtype=torch.long)
    rows[mask] = torch.tensor([i for of_text in ids for i in of_text], dtype=torch.long)
    return rows, mask.long()


def flat(ids: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the tokens (tokens,) of padded ids (n, length), and each text's first index (n,)."""
    lengths = mask.sum(1)
    return ids[mask.bool()], lengths.cumsum(0) - lengths


def unit(vectors: Tensor) -> Tensor:
    """Return vectors (n, dim) at length 1, in fp32; 0 stays 0 and has no gradient.

    ``F.normalize`` divides by an epsilon there, which gives a slope of 1e12, and in half precision
    NaN.
    """
    vectors = vectors.float()
    lengths: Tensor = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    return vectors / lengths.masked_fill(lengths == 0, torch.inf)


def joined(dense: Tensor, lexical: Tensor, weight: float) -> Tensor:
    """Return [dense ; weight x lexical], (n, a + b), of unit length, in the precision of ``dense``.

    Args:
        dense: (n, a); a row may be 0.
        lexical: (n, b); a row may be 0.
        weight: of the lexical part, both parts being of unit length.
    """
    return unit(torch.cat([unit(dense), weight * unit(lexical)], 1)).to(dense.dtype)
