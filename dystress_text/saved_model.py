"""What a saved model's folder says of itself, and the encoder in it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerBase

from dystress_text.encoder import AVERAGED, SentenceEncoder, load_encoder
from dystress_text.errors import UserError

MODULES = "modules.json"


@dataclass(frozen=True)
class SavedModel:
    """What there is to know of a saved model without its weights.

    Attributes:
        pooler_type: one of :data:`dystress_text.encoder.POOLERS`; ``cls_before_pooler`` is saved as ``cls``.
        dimension: of the vectors.
        max_seq_length: tokens that are read of a sentence; None where the tokenizer names no limit.
        transformer: the kind of encoder, such as ``bert``.
        layers: of the encoder; None where its configuration has a name of its own for them.
    """

    pooler_type: str
    dimension: int
    max_seq_length: int | None
    transformer: str
    layers: int | None


def read_saved(folder: Path) -> SavedModel:
    """What a folder that :meth:`SentenceEncoder.save` or the ``legacy`` export wrote says of itself.

    Raises:
        UserError: it is no such folder.
    """
    if not (folder / MODULES).is_file():
        raise UserError(
            f"{str(folder)!r} is no model of dystress_text/train.py: a folder with {MODULES} is needed"
            + (" (this one holds a vision model)" if (folder / "projector.safetensors").is_file() else "")
        )
    try:
        modules = {str(entry["type"]).rsplit(".", 1)[-1]: str(entry["path"]) for entry in _json(folder / MODULES)}
        kinds = list(modules)
        if kinds not in (["Transformer", "Pooling"], ["Transformer", "WeightedLayerPooling", "Pooling"]):
            raise UserError(
                f"{str(folder)!r} is no model of dystress_text/train.py: its modules are {', '.join(kinds)}"
            )
        if any(Path(path).name != path for path in modules.values()):
            raise UserError(f"{str(folder)!r}: {MODULES} names a path outside the folder")
        config = _json(folder / "config.json")
        layers = config.get("num_hidden_layers") or config.get("n_layers")
        pooling = _json(folder / modules["Pooling"] / "config.json")
        averaged = _averaged(folder / modules["WeightedLayerPooling"], int(layers)) if len(kinds) == 3 else None
        limit = int(_json(folder / "tokenizer_config.json").get("model_max_length") or 10**9)
        return SavedModel(
            pooler_type=_pooler(pooling, averaged),
            dimension=int(pooling.get("embedding_dimension") or pooling["word_embedding_dimension"]),
            max_seq_length=limit if limit < 10**9 else None,
            transformer=str(config["model_type"]),
            layers=int(layers) if layers else None,
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{str(folder)!r} is damaged: {type(error).__name__}: {reason}") from error


def load_saved(folder: Path) -> tuple[SentenceEncoder, PreTrainedTokenizerBase]:
    """The encoder of a folder, with its pooler and without a head, and its tokenizer.

    Raises:
        UserError: it is no folder of ours, or its files are damaged.
    """
    saved = read_saved(folder)
    try:
        return load_encoder(str(folder), saved.pooler_type, mlp_head=False)
    except UserError as error:
        raise UserError(str(error).removeprefix("--model_name_or_path: ")) from error


def _json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def _averaged(folder: Path, layers: int) -> str:
    """The pooler that averages what a WeightedLayerPooling averages."""
    weights = load_file(folder / "model.safetensors")["layer_weights"]
    for name, chosen in AVERAGED.items():
        expected = torch.zeros(layers + 1)
        expected[list(chosen)] = 1.0
        if len(chosen) > 1 and torch.equal(weights, expected):
            return name
    raise ValueError("its weights of layers are those of no pooler")


def _pooler(pooling: dict[str, Any], averaged: str | None) -> str:
    """The pooler of a Pooling module, whose keys were others in sentence-transformers before 5.4."""
    old = [name for name, value in pooling.items() if name.startswith("pooling_mode_") and value is True]
    mode = pooling["pooling_mode"] if "pooling_mode" in pooling else ",".join(old)
    if mode in ("cls", "pooling_mode_cls_token") and averaged is None:
        return "cls"
    if mode in ("mean", "pooling_mode_mean_tokens"):
        return averaged or "avg"
    raise ValueError(f"pooling {mode!r} is that of no pooler of this package")
