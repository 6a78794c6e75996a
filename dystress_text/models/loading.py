"""Load and save models: a :class:`SentenceTransformer`, or an encoder alone, in fp32.

Code that comes with a model is never run.
"""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Normalize,
    StaticEmbedding,
    Transformer,
)
from tokenizers import Tokenizer
from torch import nn
from transformers import AutoConfig, AutoModel, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from dystress_text.errors import ParameterError, UserError, reason_of
from dystress_text.io.atomic import atomic_files, write_json, write_text
from dystress_text.io.hub import hub_reachable, model_file
from dystress_text.models import hybrid_module
from dystress_text.models.hybrid_module import SETTINGS, HybridEmbedding

MODULES = "modules.json"
CONFIG = "config_sentence_transformers.json"
_OLD_SETTINGS = "beside.json"  # in hybrid models of release 0.2

_SENTENCE_TRANSFORMER = "SentenceTransformer"  # the value of model_type in CONFIG
# names that earlier releases of the libraries read, as later ones do, or that need no dystress_text
_OLD_NAMES = {
    r'"sentence_transformers\.(?:base|sentence_transformer)\.modules\.(?:\w+\.)?(\w+)"': (
        r'"sentence_transformers.models.\1"'
    ),
    r'"dystress_text\.models\.(hybrid_module\.\w+)"': r'"\1"',
    '"TokenizersBackend"': '"PreTrainedTokenizerFast"',
    r'"extra_special_tokens": \[': '"additional_special_tokens": [',
}
_MLP = "mlp.dense.weight"  # of SimCSE's head, in a checkpoint of SimCSE's training
_POOLER = "pooler.dense.weight"


@dataclass(frozen=True)
class PretrainedEncoder:
    """An encoder loaded from its files, without pooling.

    Attributes:
        name: the folder or hub name.
        module: a ``Transformer`` of sentence-transformers, which has the tokenizer.
        pooler: the dense layer of the encoder's pooler (dense + tanh on the first token), or None
            if the files lack one.
        is_simcse: whether the files are a checkpoint of SimCSE's training, whose MLP is ``pooler``.
    """

    name: str
    module: Transformer
    pooler: nn.Linear | None
    is_simcse: bool

    @property
    def transformer(self) -> PreTrainedModel:
        """The network, a model of transformers."""
        return transformer_of(self.module)


def load_sentence_transformer(
    name_or_path: str, device: str | None = "cpu", dropout: float | None = None
) -> SentenceTransformer:
    """Load a sentence-transformers model.

    Args:
        name_or_path: folder or hub name.
        device: the device of the model; None lets sentence-transformers choose.
        dropout: the rate of all dropout layers of the encoder; None keeps its configuration's.

    Raises:
        UserError: the model is missing or damaged, lacks weights, needs code from its folder, or is
            of another kind, such as a CrossEncoder.
    """
    if is_hybrid(Path(name_or_path)):
        return _load_hybrid(Path(name_or_path), device)
    with readable(name_or_path):
        folders = _folders_of_encoders(name_or_path)
        model = _load(name_or_path, device, dropout=dropout)
        modules = [module for module in model.modules() if isinstance(module, Transformer)]
        for folder, module in zip(folders, modules, strict=False):
            info = _loading_info(name_or_path, type(transformer_of(module)), folder)
            _check_weights_are_complete(name_or_path, info)
    return model


def load_encoder(name_or_path: str, dropout: float | None = None) -> PretrainedEncoder:
    """Load an encoder and its tokenizer from a folder or the hub.

    A checkpoint of SimCSE's training (with weights ``bert.*`` and ``mlp.dense.*``) is read as
    SimCSE's script converts it: the MLP becomes the encoder's pooler. ``dropout`` is as in
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
            reason = "has no transformer, so its pooler is fixed; leave `pooler_type` out"
            raise UserError(f"{name_or_path!r} {reason}")
        transformer = transformer_of(module)
        _check_weights_are_complete(name_or_path, info)
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
    """Load a model; ``renamed`` maps regular expressions for names of weights to new names."""
    _check_model_type(name_or_path)
    model: SentenceTransformer = SentenceTransformer(
        name_or_path,
        device=device,
        trust_remote_code=False,
        local_files_only=Path(name_or_path).is_dir() or not hub_reachable(),
        model_kwargs={"dtype": torch.float32, "key_mapping": renamed},
        config_kwargs=_dropout_rates(name_or_path, dropout),
    ).float()  # also modules other than the transformer
    for module in model.modules():
        if not isinstance(module, Transformer):
            continue
        module.unpad_inputs = False  # the packed pass does so, on every device
        tokenizer = module.tokenizer
        tokenizer.padding_side = "right"  # left padding would shift the positions of GPT-2
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
    """Return the prompts of a model as keyword arguments of ``SentenceTransformer``."""
    return {"prompts": model.prompts, "default_prompt_name": model.default_prompt_name}


def pooler_dense(transformer: PreTrainedModel) -> nn.Linear | None:
    """Return the dense layer of an encoder's pooler, or None if the pooler is not dense + tanh."""
    pooler: Any = getattr(transformer, "pooler", None)
    is_tanh = isinstance(getattr(pooler, "activation", None), nn.Tanh)
    return cast(nn.Linear, pooler.dense) if is_tanh else None


def position_limit(transformer: PreTrainedModel) -> int:
    """Return the greatest number of tokens that an encoder reads, ``sys.maxsize`` without a limit.

    RoBERTa and similar encoders number positions from padding index + 1, so earlier rows of their
    table are unused.
    """
    limit = getattr(transformer.config, "max_position_embeddings", None)
    if limit is None or limit <= 0:  # -1 in XLNet
        return sys.maxsize
    padding = getattr(getattr(transformer, "embeddings", None), "padding_idx", None)
    if padding is not None:
        limit -= padding + 1
    return int(limit)


def is_sentence_transformer(name_or_path: str) -> bool:
    """Return whether a model has a ``modules.json`` in its folder, on the hub or in the cache."""
    with readable(name_or_path):
        return model_file(name_or_path, MODULES) is not None


def is_hybrid(folder: Path) -> bool:
    """Return whether a folder is a saved hybrid model."""
    return any((folder / name).is_file() for name in (SETTINGS, _OLD_SETTINGS))


def _load_hybrid(folder: Path, device: str | None) -> SentenceTransformer:
    """Load a hybrid model with this package's class, not with the code in its folder."""

    def load_model(path: str) -> SentenceTransformer:
        return load_sentence_transformer(path, device)

    with readable(str(folder)):
        load = _old_hybrid if (folder / _OLD_SETTINGS).is_file() else HybridEmbedding.from_folder
        module = load(folder, load_model)
        return SentenceTransformer(
            modules=[module],
            device=str(module.model.device),
            prompts=(_json_of(str(folder), CONFIG) or {}).get("prompts"),
            default_prompt_name=module.model.default_prompt_name,
            similarity_fn_name="cosine",
        )


def _old_hybrid(folder: Path, load_model: Callable[[str], SentenceTransformer]) -> HybridEmbedding:
    """Load a hybrid model of release 0.2: a dense model and a table with a weight."""
    weight = json.loads((folder / _OLD_SETTINGS).read_text(encoding="utf-8"))["weight"]
    embedding = StaticEmbedding(
        Tokenizer.from_file(str(folder / "words.json")),
        embedding_weights=load_file(folder / "words.safetensors")["table"],
    )
    static = SentenceTransformer(modules=[embedding], device="cpu")
    parts = {"dense": load_model(str(folder / "model")), "table": static}
    return HybridEmbedding(parts, {"dense": 1.0, "table": weight**2})


def check_sentence_transformer(name_or_path: str) -> None:
    """Check that a model has pooling, since an encoder alone needs a ``pooler_type``."""
    if not is_sentence_transformer(name_or_path):
        reason = "is not a sentence-transformers model; an encoder alone needs a `pooler_type`"
        raise ParameterError("model", f"{name_or_path!r} {reason}")


@contextmanager
def readable(name_or_path: str, what: str = "load") -> Iterator[None]:
    """In this context, turn any error into a UserError that names the model; be quiet."""
    try:
        with quiet():
            yield
    except UserError:
        raise
    except Exception as error:  # damaged files raise errors of many libraries
        raise UserError(f"cannot {what} {name_or_path!r}: {reason_of(error)}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """In this context, transformers and sentence-transformers log only errors and show no bars."""
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


def save_model(model: SentenceTransformer, folder: str | Path) -> None:
    """Save a model so that sentence-transformers 5.4 or newer loads it.

    The folder of a hybrid contains the code of its module, so that it loads without this package.
    An earlier model in the folder is replaced when all new files are complete.
    """
    # calls leave these in a fast tokenizer, and saving keeps them; a static model's are its own
    tokenizer = getattr(model[0], "tokenizer", None)
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        backend.no_truncation()
        backend.no_padding()
    with quiet(), atomic_files(folder) as complete:
        model.save(str(complete), create_model_card=False)
        use_old_names(complete)
        if isinstance(model[0], HybridEmbedding):
            shutil.copy(hybrid_module.__file__, complete)
        if isinstance(model[0], StaticEmbedding) and isinstance(model[-1], Normalize):
            file = complete / CONFIG
            settings = json.loads(file.read_text(encoding="utf-8"))
            write_json(file, settings | {"normalize": True})  # for model2vec


def use_old_names(folder: Path) -> None:
    """Undo renamings of sentence-transformers 6 and transformers 5, for earlier releases."""
    for file in folder.rglob("*.json"):
        if file.name in (MODULES, "tokenizer_config.json"):
            text = file.read_text(encoding="utf-8")
            for new, old in _OLD_NAMES.items():
                text = re.sub(new, old, text)
            write_text(file, text)


def _folders_of_encoders(name_or_path: str) -> list[str]:
    """Return the subfolders of a model's encoders: of its first module, or of all in a ``Router``.

    Modules with code of their own are rejected, since some releases of sentence-transformers would
    run it.
    """
    modules = _json_of(name_or_path, MODULES)
    if modules is None:
        raise UserError(
            f"{name_or_path!r} is not a sentence-transformers model: it has no {MODULES}"
        )
    types = [entry["type"] for entry in modules]
    first = Path(modules[0]["path"])
    folders = [first]
    router = _json_of(name_or_path, (first / "router_config.json").as_posix())
    if router is not None:
        types += router["types"].values()
        folders = [first / part for part, name in router["types"].items() if "Transformer" in name]
    for name in types:
        if name.endswith(HybridEmbedding.__name__):
            way = f"hf download {name_or_path} --local-dir FOLDER, then name FOLDER"
            raise UserError(f"{name_or_path!r} is a hybrid model: run {way}")
        if not name.startswith("sentence_transformers."):
            reason = f"{MODULES} names {name!r}, and only modules of sentence-transformers are run"
            raise UserError(f"cannot load {name_or_path!r}: {reason}")
    return [folder.as_posix() for folder in folders]


def _check_model_type(name_or_path: str) -> None:
    """Reject models of other kinds, which sentence-transformers would load with mean pooling."""
    kind = (_json_of(name_or_path, CONFIG) or {}).get("model_type", _SENTENCE_TRANSFORMER)
    if "sentence_transformers" in (_json_of(name_or_path, "config.json") or {}):
        kind = "CrossEncoder"  # in earlier releases this key was its only sign
    if kind != _SENTENCE_TRANSFORMER:
        raise UserError(
            f"{name_or_path!r} is a {kind}; a {_SENTENCE_TRANSFORMER} or an encoder is needed"
        )


def _json_of(name_or_path: str, file: str) -> Any:
    """Return the content of a model's JSON file, or None if there is no such file."""
    path = model_file(name_or_path, file)
    return None if path is None else json.loads(path.read_text(encoding="utf-8"))


def files_of(name_or_path: str, folder: str | None = None) -> dict[str, Any]:
    """Return keyword arguments of ``from_pretrained`` that find the encoder in a model.

    Args:
        name_or_path: folder or hub name.
        folder: the encoder's subfolder; None for that of the first module.
    """
    if folder is None:
        modules = _json_of(name_or_path, MODULES)
        folder = modules[0]["path"] if modules else ""
    return {"local_files_only": not hub_reachable(), "subfolder": folder}


def _loading_info(
    name_or_path: str, kind: type[Any] = AutoModel, folder: str | None = None
) -> dict[str, Any]:
    """Return transformers' loading info for an encoder, and its ``base_model_prefix``.

    This reads the weights a second time, as sentence-transformers does not return the info.

    Args:
        name_or_path: folder or hub name.
        kind: the class that sentence-transformers loads with; for T5 it has only the encoder.
        folder: as in :func:`files_of`.
    """
    with torch.random.fork_rng(devices=[]):  # missing weights are drawn at random
        transformer, info = kind.from_pretrained(
            name_or_path,
            dtype=torch.float32,
            output_loading_info=True,
            trust_remote_code=False,
            **files_of(name_or_path, folder),
        )
    if transformer.config.is_encoder_decoder:
        raise UserError(
            f"{name_or_path!r} is an encoder-decoder; an encoder such as BERT is needed"
        )
    return {**info, "prefix": transformer.base_model_prefix}


def _check_weights_are_complete(name_or_path: str, info: Mapping[str, Any]) -> None:
    """Reject an encoder that lacks weights other than those of its pooler, which is not used."""
    lacking = sorted(key for key in info["missing_keys"] if not key.startswith("pooler."))
    if lacking:
        raise UserError(
            f"{name_or_path!r} lacks weights of its encoder, {len(lacking)} in all, such as "
            f"{lacking[0]}"
        )


def _check_tokenizer(name_or_path: str, module: Transformer) -> None:
    """Reject an empty tokenizer, which transformers makes if the files of one are missing."""
    tokenizer = cast(PreTrainedTokenizerBase, module.tokenizer)
    if len(tokenizer.get_vocab()) <= len(tokenizer.all_special_tokens):
        raise UserError(f"{name_or_path!r} has no tokenizer files: its vocabulary is empty")


def _dropout_rates(name_or_path: str, rate: float | None) -> dict[str, Any]:
    """Map every dropout field of the encoder's configuration to ``rate``.

    Such fields are ``attention_dropout`` or GPT-2's ``resid_pdrop``, but not those that drop whole
    layers, ``layerdrop`` and ``drop_path_rate``.
    """
    if rate is None:
        return {}
    config = AutoConfig.from_pretrained(
        name_or_path, trust_remote_code=False, **files_of(name_or_path)
    )
    names = [
        name
        for name, value in config.to_dict().items()
        if ("dropout" in name or name.endswith("pdrop")) and isinstance(value, float | int)
    ]
    if not names:
        reason = "this encoder's configuration has no dropout rate; leave the option out"
        raise ParameterError("dropout", reason)
    return dict.fromkeys(names, rate)
