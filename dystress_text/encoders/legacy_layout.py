"""The layout of sentence-transformers 2: module paths, keys and weights as its releases read them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from dystress_text.encoders.encoder import SentenceEncoder
from dystress_text.encoders.pooling import AVERAGED, layer_weights
from dystress_text.encoders.saved_model import MODULES


def write_legacy(encoder: SentenceEncoder, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write an encoder with its pooling and head; this sets ``output_hidden_states`` of its configuration.

    Args:
        encoder: without adapters.
        tokenizer: its ``model_max_length`` is written as the model's limit.
        folder: an empty one.

    Raises:
        OSError: it cannot be written.
    """
    config = encoder.transformer.config
    layers = AVERAGED.get(encoder.pooler_type, ())
    weighted = len(layers) > 1
    config.output_hidden_states = weighted
    encoder.transformer.save_pretrained(folder)
    write_tokenizer(tokenizer, folder)
    on_top = [*(["Dense"] if encoder.keep_head else []), *(["Normalize"] if encoder.normalize else [])]
    kinds = ["Transformer", *(["WeightedLayerPooling"] if weighted else []), "Pooling", *on_top]
    places = {kind: folder / f"{i}_{kind}" for i, kind in enumerate(kinds) if i}
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": f"sentence_transformers.models.{kind}"}
        for i, kind in enumerate(kinds)
    ]
    _write_json(folder / MODULES, modules)
    _write_json(
        folder / "sentence_bert_config.json", {"max_seq_length": tokenizer.model_max_length, "do_lower_case": False}
    )
    _write_json(
        folder / "config_sentence_transformers.json",
        {"__version__": {"sentence_transformers": "2.2.2", "transformers": transformers.__version__,
                         "pytorch": torch.__version__}},
    )  # fmt: skip
    for place in places.values():
        place.mkdir()
    pooling = {
        "word_embedding_dimension": config.hidden_size,
        "pooling_mode_cls_token": not layers,
        "pooling_mode_mean_tokens": bool(layers),
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    }
    _write_json(places["Pooling"] / "config.json", pooling)
    if weighted:
        _write_weighted_pooling(places["WeightedLayerPooling"], config, layers)
    if encoder.keep_head:
        _write_dense(places["Dense"], encoder)


def write_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write the tokenizer's files for transformers 4 too: version 5 has a new name for a tokenizer without a class.

    Raises:
        OSError: they cannot be written.
    """
    tokenizer.save_pretrained(folder)
    file = folder / "tokenizer_config.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    if content.get("tokenizer_class") == "TokenizersBackend":
        content["tokenizer_class"] = "PreTrainedTokenizerFast"
    _write_json(file, content)


def _write_weighted_pooling(folder: Path, config: Any, layers: Sequence[int]) -> None:
    settings = {
        "word_embedding_dimension": config.hidden_size,
        "layer_start": 0,
        "num_hidden_layers": config.num_hidden_layers,
    }
    _write_json(folder / "config.json", settings)
    _write_weights({"layer_weights": layer_weights(layers, config.num_hidden_layers)}, folder)


def _write_dense(folder: Path, encoder: SentenceEncoder) -> None:
    dense = encoder.head_dense
    settings = {
        "in_features": dense.in_features,
        "out_features": dense.out_features,
        "bias": True,
        "activation_function": "torch.nn.modules.activation.Tanh",
    }
    _write_json(folder / "config.json", settings)
    _write_weights({f"linear.{name}": tensor for name, tensor in dense.state_dict().items()}, folder)


def _write_weights(tensors: Mapping[str, Tensor], folder: Path) -> None:
    save_file(dict(tensors), folder / "model.safetensors")
    torch.save(dict(tensors), folder / "pytorch_model.bin")  # 2.2 looks for this file alone


def _write_json(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
