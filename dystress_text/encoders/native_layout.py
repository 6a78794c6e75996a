"""The layout of sentence-transformers 6: what its own ``save`` writes, from the network in memory, each file once.

sentence-transformers itself is not loaded, and no random number is drawn.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from dystress_text.encoders.pooling import AVERAGED, layer_weights
from dystress_text.encoders.prompts import Prompts

_BASE, _SENTENCES = "sentence_transformers.base.modules", "sentence_transformers.sentence_transformer.modules"
_TYPES = {
    "Transformer": f"{_BASE}.transformer.Transformer",
    "WeightedLayerPooling": f"{_SENTENCES}.weighted_layer_pooling.WeightedLayerPooling",
    "Pooling": f"{_SENTENCES}.pooling.Pooling",
    "Dense": f"{_BASE}.dense.Dense",
    "Normalize": f"{_BASE}.normalize.Normalize",
}
_TRANSFORMER = {
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
}
_ON_TOP = {"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"}


def write_native(
    folder: Path,
    transformer: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    max_seq_length: int,
    pooler_type: str,
    dense: nn.Linear | None = None,
    normalize: bool = False,
    prompts: Prompts | None = None,
) -> None:
    """Write a model that sentence-transformers loads.

    Args:
        folder: an existing one.
        transformer: without adapters.
        tokenizer: its own.
        max_seq_length: the most tokens of a sentence, special tokens included.
        pooler_type: one of :data:`dystress_text.encoders.pooling.POOLERS`.
        dense: a head's, (dim, dim), applied with tanh to the pooled vector.
        normalize: the vectors get length 1.
        prompts: of the model; None for none.

    Raises:
        OSError: it cannot be written.
    """
    config, layers, prompts = transformer.config, AVERAGED.get(pooler_type, ()), prompts or Prompts()
    _write_transformer(folder, transformer, several_layers=len(layers) > 1)
    _write_tokenizer(folder, tokenizer, max_seq_length)
    contents: list[tuple[str, dict[str, Any], dict[str, Tensor]]] = []  # kind, settings and tensors of each module
    if len(layers) > 1:
        settings = {
            "embedding_dimension": config.hidden_size,
            "layer_start": 0,
            "num_hidden_layers": config.num_hidden_layers,
        }
        weights = {"layer_weights": layer_weights(layers, config.num_hidden_layers)}
        contents.append(("WeightedLayerPooling", settings, weights))
    pooling = {"embedding_dimension": config.hidden_size, "pooling_mode": "mean" if layers else "cls"}
    contents.append(("Pooling", pooling | {"include_prompt": prompts.pooled}, {}))
    if dense is not None:
        settings = {
            "in_features": dense.in_features,
            "out_features": dense.out_features,
            "bias": True,
            "activation_function": "torch.nn.modules.activation.Tanh",
        }
        weights = {f"linear.{name}": tensor.cpu().contiguous() for name, tensor in dense.state_dict().items()}
        contents.append(("Dense", settings | _ON_TOP, weights))
    if normalize:
        contents.append(("Normalize", dict(_ON_TOP), {}))
    for i, (kind, settings, weights) in enumerate(contents, 1):
        place = folder / f"{i}_{kind}"
        place.mkdir()
        _write_json(place / "config.json", settings)
        if weights:
            save_file(weights, place / "model.safetensors")
    _write_settings(folder, [kind for kind, _, _ in contents], prompts)


def _write_transformer(folder: Path, transformer: PreTrainedModel, several_layers: bool) -> None:
    logging.disable_progress_bar()  # of the weights
    transformer.save_pretrained(folder)
    if several_layers:
        config = copy.deepcopy(transformer.config)  # of the encoder as it is, which may go on training
        config.output_hidden_states = True
        config.save_pretrained(folder)
    _write_json(folder / "sentence_bert_config.json", _TRANSFORMER)


def _write_tokenizer(folder: Path, tokenizer: PreTrainedTokenizerBase, max_seq_length: int) -> None:
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.model_max_length = max_seq_length
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:  # the last call's settings are no part of the model
        backend.no_truncation()
        backend.no_padding()
    tokenizer.save_pretrained(folder)


def _write_settings(folder: Path, kinds: Sequence[str], prompts: Prompts) -> None:
    paths = {"Transformer": "", **{kind: f"{i}_{kind}" for i, kind in enumerate(kinds, 1)}}
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": _TYPES[kind]} for i, (kind, path) in enumerate(paths.items())
    ]
    _write_json(folder / "modules.json", modules)
    settings = {
        "__version__": {
            "pytorch": torch.__version__,
            "sentence_transformers": version("sentence-transformers"),
            "transformers": transformers.__version__,
        },
        "default_prompt_name": prompts.default,
        "model_type": "SentenceTransformer",
        "prompts": {"document": "", "query": "", **prompts.texts},
        "similarity_fn_name": "cosine",
    }
    _write_json(folder / "config_sentence_transformers.json", settings)


def _write_json(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
