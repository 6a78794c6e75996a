"""Saved models: reading the description in a folder, and loading the encoder from it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import load_file
from torch import nn
from transformers import PreTrainedTokenizerBase

from dystress_text.encoders.encoder import SentenceEncoder, build_encoder
from dystress_text.encoders.pooling import AVERAGED, layer_weights
from dystress_text.encoders.pretrained import load_pretrained, readable
from dystress_text.encoders.saving import MODULES, OLD_WEIGHTS, TRANSFORMER, WEIGHTS
from dystress_text.errors import UserError, reason_of
from dystress_text.files.hub import hub_reachable

_SETTINGS = "config_sentence_transformers.json"
_KINDS = tuple(
    ("Transformer", *layers, "Pooling", *on_top)
    for layers in ((), ("WeightedLayerPooling",))
    for on_top in ((), ("Dense",), ("Normalize",), ("Dense", "Normalize"))
)
# settings that say no more than that a model and its modules are plain
_PLAIN_MODEL = {"similarity_fn_name": "cosine", "default_prompt_name": None}
_PLAIN_TRANSFORMER = {
    "do_lower_case": False,
    "transformer_task": "feature-extraction",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
    "module_output_name": "token_embeddings",
}
_PLAIN_DENSE = {
    "bias": True,
    "activation_function": "Tanh",
    "module_input_name": "sentence_embedding",
    "module_output_name": "sentence_embedding",
    "use_residual": False,
}
_POOLINGS = {"cls": "cls", "pooling_mode_cls_token": "cls", "mean": "avg", "pooling_mode_mean_tokens": "avg"}


@dataclass(frozen=True)
class SavedModel:
    """The description of a saved model, without its weights.

    Attributes:
        pooler_type: one of :data:`dystress_text.encoders.pooling.POOLERS`; ``cls_before_pooler`` is saved as ``cls``.
        dimension: of the vectors.
        max_seq_length: tokens read from a sentence; None without a limit.
        transformer: the kind of encoder, such as ``bert``.
        layers: of the encoder; None where its configuration does not say.
        dense: the head's folder inside the model's (dense + tanh on the pooled vector); None without a head.
        normalize: whether the vectors have length 1.
    """

    pooler_type: str
    dimension: int
    max_seq_length: int | None
    transformer: str
    layers: int | None
    dense: str | None = None
    normalize: bool = False


def read_saved(folder: Path) -> SavedModel:
    """Read the description of a sentence-transformers folder, written by this package or one that it can train on.

    A folder that needs something that :class:`SentenceEncoder` does not have is refused.
    """
    if not (folder / MODULES).is_file():
        raise UserError(
            f"{str(folder)!r} is not a model of dystress train: a folder with {MODULES} is needed"
            + (" (this one holds a vision model)" if (folder / "projector.safetensors").is_file() else "")
        )
    try:
        return _read(folder)
    except UserError:
        raise
    except Exception as error:  # whatever a file can hold
        raise UserError(f"{str(folder)!r} is damaged: {type(error).__name__}: {reason_of(error)}") from error


def _read(folder: Path) -> SavedModel:
    modules, config, settings = _modules(folder), _json(folder / "config.json"), _optional(folder / _SETTINGS)
    _check(folder, "model", {name: settings.get(name) for name in _PLAIN_MODEL}, _PLAIN_MODEL)
    transformer = _optional(folder / TRANSFORMER)
    named = transformer.pop("max_seq_length", None)
    _check(folder, "Transformer", transformer, _PLAIN_TRANSFORMER)
    pooling = _json(folder / modules["Pooling"] / "config.json")
    dimension = int(pooling.get("embedding_dimension") or pooling["word_embedding_dimension"])
    dense = modules.get("Dense")
    if dense is not None:
        head = _json(folder / dense / "config.json")
        head["activation_function"] = str(head.get("activation_function")).rpartition(".")[2]
        _check(folder, "Dense", head, _PLAIN_DENSE | {"in_features": dimension, "out_features": dimension})
    layers = config.get("num_hidden_layers") or config.get("n_layers")
    limit = int(named or _json(folder / "tokenizer_config.json").get("model_max_length") or 10**9)
    return SavedModel(
        pooler_type=_pooler(folder, pooling, modules.get("WeightedLayerPooling"), layers),
        dimension=dimension,
        max_seq_length=limit if limit < 10**9 else None,
        transformer=str(config["model_type"]),
        layers=int(layers) if layers else None,
        dense=dense,
        normalize="Normalize" in modules,
    )


def _modules(folder: Path) -> dict[str, str]:
    """The folder of each module by its kind, in their order; no module is imported."""
    entries = [(str(entry["type"]), str(entry["path"])) for entry in _json(folder / MODULES)]
    kinds = tuple(kind.rsplit(".", 1)[-1] for kind, _ in entries)
    if kinds not in _KINDS or not all(kind.startswith("sentence_transformers.") for kind, _ in entries):
        raise UserError(
            f"{str(folder)!r} cannot be read: its modules are {', '.join(kinds)}; known are sentence-transformers' "
            "Transformer, Pooling and on top of them one Dense and Normalize"
        )
    paths = [path for _, path in entries]
    if paths[0] != "" or any(Path(path).name != path for path in paths):
        raise UserError(f"{str(folder)!r}: {MODULES} names a path outside the folder, or another for the transformer")
    return dict(zip(kinds, paths, strict=True))


def _check(folder: Path, kind: str, settings: Mapping[str, Any], plain: Mapping[str, Any]) -> None:
    for name, value in settings.items():
        if value not in (plain.get(name), None):
            raise UserError(f"{str(folder)!r}: its {kind} has {name} {value!r}, which is not supported")


def _pooler(folder: Path, pooling: Mapping[str, Any], weighted: str | None, layers: int | None) -> str:
    """The pooler of a Pooling module, behind the weights of layers if there are some."""
    modes = [name for name, value in pooling.items() if name.startswith("pooling_mode_") and value is True]
    mode = str(pooling["pooling_mode"]) if "pooling_mode" in pooling else ",".join(modes)
    wanted = _POOLINGS.get(mode)
    if weighted is None and wanted is not None:
        return wanted
    if wanted == "avg" and layers is not None:
        weights = load_file(folder / str(weighted) / WEIGHTS)["layer_weights"]
        for name in AVERAGED:
            averaged = layer_weights(name, layers)
            if averaged is not None and torch.equal(averaged, weights):
                return name
    raise UserError(f"{str(folder)!r}: pooling {mode!r} is that of no pooler of this package")


def find_saved(name_or_path: str) -> Path | None:
    """The folder of a sentence-transformers model, from the hub with its small files alone; None for another model."""
    if Path(name_or_path).is_dir():
        return Path(name_or_path) if (Path(name_or_path) / MODULES).is_file() else None
    small = [MODULES, _SETTINGS, TRANSFORMER, "config.json", "tokenizer_config.json", "?_*/*"]
    with readable(name_or_path):
        try:
            folder = Path(snapshot_download(name_or_path, allow_patterns=small, local_files_only=not hub_reachable()))
        except LocalEntryNotFoundError:  # what loads the encoder says why
            return None
    return folder if (folder / MODULES).is_file() else None


def load_saved(folder: Path, name: str | None = None) -> tuple[SentenceEncoder, PreTrainedTokenizerBase]:
    """Load the encoder of a folder, with its pooler, head and normalisation, and its tokenizer.

    ``name`` is that of a model on the hub of which :func:`find_saved` gave the folder; None for a folder.
    """
    saved = read_saved(folder)
    found = load_pretrained(name or str(folder))
    limit_length(found.tokenizer, saved)
    encoder = build_encoder(found, saved.pooler_type, mlp_head=saved.dense is not None, keep_head=True)
    if saved.dense is not None:
        encoder.start_head(read_head(folder, saved))
    encoder.normalize = saved.normalize
    return encoder, found.tokenizer


def limit_length(tokenizer: PreTrainedTokenizerBase, saved: SavedModel) -> None:
    """Set a tokenizer's limit to the model's, which sentence-transformers keeps elsewhere."""
    if saved.max_seq_length is not None:
        tokenizer.model_max_length = saved.max_seq_length


def read_head(folder: Path, saved: SavedModel) -> nn.Linear:
    """The dense layer of a saved model's head, (dim, dim), in fp32."""
    place = folder / str(saved.dense)
    try:
        if (place / WEIGHTS).is_file():
            weights = load_file(place / WEIGHTS)
        else:
            weights = torch.load(place / OLD_WEIGHTS, map_location="cpu", weights_only=True)
        weights = {name.removeprefix("linear."): tensor.float() for name, tensor in weights.items()}
        dense = nn.Linear(saved.dimension, saved.dimension, device="meta")  # no random numbers are drawn
        dense.load_state_dict(weights, assign=True)
    except Exception as error:  # each reader has errors of its own
        raise UserError(f"{str(folder)!r} is damaged: the head in {saved.dense}: {reason_of(error)}") from error
    return dense


def _json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def _optional(file: Path) -> dict[str, Any]:
    return dict(_json(file)) if file.is_file() else {}
