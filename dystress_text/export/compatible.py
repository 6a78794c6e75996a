"""Save a model with the names of sentence-transformers 5.1 and transformers 4, for older readers.

sentence-transformers 5.4 renamed modules and settings, transformers 5 some settings of encoders and
tokenizers; the vectors are the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding, Transformer
from tokenizers import Tokenizer, models
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from dystress_text.io.atomic import write_json, write_text
from dystress_text.models.loading import (
    rename_modules,
    reset_tokenizer,
    save_model,
    transformer_of,
)
from dystress_text.training.run_folder import read_json

_OLD_NAMES = {"embedding_dimension": "word_embedding_dimension"}
_NEW_NAMES = ("module_input_name", "module_output_name", "include_prompt")  # at their defaults
# settings of a tokenizer's last call
_OF_A_CALL = ("max_length", "stride", "truncation_strategy", "pad_to_multiple_of")


def write_compatible(model: SentenceTransformer, folder: Path) -> None:
    """Save a model into a new folder, for sentence-transformers from 5.1 on and other readers."""
    first = model[0]
    save_model(model, folder)
    if isinstance(first, Transformer):
        write_config(transformer_of(first).config, folder)
        write_tokenizer(first.tokenizer, folder)
        limit = model.max_seq_length
        write_json(folder / "sentence_bert_config.json", {"max_seq_length": limit})
    if isinstance(first, Transformer | StaticEmbedding):
        for kind, module_folder in rename_modules(folder):
            _rename_settings(kind, module_folder / "config.json")


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
    """Write the tokenizer's files, also for transformers 4.

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
    vocabulary = tokenizer.get_vocab()
    pieces = sorted(vocabulary, key=vocabulary.__getitem__)
    is_word_piece = isinstance(getattr(tokenizer, "backend_tokenizer", None), Tokenizer) and (
        isinstance(tokenizer.backend_tokenizer.model, models.WordPiece)
    )
    if is_word_piece and vocabulary[pieces[-1]] == len(pieces) - 1:  # a line is an id
        write_text(folder / "vocab.txt", "".join(f"{piece}\n" for piece in pieces))


def _rename_settings(kind: str, file: Path) -> None:
    """Name the settings of a module as sentence-transformers does before 5.4."""
    if kind == "Transformer" or not file.is_file():
        return
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
