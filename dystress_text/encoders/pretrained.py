"""What the files of a pretrained encoder hold: the transformer, its tokenizer, and a head that may come with them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

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

from dystress_text.errors import UserError
from dystress_text.files.hub import hub_reachable

_MLP = "mlp.dense.weight"  # the head in a folder that SimCSE's training has left
_POOLER = "pooler.dense.weight"


@dataclass(frozen=True)
class Pretrained:
    """An encoder as its files have it.

    Attributes:
        name: folder or hub name.
        transformer: in fp32.
        tokenizer: the encoder's.
        pooler: where the weights of its pooler (dense + tanh on the first token) come from: ``own`` is the pooler in
            the files, ``mlp`` the MLP of a SimCSE training folder; None where there is no such pooler, or the files
            have no weights for it.
        left: what else lies in the files and is taken by no part of the encoder, by the first part of the names.
    """

    name: str
    transformer: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    pooler: str | None
    left: tuple[str, ...]


def load_pretrained(name_or_path: str, dropout: float | None = None) -> Pretrained:
    """An encoder and its tokenizer from a folder or from the hub. Code that comes with a model is never run.

    The folder that SimCSE's training leaves (``bert.*``, ``mlp.dense.*``) is read as what SimCSE's own conversion
    makes of it: the MLP becomes the encoder's pooler.

    Args:
        name_or_path: folder or hub name.
        dropout: a rate for every dropout of the encoder, instead of its configuration's.

    Raises:
        UserError: nothing loads from there, or the tokenizer and the encoder do not belong together.
    """
    with readable(name_or_path):
        # None would ask on the terminal whether to run code that comes with a model, and take a piped "y" for an answer
        source: dict[str, Any] = {"local_files_only": not hub_reachable(), "trust_remote_code": False}
        config = AutoConfig.from_pretrained(name_or_path, **source)
        if dropout is not None:
            _set_dropout(config, dropout)
        source |= {"config": config, "dtype": torch.float32, "output_loading_info": True}
        transformer, info = AutoModel.from_pretrained(name_or_path, **source)
        raw = _MLP in info["unexpected_keys"] and _POOLER in info["missing_keys"]
        if raw:
            renamed = {r"^mlp\.dense\.": "pooler.dense."}
            transformer, info = AutoModel.from_pretrained(name_or_path, key_mapping=renamed, **source)
        del source["config"], source["dtype"], source["output_loading_info"]
        tokenizer = AutoTokenizer.from_pretrained(name_or_path, **source)
        if transformer.config.is_encoder_decoder:
            raise UserError(
                f"--model_name_or_path: {name_or_path!r} is an encoder-decoder; an encoder such as BERT is needed"
            )
        _check_vocabulary(name_or_path, tokenizer, transformer)
        pooler = None
        if pooler_dense(transformer) is not None and _POOLER not in info["missing_keys"]:
            pooler = "mlp" if raw else "own"
        left = tuple(sorted({name.split(".")[0] for name in info["unexpected_keys"]}))
    return Pretrained(name_or_path, transformer, tokenizer, pooler, left)


@contextmanager
def readable(name_or_path: str) -> Iterator[None]:
    """Whatever goes wrong inside becomes one line that says what cannot be loaded."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # a damaged file shows itself as an error of any library underneath
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(
            f"--model_name_or_path: cannot load {name_or_path!r} as a Hugging Face encoder, from a folder, the local "
            f"cache or the hub: {reason}"
        ) from error


def pooler_dense(transformer: PreTrainedModel) -> nn.Linear | None:
    """The dense layer of an encoder's pooler that is dense + tanh on the first token, as BERT's; else None."""
    pooler = getattr(transformer, "pooler", None)
    dense = getattr(pooler, "dense", None)
    is_tanh = isinstance(getattr(pooler, "activation", None), nn.Tanh)
    return dense if is_tanh and isinstance(dense, nn.Linear) else None


def _set_dropout(config: PretrainedConfig, rate: float) -> None:
    names = [name for name, value in config.to_dict().items() if "drop" in name and isinstance(value, float | int)]
    if not names:
        raise UserError("--dropout: this encoder's configuration names no dropout rate")
    for name in names:
        setattr(config, name, rate)


def _check_vocabulary(name_or_path: str, tokenizer: PreTrainedTokenizerBase, transformer: PreTrainedModel) -> None:
    """A folder without tokenizer files still gives a tokenizer: one that knows its special tokens alone."""
    rows = len(cast(nn.Embedding, transformer.get_input_embeddings()).weight)
    vocabulary = tokenizer.get_vocab()
    if len(vocabulary) <= len(tokenizer.all_special_tokens):
        raise UserError(f"--model_name_or_path: {name_or_path!r} has no tokenizer files: no word is known")
    if max(vocabulary.values()) >= rows:
        raise UserError(
            f"--model_name_or_path: {name_or_path!r} has a tokenizer with ids up to {max(vocabulary.values())} for "
            f"{rows} token embeddings; they do not belong together"
        )
    if len(vocabulary) < rows // 2:
        warnings.warn(
            f"the tokenizer of {name_or_path!r} knows {len(vocabulary):,} of the encoder's {rows:,} tokens; do they "
            "belong together?",
            stacklevel=3,
        )
