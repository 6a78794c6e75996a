"""Loading the files of a pretrained encoder: the transformer, its tokenizer, and a pooler that may come with them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from dystress_text.errors import ParameterError, UserError, reason_of
from dystress_text.files.hub import hub_reachable

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_MLP = "mlp.dense.weight"  # the head in a folder that SimCSE's training wrote
_POOLER = "pooler.dense.weight"


@dataclass(frozen=True)
class Pretrained:
    """An encoder as loaded from its files.

    Attributes:
        name: folder or hub name.
        transformer: in fp32.
        tokenizer: the encoder's.
        pooler: the source of the weights of its pooler (dense + tanh on the first token): ``own`` is the pooler in the
            files, ``mlp`` the MLP of a SimCSE training folder; None without such a pooler or without weights for it.
        left: weights in the files that the encoder does not use, by the first words of their names.
    """

    name: str
    transformer: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    pooler: str | None
    left: tuple[str, ...]


def load_pretrained(name_or_path: str, dropout: float | None = None) -> Pretrained:
    """Load an encoder and its tokenizer from a folder or from the hub. Code that comes with a model is never run.

    A folder of SimCSE's training (``bert.*``, ``mlp.dense.*``) is read as SimCSE's own conversion does it: the MLP
    becomes the encoder's pooler. ``dropout`` is a rate for every dropout, instead of the configuration's.
    """
    with readable(name_or_path):
        # with trust_remote_code=None transformers would ask on the terminal, and accept a piped "y"
        source: dict[str, Any] = {"local_files_only": not hub_reachable(), "trust_remote_code": False}
        config = AutoConfig.from_pretrained(name_or_path, **source)
        if dropout is not None:
            _set_dropout(config, dropout)
        weights = source | {"config": config, "dtype": torch.float32, "output_loading_info": True}
        transformer, info = AutoModel.from_pretrained(name_or_path, **weights)
        raw = _MLP in info["unexpected_keys"] and _POOLER in info["missing_keys"]
        if raw:
            renamed = {r"^mlp\.dense\.": "pooler.dense."}
            transformer, info = AutoModel.from_pretrained(name_or_path, key_mapping=renamed, **weights)
        tokenizer = AutoTokenizer.from_pretrained(name_or_path, **source)
        if transformer.config.is_encoder_decoder:
            raise UserError(f"{name_or_path!r} is an encoder-decoder; an encoder such as BERT is needed")
        _check_vocabulary(name_or_path, tokenizer, transformer)
        pooler = None
        if pooler_dense(transformer) is not None and _POOLER not in info["missing_keys"]:
            pooler = "mlp" if raw else "own"
        left = tuple(sorted({name.split(".")[0] for name in info["unexpected_keys"]}))
    return Pretrained(name_or_path, transformer, tokenizer, pooler, left)


def load_sentence_transformer(name_or_path: str, device: str | None = None) -> SentenceTransformer:
    """Load a sentence-transformers model from a folder, the cache or the hub. Code that comes with it is never run.

    Without a device it is on that of sentence-transformers' choice.
    """
    folder = Path(name_or_path).is_dir()
    if folder and not (Path(name_or_path) / "modules.json").is_file():
        raise UserError(f"{name_or_path!r} is not a sentence-transformers folder")
    from sentence_transformers import SentenceTransformer  # slow to import

    logging.disable_progress_bar()  # of the weights
    with readable(name_or_path, "" if folder else ", which is no folder here, from the hub or its cache"):
        return SentenceTransformer(
            name_or_path, device=device, local_files_only=folder or not hub_reachable(), trust_remote_code=False
        )


@contextmanager
def readable(
    name_or_path: str, kind: str = " as a Hugging Face encoder, from a folder, the local cache or the hub"
) -> Iterator[None]:
    """Turn any error inside into one line that says what cannot be loaded."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # damaged files raise errors of many libraries
        raise UserError(f"cannot load {name_or_path!r}{kind}: {reason_of(error)}") from error


def pooler_dense(transformer: PreTrainedModel) -> nn.Linear | None:
    """The dense layer of an encoder's pooler that is dense + tanh on the first token, as BERT's; else None."""
    pooler = getattr(transformer, "pooler", None)
    dense = getattr(pooler, "dense", None)
    is_tanh = isinstance(getattr(pooler, "activation", None), nn.Tanh)
    return dense if is_tanh and isinstance(dense, nn.Linear) else None


def _set_dropout(config: PretrainedConfig, rate: float) -> None:
    names = [name for name, value in config.to_dict().items() if "drop" in name and isinstance(value, float | int)]
    if not names:
        raise ParameterError("dropout", "this encoder's configuration names no dropout rate")
    for name in names:
        setattr(config, name, rate)


def _check_vocabulary(name_or_path: str, tokenizer: PreTrainedTokenizerBase, transformer: PreTrainedModel) -> None:
    """Refuse a tokenizer without words: transformers makes one for a folder without tokenizer files."""
    rows, vocabulary = cast(nn.Embedding, transformer.get_input_embeddings()).num_embeddings, tokenizer.get_vocab()
    if len(vocabulary) <= len(tokenizer.all_special_tokens):
        raise UserError(f"{name_or_path!r} has no tokenizer files: no word is known")
    if (highest := max(vocabulary.values())) >= rows:
        raise UserError(f"{name_or_path!r} has a tokenizer with ids up to {highest} for {rows} token embeddings")
