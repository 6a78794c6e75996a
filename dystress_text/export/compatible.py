"""A saved model in the words of sentence-transformers 5.1 and of transformers 4, for older readers.

sentence-transformers 5.4 renamed modules and settings, transformers 5 some settings of encoders and
tokenizers; the vectors are the same.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding, Transformer
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from dystress_text.io.atomic import write_json, write_text
from dystress_text.models.loading import MODULES, reset_tokenizer, save_model, transformer_of
from dystress_text.models.static import save_static
from dystress_text.training.run_folder import read_json

_OLD_NAMES = {"embedding_dimension": "word_embedding_dimension"}
_NEW_NAMES = ("module_input_name", "module_output_name", "include_prompt")  # at their defaults
# settings of a tokenizer's last call, which are no part of it
_OF_A_CALL = ("max_length", "stride", "truncation_strategy", "pad_to_multiple_of")


def write_compatible(model: SentenceTransformer, folder: Path) -> None:
    """Save a model into a new folder, for sentence-transformers from 5.1 on and other readers."""
    first = model[0]
    save = save_static if isinstance(first, StaticEmbedding) else save_model
    save(model, folder)
    if isinstance(first, Transformer):
        write_config(transformer_of(first).config, folder)
        write_tokenizer(first.tokenizer, folder)
        limit = model.max_seq_length
        write_json(folder / "sentence_bert_config.json", {"max_seq_length": limit})
    if isinstance(first, Transformer | StaticEmbedding):
        _rename_modules(folder)


def write_config(config: PretrainedConfig, folder: Path) -> None:
    """Write ``config.json``, with rotary positions under the names of transformers 4 too."""
    config.save_pretrained(folder)
    rope = dict(getattr(config, "rope_parameters", None) or {})  # the name of transformers 5
    older: dict[str, Any] = {}
    if config.model_type == "modernbert" and rope:
        layers = [*config.layer_types, "full_attention"]
        older = {
            "global_rope_theta": rope["full_attention"]["rope_theta"],
            "local_rope_theta": rope["sliding_attention"]["rope_theta"],
            "global_attn_every_n_layers": layers.index("full_attention", 1),
        }
    elif "rope_theta" in rope:
        older = {"rope_theta": rope.pop("rope_theta")}
        if rope["rope_type"] != "default":
            older["rope_scaling"] = rope
    file = folder / "config.json"
    write_json(file, read_json(file) | older)


def write_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write the tokenizer's files, also for transformers 4 and tokenizers before 0.20.

    Version 5 of transformers has a new name for a tokenizer without a class, and writes neither the
    special tokens nor a list of word pieces.
    """
    reset_tokenizer(tokenizer)
    tokenizer.save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    settings = read_json(file)
    for name in _OF_A_CALL:
        settings.pop(name, None)
    if settings.get("tokenizer_class") == "TokenizersBackend":
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    write_json(file, settings)
    write_json(folder / "special_tokens_map.json", tokenizer.special_tokens_map)
    if (folder / "tokenizer.json").is_file():
        _write_lists(folder)


def _write_lists(folder: Path) -> None:
    """Write word pieces as ``vocab.txt``, and merges as pairs in a string."""
    file = folder / "tokenizer.json"
    settings = read_json(file)
    model = settings["model"]
    if model["type"] == "WordPiece":
        ids = model["vocab"]
        pieces = sorted(ids, key=ids.get)
        if [ids[piece] for piece in pieces] == list(range(len(pieces))):  # a line is an id
            write_text(folder / "vocab.txt", "".join(f"{piece}\n" for piece in pieces))
    merges = model.get("merges") or [""]
    has_spaces = any(" " in part for pair in merges for part in pair)
    if not isinstance(merges[0], str) and not has_spaces:
        model["merges"] = [" ".join(pair) for pair in merges]
        write_text(file, json.dumps(settings, ensure_ascii=False, indent=1))


def _rename_modules(folder: Path) -> None:
    """Name modules and their settings as sentence-transformers does before 5.4."""
    modules = json.loads((folder / MODULES).read_text(encoding="utf-8"))
    for module in modules:
        kind = module["type"].rpartition(".")[2]
        module["type"] = f"sentence_transformers.models.{kind}"
        file = folder / module["path"] / "config.json"
        if kind == "Transformer" or not file.is_file():
            continue
        settings = {
            _OLD_NAMES.get(name, name): value
            for name, value in read_json(file).items()
            if name not in _NEW_NAMES
        }
        if kind == "Pooling":
            mode = settings["pooling_mode"]
            for token in ("cls_token", "mean_tokens", "lasttoken"):
                settings[f"pooling_mode_{token}"] = token.startswith(mode)
        write_json(file, settings)
    write_json(folder / MODULES, modules)
