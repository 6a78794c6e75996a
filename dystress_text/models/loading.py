"""Load a :class:`SentenceTransformer`, or an encoder alone, in fp32.

Code that comes with a model is never run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path
from typing import Any, cast

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Normalize,
    StaticEmbedding,
    Transformer,
)
from torch import nn
from transformers import AutoConfig, AutoModel, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from dystress_text.errors import ParameterError, UserError, reason_of
from dystress_text.io.atomic import write_json
from dystress_text.io.hub import hub_reachable, model_file
from dystress_text.models.hybrid_module import FILES, FILES_OF_0_2, HybridEmbedding

MODULES = "modules.json"
CONFIG = "config_sentence_transformers.json"

_MLP = "mlp.dense.weight"  # SimCSE's head, in a folder that SimCSE's training wrote
_POOLER = "pooler.dense.weight"


@dataclass(frozen=True)
class PretrainedEncoder:
    """An encoder without pooling, as loaded from its files.

    Attributes:
        name: folder or hub name.
        module: sentence-transformers' ``Transformer``, with the tokenizer.
        pooler: the dense layer of the encoder's pooler (dense + tanh on the first token); None
            without one, or without its weights.
        is_simcse: whether SimCSE's training wrote the folder; its MLP is then the pooler.
    """

    name: str
    module: Transformer
    pooler: nn.Linear | None
    is_simcse: bool

    @property
    def transformer(self) -> PreTrainedModel:
        """The network."""
        return transformer_of(self.module)


def load_sentence_transformer(
    name_or_path: str, device: str | None = "cpu", dropout: float | None = None
) -> SentenceTransformer:
    """Load a sentence-transformers model.

    Args:
        name_or_path: folder or hub name.
        device: where to put it; None leaves the choice to sentence-transformers.
        dropout: a rate for every dropout of the encoder, instead of its configuration's.

    Raises:
        UserError: the model is missing or damaged, lacks weights, or needs code from its folder.
    """
    if is_hybrid(Path(name_or_path)):
        from dystress_text.models.hybrid import load_hybrid

        return load_hybrid(Path(name_or_path), device)
    with readable(name_or_path):
        _check_module_types(name_or_path)
        model = _load(name_or_path, device, dropout=dropout)
        if model.transformers_model is not None:
            _check_weights(name_or_path, _loading_info(name_or_path))
    return model


def load_encoder(name_or_path: str, dropout: float | None = None) -> PretrainedEncoder:
    """Load an encoder and its tokenizer from a folder or from the hub.

    A folder of SimCSE's training (``bert.*``, ``mlp.dense.*``) is read as SimCSE's own conversion
    does it: the MLP becomes the encoder's pooler. ``dropout`` is as in
    :func:`load_sentence_transformer`.
    """
    with readable(name_or_path):
        info = _loading_info(name_or_path)
        lacks_pooler = _POOLER in info["missing_keys"]
        is_simcse = _MLP in info["unexpected_keys"] and lacks_pooler
        renamed = None
        if is_simcse:
            renamed = {r"^mlp\.dense\.": f"{info['prefix']}.pooler.dense."}
        module = _load(name_or_path, "cpu", renamed, dropout)[0]
        if not isinstance(module, Transformer):
            raise UserError(f"{name_or_path!r} has no transformer, so no pooler to choose")
        transformer = transformer_of(module)
        _check_weights(name_or_path, info)
        _check_tokenizer(name_or_path, module)
        module.max_seq_length = min(module.max_seq_length, position_limit(transformer))
    pooler = pooler_dense(transformer)
    if lacks_pooler and not is_simcse:
        pooler = None
    return PretrainedEncoder(name_or_path, module, pooler, is_simcse)


def _load(
    name_or_path: str,
    device: str | None,
    renamed: Mapping[str, str] | None = None,
    dropout: float | None = None,
) -> SentenceTransformer:
    """Load a model; ``renamed`` maps patterns of weights' names to new ones."""
    model = SentenceTransformer(
        name_or_path,
        device=device,
        trust_remote_code=False,
        local_files_only=Path(name_or_path).is_dir() or not hub_reachable(),
        model_kwargs={"dtype": torch.float32, "key_mapping": renamed},
        config_kwargs=_dropout_rates(name_or_path, dropout),
    )
    module = model[0]
    if isinstance(module, Transformer):
        module.unpad_inputs = False  # the packed pass leaves padding out, on every device
        tokenizer = module.tokenizer
        tokenizer.padding_side = "right"  # on the left, GPT-2 and its like would move positions
        if tokenizer.pad_token is None:
            if tokenizer.eos_token is None:
                raise UserError(
                    f"{name_or_path!r} has no padding token: set pad_token in tokenizer_config.json"
                )
            tokenizer.pad_token = tokenizer.eos_token
    return model


def transformer_of(module: Transformer) -> PreTrainedModel:
    """Return the network inside sentence-transformers' ``Transformer``."""
    return module.model


def prompts_of(model: SentenceTransformer) -> dict[str, Any]:
    """Return a model's prompts as arguments of a new one."""
    return {"prompts": model.prompts, "default_prompt_name": model.default_prompt_name}


def pooler_dense(transformer: PreTrainedModel) -> nn.Linear | None:
    """Return the dense layer of a pooler that is dense + tanh on the first token, as BERT's."""
    pooler: Any = getattr(transformer, "pooler", None)
    is_tanh = isinstance(getattr(pooler, "activation", None), nn.Tanh)
    return cast(nn.Linear, pooler.dense) if is_tanh else None


def position_limit(transformer: PreTrainedModel) -> int:
    """Return the number of tokens for which an encoder has positions; ``sys.maxsize`` for any.

    RoBERTa and similar encoders number positions from the padding index + 1; the rows before are
    not used.
    """
    limit = getattr(transformer.config, "max_position_embeddings", None)
    if limit is None or limit <= 0:  # XLNet's configuration says -1
        return sys.maxsize
    padding = getattr(getattr(transformer, "embeddings", None), "padding_idx", None)
    if padding is not None:
        limit -= padding + 1
    return int(limit)


def is_sentence_transformer(name_or_path: str) -> bool:
    """Return whether a folder, or a name on the hub or in its cache, has a ``modules.json``."""
    with readable(name_or_path):
        return model_file(name_or_path, MODULES) is not None


def is_hybrid(folder: Path) -> bool:
    """Return whether a folder is a saved hybrid model."""
    return any((folder / files[0]).is_file() for files in (FILES, FILES_OF_0_2))


def check_sentence_transformer(name_or_path: str) -> None:
    """Check that a model is one of sentence-transformers, which needs no pooler."""
    if not is_sentence_transformer(name_or_path):
        reason = "is not a sentence-transformers model; an encoder alone needs a pooler_type"
        raise ParameterError("model", f"{name_or_path!r} {reason}")


@contextmanager
def readable(name_or_path: str, what: str = "load") -> Iterator[None]:
    """Turn any error inside the context into one line that names the model; silence warnings."""
    try:
        with quiet():
            yield
    except UserError:
        raise
    except Exception as error:  # damaged files raise errors of many libraries
        raise UserError(f"cannot {what} {name_or_path!r}: {reason_of(error)}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Let transformers and sentence-transformers log only errors, and hide progress bars."""
    verbosity = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logger = getLogger("sentence_transformers")
    level = logger.level
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    logger.setLevel("ERROR")
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        logger.setLevel(level)
        if bars:
            logging.enable_progress_bar()


@contextmanager
def training_mode(module: nn.Module, mode: bool) -> Iterator[None]:
    """Put a module into training mode, or out of it, and back at the end."""
    before = module.training
    module.train(mode)
    try:
        yield
    finally:
        module.train(before)


def save_model(model: SentenceTransformer, folder: Path) -> None:
    """Save a model into a new folder, without the truncation and padding of the last call."""
    reset_tokenizer(model.tokenizer)
    model.save(str(folder), create_model_card=False)
    if isinstance(model[0], StaticEmbedding) and isinstance(model[-1], Normalize):
        file = folder / CONFIG
        settings = json.loads(file.read_text(encoding="utf-8"))
        write_json(file, settings | {"normalize": True})  # which model2vec reads


def reset_tokenizer(tokenizer: Any) -> None:
    """Remove truncation and padding, which a call leaves in a fast tokenizer and saving keeps."""
    backend = getattr(tokenizer, "backend_tokenizer", tokenizer)
    if hasattr(backend, "no_truncation"):
        backend.no_truncation()
        backend.no_padding()


def _check_module_types(name_or_path: str) -> None:
    """Reject modules that need code from the folder, which some releases would run."""
    file = model_file(name_or_path, MODULES)
    if file is None:
        raise UserError(
            f"{name_or_path!r} is not a sentence-transformers model: it has no {MODULES}"
        )
    for entry in json.loads(file.read_text(encoding="utf-8")):
        if entry["type"].endswith(HybridEmbedding.__name__):
            way = f"hf download {name_or_path} --local-dir FOLDER, then name FOLDER"
            raise UserError(f"{name_or_path!r} is a hybrid model: run {way}")
        if not entry["type"].startswith("sentence_transformers."):
            raise UserError(f"cannot load {name_or_path!r}: {MODULES} names {entry['type']!r}")


def files_of(name_or_path: str) -> dict[str, Any]:
    """Return the options with which transformers finds an encoder, in the first module's folder."""
    folder = ""
    file = model_file(name_or_path, MODULES)
    if file is not None:
        folder = json.loads(file.read_text(encoding="utf-8"))[0]["path"]
    return {"local_files_only": not hub_reachable(), "subfolder": folder}


def _loading_info(name_or_path: str) -> dict[str, Any]:
    """Return the missing and the unexpected weights of an encoder's files, and its prefix.

    sentence-transformers does not return this, so the weights are read a second time.
    """
    with torch.random.fork_rng(devices=[]):  # missing weights are drawn at random
        transformer, info = AutoModel.from_pretrained(
            name_or_path,
            dtype=torch.float32,
            output_loading_info=True,
            trust_remote_code=False,
            **files_of(name_or_path),
        )
    if transformer.config.is_encoder_decoder:
        raise UserError(
            f"{name_or_path!r} is an encoder-decoder; an encoder such as BERT is needed"
        )
    return {**info, "prefix": transformer.base_model_prefix}


def _check_weights(name_or_path: str, info: Mapping[str, Any]) -> None:
    """Reject an encoder that lacks weights other than those of its pooler, which is not used."""
    lacking = sorted(key for key in info["missing_keys"] if not key.startswith("pooler."))
    if lacking:
        raise UserError(
            f"{name_or_path!r} lacks weights of its encoder, {len(lacking)} in all, such as "
            f"{lacking[0]}"
        )


def _check_tokenizer(name_or_path: str, module: Transformer) -> None:
    """Reject an empty tokenizer, which transformers makes of missing files."""
    tokenizer = cast(PreTrainedTokenizerBase, module.tokenizer)
    if len(tokenizer.get_vocab()) <= len(tokenizer.all_special_tokens):
        raise UserError(f"{name_or_path!r} has no tokenizer files: its vocabulary is empty")


def _dropout_rates(name_or_path: str, rate: float | None) -> dict[str, Any]:
    """Return the rate under each name of a dropout rate in the encoder's configuration."""
    if rate is None:
        return {}
    config = AutoConfig.from_pretrained(
        name_or_path, trust_remote_code=False, **files_of(name_or_path)
    )
    names = [
        name
        for name, value in config.to_dict().items()
        if "drop" in name and isinstance(value, float | int)
    ]
    if not names:
        raise ParameterError("dropout", "this encoder's configuration names no dropout rate")
    return dict.fromkeys(names, rate)
