"""The layout of saved models: what sentence-transformers' own ``save`` writes, in the words of
release 5.1.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from dystress_text.encoders.pooling import averages_layers, layer_weights, token_of
from dystress_text.files.whole import write_json, write_text

MODULES = "modules.json"
SETTINGS = "config_sentence_transformers.json"
TRANSFORMER = "sentence_bert_config.json"
BESIDE = "beside.json"  # of a model with a table of words beside it
PROMPTS = "sentence_transformers"  # where a transformer's configuration keeps prompts and similarity until then

_OLD_NAMES = {"embedding_dimension": "word_embedding_dimension"}
_OF_A_CALL = (
    "max_length",
    "stride",
    "truncation_strategy",
    "pad_to_multiple_of",
)  # no part of a tokenizer
_NEW_NAMES = ("module_input_name", "module_output_name", "include_prompt")  # at their defaults


class Transformer(nn.Module):
    """The first module of a SentenceTransformer that is only saved: its own would load a folder.

    Apart, it has a folder of its own, which gets the name of this class. A reader that knows a
    transformer's files alone, and would leave out what follows the transformer, then finds none and
    fails.
    """

    def __init__(
        self,
        transformer: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        several: bool,
        apart: bool,
        weights: bool,
    ) -> None:
        super().__init__()
        self.transformer, self.tokenizer, self.several, self.weights = (
            transformer,
            tokenizer,
            several,
            weights,
        )
        self.save_in_root = not apart

    def save(self, path: str, **_: Any) -> None:
        if self.weights:
            self.transformer.save_pretrained(path)
        config = copy.deepcopy(
            self.transformer.config
        )  # that of the encoder, which may go on training, stays
        config.output_hidden_states = self.several
        vars(config).pop(PROMPTS, None)  # they have a file of their own
        write_config(config, Path(path))
        write_tokenizer(self.tokenizer, Path(path))
        limit = self.tokenizer.model_max_length
        write_json(Path(path) / TRANSFORMER, {"max_seq_length": limit})


def prompt_of(transformer: PreTrainedModel, role: str = "") -> str:
    """What sentence-transformers puts before a text: before any, or before a ``query`` or a
    ``document``.
    """
    kept = getattr(transformer.config, PROMPTS, {})
    names = {"query": ("query",), "document": ("document", "passage", "corpus")}.get(role, ())
    prompts = kept.get("prompts", {})
    return next(
        (prompts[name] for name in (*names, kept.get("default_prompt_name")) if name in prompts), ""
    )


def prompts_of(model: Any) -> dict[str, Any]:
    """Prompts and similarity of a SentenceTransformer as its arguments; empty without prompts and
    with cosine.
    """
    kept = {
        name: getattr(model, name)
        for name in ("prompts", "default_prompt_name", "similarity_fn_name")
    }
    return kept if any(model.prompts.values()) or model.similarity_fn_name != "cosine" else {}


@contextmanager
def quiet() -> Iterator[None]:
    """transformers says only errors and shows no bars: what it has to say of a model is said by
    this package.
    """
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
    layers: Tensor | None = None,
    weights: bool = True,
) -> None:
    """Write a model into an empty folder; no random number is drawn.

    Args:
        folder: an existing one.
        transformer: without adapters.
        tokenizer: its own; ``model_max_length`` is the model's limit.
        pooler_type: one of :data:`dystress_text.encoders.pooling.POOLERS`.
        dense: a head's, (dim, dim), applied with tanh to the pooled vector.
        normalize: the vectors get length 1.
        layers: weights of the layers that are averaged before the tokens, (layers + 1,); None for
            the pooler's.
        weights: write the transformer's too.
    """
    from sentence_transformers import SentenceTransformer  # slow to import
    from sentence_transformers import models as kinds  # type: ignore[attr-defined]  # the name in every release

    dim, depth = transformer.config.hidden_size, transformer.config.num_hidden_layers
    if layers is None and averages_layers(pooler_type):
        layers = layer_weights(pooler_type, depth)
    apart = layers is not None or dense is not None
    modules: list[nn.Module] = [
        Transformer(transformer, tokenizer, layers is not None, apart, weights)
    ]
    with torch.random.fork_rng(devices=[]):
        if layers is not None:
            modules.append(kinds.WeightedLayerPooling(dim, depth, 0, nn.Parameter(layers.clone())))
        modules.append(kinds.Pooling(dim, token_of(pooler_type)))
        if dense is not None:
            modules.append(
                kinds.Dense(
                    dim, dim, init_weight=dense.weight.detach(), init_bias=dense.bias.detach()
                )
            )
        if normalize:
            modules.append(kinds.Normalize())
        kept = getattr(transformer.config, PROMPTS, {})
        model = SentenceTransformer(modules=modules, device=str(transformer.device), **kept)
        model.save(str(folder), create_model_card=False)
    reword(folder, token_of(pooler_type))


def write_config(config: PretrainedConfig, folder: Path) -> None:
    """Write ``config.json``, with rotary positions under the names of transformers 4 too."""
    config.save_pretrained(folder)
    rope, older = (
        getattr(config, "rope_parameters", None) or {},
        {},
    )  # transformers 5 has one name for all
    if config.model_type == "modernbert" and rope:
        older["global_rope_theta"] = rope["full_attention"]["rope_theta"]
        older["local_rope_theta"] = rope["sliding_attention"]["rope_theta"]
        older["global_attn_every_n_layers"] = [*config.layer_types, "full_attention"].index(
            "full_attention", 1
        )
    elif "rope_theta" in rope:
        older = {"rope_theta": rope["rope_theta"]}
        if rope["rope_type"] != "default":
            older["rope_scaling"] = {
                name: value for name, value in rope.items() if name != "rope_theta"
            }
    write_json(
        folder / "config.json",
        json.loads((folder / "config.json").read_text(encoding="utf-8")) | older,
    )


def write_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write the tokenizer's files, also for transformers 4, for tokenizers before 0.20, and for
    readers of its lists.

    Version 5 of transformers has a new name for a tokenizer without a class, and writes neither of
    the two lists.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:  # the last call's settings are no part of the model
        backend.no_truncation()
        backend.no_padding()
    tokenizer.save_pretrained(folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings = {name: value for name, value in settings.items() if name not in _OF_A_CALL}
    if settings.get("tokenizer_class") == "TokenizersBackend":
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    write_json(folder / "tokenizer_config.json", settings)
    write_json(folder / "special_tokens_map.json", tokenizer.special_tokens_map)
    if backend is not None:
        _write_lists(folder)


def _write_lists(folder: Path) -> None:
    """Write word pieces as ``vocab.txt``, and merges as pairs in a string, as older readers have
    them.
    """
    file = folder / "tokenizer.json"
    whole = json.loads(file.read_text(encoding="utf-8"))
    model = whole["model"]
    if model["type"] == "WordPiece":
        pieces = sorted(model["vocab"], key=model["vocab"].__getitem__)
        if list(map(model["vocab"].__getitem__, pieces)) == list(
            range(len(pieces))
        ):  # a line is an id
            write_text(folder / "vocab.txt", "".join(f"{piece}\n" for piece in pieces))
    merges = model.get("merges") or [""]
    if not isinstance(merges[0], str) and not any(" " in part for pair in merges for part in pair):
        model["merges"] = [" ".join(pair) for pair in merges]
        file.write_text(json.dumps(whole, ensure_ascii=False, indent=1), encoding="utf-8")


def reword(folder: Path, mode: str) -> None:
    """Name modules and settings as sentence-transformers does before 5.4, and as servers read them."""
    modules = json.loads((folder / MODULES).read_text(encoding="utf-8"))
    for module in modules:
        kind, path = module["type"].rpartition(".")[2], folder / module["path"] / "config.json"
        module["type"] = f"sentence_transformers.models.{kind}"
        if kind == "Transformer" or not path.is_file():
            continue
        settings = json.loads(path.read_text(encoding="utf-8"))
        settings = {
            _OLD_NAMES.get(name, name): value
            for name, value in settings.items()
            if name not in _NEW_NAMES
        }
        if kind == "Pooling":
            tokens = ("cls_token", "mean_tokens", "lasttoken")
            settings |= {f"pooling_mode_{token}": token.startswith(mode) for token in tokens}
        write_json(path, settings)
    write_json(folder / MODULES, modules)
