"""Saved models: reading the description in a folder, and loading the encoder from it."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from transformers import PreTrainedTokenizerBase
from transformers.utils.hub import cached_file

from dystress_text.encoders.encoder import SentenceEncoder, build_encoder
from dystress_text.encoders.pooling import AVERAGED, layer_weights
from dystress_text.encoders.pretrained import load_pretrained, readable
from dystress_text.encoders.prompts import Prompts
from dystress_text.errors import UserError, reason_of
from dystress_text.files.hub import hub_reachable

MODULES = "modules.json"

_SETTINGS, _TRANSFORMER = "config_sentence_transformers.json", "sentence_bert_config.json"
_WEIGHTS, _OLD_WEIGHTS = "model.safetensors", "pytorch_model.bin"
_ON_TOP = ("Dense", "Normalize")  # what may follow the pooling, in that order
_TEXT = {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}
# the only settings of a Transformer module, besides its length limit, that are supported: it encodes and no more
_PLAIN = {
    "do_lower_case": False,
    "transformer_task": "feature-extraction",
    "modality_config": _TEXT,
    "module_output_name": "token_embeddings",
}


@dataclass(frozen=True)
class SavedModel:
    """The description of a saved model, without its weights.

    Attributes:
        pooler_type: one of :data:`dystress_text.encoders.encoder.POOLERS`; ``cls_before_pooler`` is saved as ``cls``.
        dimension: of the vectors.
        max_seq_length: tokens read from a sentence; None without a limit.
        transformer: the kind of encoder, such as ``bert``.
        layers: of the encoder; None where its configuration does not say.
        dense: the head's folder inside the model's (dense + tanh on the pooled vector); None without a head.
        normalize: whether the vectors have length 1.
        prompts: what can stand in front of a sentence, and what does.
    """

    pooler_type: str
    dimension: int
    max_seq_length: int | None
    transformer: str
    layers: int | None
    dense: str | None = None
    normalize: bool = False
    prompts: Prompts = field(default_factory=Prompts)


def read_saved(folder: Path) -> SavedModel:
    """Read the description of a sentence-transformers folder, written by this package or one that it can train on.

    Raises:
        UserError: it is another folder, or needs something that :class:`SentenceEncoder` does not have.
    """
    if not (folder / MODULES).is_file():
        raise UserError(
            f"{str(folder)!r} is not a model of dystress train: a folder with {MODULES} is needed"
            + (" (this one holds a vision model)" if (folder / "projector.safetensors").is_file() else "")
        )
    try:
        modules = _modules(folder)
        _check_plain(folder)
        config = _json(folder / "config.json")
        layers = config.get("num_hidden_layers") or config.get("n_layers")
        pooling = _json(folder / modules["Pooling"] / "config.json")
        weighted = modules.get("WeightedLayerPooling")
        averaged = _averaged(folder / weighted, int(layers)) if weighted is not None else None
        dimension = int(pooling.get("embedding_dimension") or pooling["word_embedding_dimension"])
        dense = modules.get("Dense")
        if dense is not None:
            _check_dense(folder, _json(folder / dense / "config.json"), dimension)
        named = _optional(folder / _TRANSFORMER).get("max_seq_length")
        limit = int(named or _json(folder / "tokenizer_config.json").get("model_max_length") or 10**9)
        pooler_type = _pooler(folder, pooling, averaged)
        prompts = Prompts.of_settings(_optional(folder / _SETTINGS), pooling)
        if pooler_type not in AVERAGED and prompts.text and not prompts.pooled:
            raise UserError(
                f"{str(folder)!r}: its vectors are the first token behind the prompt, which is not supported"
            )
        if limit < 1:
            raise ValueError(f"a length limit of {limit}")
        return SavedModel(
            pooler_type=pooler_type,
            dimension=dimension,
            max_seq_length=limit if limit < 10**9 else None,
            transformer=str(config["model_type"]),
            layers=int(layers) if layers else None,
            dense=dense,
            normalize="Normalize" in modules,
            prompts=prompts,
        )
    except (
        OSError, ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError, SafetensorError
    ) as error:  # fmt: skip
        raise UserError(f"{str(folder)!r} is damaged: {type(error).__name__}: {reason_of(error)}") from error


def find_saved(name_or_path: str) -> Path | None:
    """The folder of a sentence-transformers model, None for another model; from the hub only small files are fetched.

    Raises:
        UserError: the hub fails.
    """
    if Path(name_or_path).is_dir():
        return Path(name_or_path) if (Path(name_or_path) / MODULES).is_file() else None
    found = _fetched(name_or_path, MODULES)
    if found is None:
        return None
    for file in (_SETTINGS, _TRANSFORMER, "config.json", "tokenizer_config.json"):
        _fetched(name_or_path, file)
    with readable(name_or_path):
        modules = _modules(found.parent)
    for kind, path in modules.items():
        for file in ("config.json", *((_WEIGHTS,) if kind in ("Dense", "WeightedLayerPooling") else ())):
            if path and _fetched(name_or_path, f"{path}/{file}") is None and file == _WEIGHTS:
                _fetched(name_or_path, f"{path}/{_OLD_WEIGHTS}")
    return found.parent


def load_saved(folder: Path, name: str | None = None) -> tuple[SentenceEncoder, PreTrainedTokenizerBase]:
    """Load the encoder of a folder, with its pooler, head, normalisation and prompts, and its tokenizer.

    ``name`` is that of a model on the hub of which :func:`find_saved` gave the folder; None for a folder.

    Raises:
        UserError: :func:`read_saved` refuses the folder, or its files are damaged.
    """
    saved = read_saved(folder)
    try:
        found = load_pretrained(name or str(folder))
        limit_length(found.tokenizer, saved)
        encoder = build_encoder(found, saved.pooler_type, mlp_head=saved.dense is not None, keep_head=True)
        if saved.dense is not None:
            encoder.start_head(read_head(folder, saved))
        encoder.normalize = saved.normalize
        encoder.use_prompts(saved.prompts, found.tokenizer)
        return encoder, found.tokenizer
    except UserError as error:
        raise UserError(str(error).removeprefix("--model_name_or_path: ")) from error


def limit_length(tokenizer: PreTrainedTokenizerBase, saved: SavedModel) -> None:
    """Set a tokenizer's limit to the model's, which sentence-transformers keeps elsewhere."""
    if saved.max_seq_length is not None:
        tokenizer.model_max_length = saved.max_seq_length


def read_head(folder: Path, saved: SavedModel) -> nn.Linear:
    """The dense layer of a saved model's head, (dim, dim), in fp32.

    Raises:
        UserError: its file is missing, damaged or of another size.
    """
    place = folder / str(saved.dense)
    try:
        if (place / _WEIGHTS).is_file():
            weights = load_file(place / _WEIGHTS)
        else:
            weights = torch.load(place / _OLD_WEIGHTS, map_location="cpu", weights_only=True)
        weights = {name.removeprefix("linear."): tensor.float() for name, tensor in weights.items()}
        dense = nn.Linear(saved.dimension, saved.dimension, device="meta")  # no random numbers are drawn
        dense.load_state_dict(weights, assign=True)
    except Exception as error:  # each reader has errors of its own
        raise UserError(f"{str(folder)!r} is damaged: the head in {saved.dense}: {reason_of(error)}") from error
    return dense


def _fetched(name: str, file: str) -> Path | None:
    """A file of a model on the hub, in the local cache; None where the model has no such file.

    Raises:
        UserError: the hub fails.
    """
    reachable = hub_reachable()
    with readable(name):
        found = cached_file(
            name,
            file,
            local_files_only=not reachable,
            _raise_exceptions_for_gated_repo=False,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=reachable,  # otherwise a file that is not cached counts as an error
        )
    return None if found is None else Path(found)


def _json(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def _optional(file: Path) -> dict[str, Any]:
    content = _json(file) if file.is_file() else {}
    if not isinstance(content, dict):
        raise ValueError(f"{file.name} is not a mapping")
    return content


def _modules(folder: Path) -> dict[str, str]:
    """The folder of each module by its kind, in their order.

    Raises:
        UserError: :class:`SentenceEncoder` does not have these modules.
    """
    entries = [(str(entry["type"]), str(entry["path"])) for entry in _json(folder / MODULES)]
    kinds = [kind.rsplit(".", 1)[-1] for kind, _ in entries]
    core = [kind for kind in kinds if kind not in _ON_TOP]
    ours = core in (["Transformer", "Pooling"], ["Transformer", "WeightedLayerPooling", "Pooling"])
    on_top = kinds[len(core) :]
    if not (
        ours
        and on_top in ([], ["Dense"], ["Normalize"], ["Dense", "Normalize"])
        and all(kind.startswith("sentence_transformers.") for kind, _ in entries)
    ):
        raise UserError(
            f"{str(folder)!r} cannot be read: its modules are {', '.join(kinds)}; known are sentence-transformers' "
            "Transformer, Pooling and on top of them one Dense and Normalize"
        )
    paths = [path for _, path in entries]
    if paths[0] != "":
        raise UserError(f"{str(folder)!r}: the transformer must lie in the folder itself, not in {paths[0]!r}")
    if any(Path(path).name != path for path in paths):
        raise UserError(f"{str(folder)!r}: {MODULES} names a path outside the folder")
    return dict(zip(kinds, paths, strict=True))


def _check_plain(folder: Path) -> None:
    """Check that a folder's settings ask for nothing that :class:`SentenceEncoder` does not have.

    Raises:
        UserError: they ask for more.
    """
    settings = _optional(folder / _SETTINGS)
    similarity = settings.get("similarity_fn_name")
    if similarity not in (None, "cosine"):
        raise UserError(f"{str(folder)!r} compares by {similarity!r} ({_SETTINGS}); only cosine is supported")
    for name, value in _optional(folder / _TRANSFORMER).items():
        if name != "max_seq_length" and value not in (_PLAIN.get(name), None):
            raise UserError(f"{str(folder)!r}: {_TRANSFORMER} says {name}: {value}, which is not supported")


def _check_dense(folder: Path, config: dict[str, Any], dimension: int) -> None:
    """Check that a Dense module is a head of the kind that :class:`SentenceEncoder` has.

    Raises:
        UserError: it is of another kind.
    """
    ours = {
        "in_features": dimension,
        "out_features": dimension,
        "bias": True,
        "activation_function": "Tanh",
        "module_input_name": "sentence_embedding",
        "module_output_name": "sentence_embedding",
        "use_residual": False,
    }
    found = {**ours, **config, "in_features": config["in_features"], "out_features": config["out_features"]}
    found["activation_function"] = str(found["activation_function"]).rsplit(".", 1)[-1]
    found["module_output_name"] = found["module_output_name"] or "sentence_embedding"
    for name, value in ours.items():
        if found[name] != value:
            raise UserError(f"{str(folder)!r}: its Dense has {name} {found[name]}; only {value} is supported")


def _averaged(folder: Path, layers: int) -> str:
    """The pooler that averages the same layers as a WeightedLayerPooling."""
    weights = load_file(folder / _WEIGHTS)["layer_weights"]
    for name, chosen in AVERAGED.items():
        if len(chosen) > 1 and torch.equal(weights, layer_weights(chosen, layers)):
            return name
    raise ValueError("its weights of layers are those of no pooler")


def _pooler(folder: Path, pooling: dict[str, Any], averaged: str | None) -> str:
    """The pooler of a Pooling module; before sentence-transformers 5.4 it had other keys.

    Raises:
        UserError: this package has no such pooler.
    """
    old = [name for name, value in pooling.items() if name.startswith("pooling_mode_") and value is True]
    mode = pooling["pooling_mode"] if "pooling_mode" in pooling else ",".join(old)
    if mode in ("cls", "pooling_mode_cls_token") and averaged is None:
        return "cls"
    if mode in ("mean", "pooling_mode_mean_tokens"):
        return averaged or "avg"
    raise UserError(f"{str(folder)!r}: pooling {mode!r} is that of no pooler of this package")
