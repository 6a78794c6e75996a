"""The layout of saved models: what sentence-transformers' own ``save`` writes, in the words of release 5.1."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from dystress_text.encoders.pooling import averages_layers, layer_weights, token_of
from dystress_text.files.whole import write_json

MODULES = "modules.json"
TRANSFORMER = "sentence_bert_config.json"
BESIDE = "beside.json"  # of a model with a table of words beside it
PROMPTS = "sentence_transformers"  # where a transformer's configuration keeps prompts and similarity until then

_OLD_NAMES = {"embedding_dimension": "word_embedding_dimension"}
_NEW_NAMES = ("module_input_name", "module_output_name", "include_prompt")  # at their defaults


class _TransformerFiles(nn.Module):
    """The first module of a SentenceTransformer that is only saved: its own would load a folder."""

    save_in_root = True

    def __init__(self, transformer: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, several_layers: bool) -> None:
        super().__init__()
        self.transformer, self.tokenizer, self.several_layers = transformer, tokenizer, several_layers

    def save(self, path: str, **_: Any) -> None:
        self.transformer.save_pretrained(path)
        config = copy.deepcopy(self.transformer.config)  # that of the encoder, which may go on training, stays
        config.output_hidden_states = self.several_layers
        vars(config).pop(PROMPTS, None)  # they have a file of their own
        write_config(config, Path(path))
        write_tokenizer(self.tokenizer, Path(path))
        limit = self.tokenizer.model_max_length
        write_json(Path(path) / TRANSFORMER, {"max_seq_length": limit})


def prompt_of(transformer: PreTrainedModel, role: str = "") -> str:
    """What sentence-transformers puts before a text: before any, or before a ``query`` or a ``document``."""
    kept = getattr(transformer.config, PROMPTS, {})
    names = {"query": ("query",), "document": ("document", "passage", "corpus")}.get(role, ())
    prompts = kept.get("prompts", {})
    return next((prompts[name] for name in (*names, kept.get("default_prompt_name")) if name in prompts), "")


def prompts_of(model: Any) -> dict[str, Any]:
    """Prompts and similarity of a SentenceTransformer as its arguments; empty without prompts and with cosine."""
    kept = {name: getattr(model, name) for name in ("prompts", "default_prompt_name", "similarity_fn_name")}
    return kept if any(model.prompts.values()) or model.similarity_fn_name != "cosine" else {}


@contextmanager
def quiet() -> Iterator[None]:
    """transformers says only errors and shows no bars: what it has to say of a model is said by this package."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


@quiet()
def write_model(
    folder: Path,
    transformer: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pooler_type: str,
    dense: nn.Linear | None = None,
    normalize: bool = False,
) -> None:
    """Write a model into an empty folder; no random number is drawn.

    Args:
        folder: an existing one.
        transformer: without adapters.
        tokenizer: its own; ``model_max_length`` is the model's limit.
        pooler_type: one of :data:`dystress_text.encoders.pooling.POOLERS`.
        dense: a head's, (dim, dim), applied with tanh to the pooled vector.
        normalize: the vectors get length 1.
    """
    from sentence_transformers import SentenceTransformer  # slow to import
    from sentence_transformers import models as kinds  # type: ignore[attr-defined]  # the name in every release

    dim, layers = transformer.config.hidden_size, transformer.config.num_hidden_layers
    several = averages_layers(pooler_type)
    modules: list[nn.Module] = [_TransformerFiles(transformer, tokenizer, several)]
    with torch.random.fork_rng(devices=[]):
        if several:
            weights = nn.Parameter(layer_weights(pooler_type, layers))
            modules.append(kinds.WeightedLayerPooling(dim, layers, 0, weights))
        modules.append(kinds.Pooling(dim, token_of(pooler_type)))
        if dense is not None:
            modules.append(kinds.Dense(dim, dim, init_weight=dense.weight.detach(), init_bias=dense.bias.detach()))
        if normalize:
            modules.append(kinds.Normalize())
        kept = getattr(transformer.config, PROMPTS, {})
        model = SentenceTransformer(modules=modules, device=str(transformer.device), **kept)
        model.save(str(folder), create_model_card=False)
    _reword(folder, token_of(pooler_type))


def write_config(config: PretrainedConfig, folder: Path) -> None:
    """Write ``config.json``, with rotary positions under the names of transformers 4 too."""
    config.save_pretrained(folder)
    rope, older = getattr(config, "rope_parameters", None) or {}, {}  # transformers 5 has one name for all
    if config.model_type == "modernbert" and rope:
        older["global_rope_theta"] = rope["full_attention"]["rope_theta"]
        older["local_rope_theta"] = rope["sliding_attention"]["rope_theta"]
        older["global_attn_every_n_layers"] = [*config.layer_types, "full_attention"].index("full_attention", 1)
    elif "rope_theta" in rope:
        older = {"rope_theta": rope["rope_theta"]}
        if rope["rope_type"] != "default":
            older["rope_scaling"] = {name: value for name, value in rope.items() if name != "rope_theta"}
    write_json(folder / "config.json", json.loads((folder / "config.json").read_text(encoding="utf-8")) | older)


def write_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write the tokenizer's files, for transformers 4 too: version 5 has a new name for a tokenizer without a class."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:  # the last call's settings are no part of the model
        backend.no_truncation()
        backend.no_padding()
    tokenizer.save_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    if settings.get("tokenizer_class") == "TokenizersBackend":
        write_json(folder / "tokenizer_config.json", settings | {"tokenizer_class": "PreTrainedTokenizerFast"})


def _reword(folder: Path, mode: str) -> None:
    """Name modules and settings as sentence-transformers does before 5.4, and as servers read them."""
    modules = json.loads((folder / MODULES).read_text(encoding="utf-8"))
    for module in modules:
        kind, path = module["path"].partition("_")[2] or "Transformer", folder / module["path"] / "config.json"
        module["type"] = f"sentence_transformers.models.{kind}"
        if kind == "Transformer" or not path.is_file():
            continue
        settings = json.loads(path.read_text(encoding="utf-8"))
        settings = {_OLD_NAMES.get(name, name): value for name, value in settings.items() if name not in _NEW_NAMES}
        if kind == "Pooling":
            tokens = ("cls_token", "mean_tokens", "lasttoken")
            settings |= {f"pooling_mode_{token}": token.startswith(mode) for token in tokens}
        write_json(path, settings)
    write_json(folder / MODULES, modules)
