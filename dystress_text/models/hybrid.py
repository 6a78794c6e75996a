"""A hybrid model: a sentence-transformers model's embedding and a static model's, in one vector.

The static part is trained on one text; the dense model's weights stay as they are.
"""

from __future__ import annotations

import copy
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from sentence_transformers import SentenceTransformer
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedTokenizerBase

from dystress_text.errors import ParameterError, UserError
from dystress_text.io.atomic import atomic_files, write_json
from dystress_text.models import hybrid_module
from dystress_text.models.hybrid_module import HybridEmbedding, joined
from dystress_text.models.loading import (
    MODULES,
    is_sentence_transformer,
    load_sentence_transformer,
    prompts_of,
    quiet,
    readable,
)
from dystress_text.models.static import (
    fast_tokenizer,
    set_unknown,
    table_of,
    tokenizer_of,
    without_special_tokens,
)

WEIGHT = 0.7  # of the lexical part


def new_hybrid(dense: SentenceTransformer, static: SentenceTransformer) -> SentenceTransformer:
    """Return a hybrid model of both, which shares the vectors of the static one."""
    set_unknown(static, 0.0)  # a text of unknown tokens alone has the dense embedding alone
    tokenizer = without_special_tokens(tokenizer_of(static))
    module = HybridEmbedding(dense, table_of(static).detach(), tokenizer, WEIGHT)
    module.table.weight = table_of(static)
    return _as_model(module)


def load_hybrid(folder: Path, device: str | None) -> SentenceTransformer:
    """Load a saved hybrid model by this package's class; the code of the folder is not run."""
    dense = load_sentence_transformer(str(folder / hybrid_module.MODEL), device)
    with readable(str(folder)):
        model = _as_model(HybridEmbedding.from_folder(dense, folder))
    return model.to(dense.device)


def _as_model(module: HybridEmbedding) -> SentenceTransformer:
    return SentenceTransformer(
        modules=[module],
        device=str(module.model.device),
        similarity_fn_name="cosine",
        **prompts_of(module.model),
    )


def hybrid_part(model: SentenceTransformer) -> HybridEmbedding | None:
    """Return the module of a hybrid model; None for any other model."""
    first = model[0]
    return first if isinstance(first, HybridEmbedding) else None


def save_hybrid(model: SentenceTransformer, folder: str | Path) -> None:
    """Save a hybrid model with the file of its module, so that it loads without this package."""
    file = Path(hybrid_module.__file__)
    with quiet(), atomic_files(folder) as complete:
        model.save(str(complete), create_model_card=False)
        shutil.copyfile(file, complete / file.name)
        _name_modules(complete, lambda kind: f"{file.stem}.{kind}")
        # by names that each release reads: 5 lacks some of 6
        _name_modules(
            complete / hybrid_module.MODEL, lambda kind: f"sentence_transformers.models.{kind}"
        )


def _name_modules(folder: Path, name: Callable[[str], str]) -> None:
    """Write the types of a folder's modules, which ``name`` makes of their classes."""
    modules = json.loads((folder / MODULES).read_text(encoding="utf-8"))
    for entry in modules:
        entry["type"] = name(entry["type"].rpartition(".")[2])
    write_json(folder / MODULES, modules)


def check_dense(name_or_path: str) -> None:
    """Check that the dense model of a hybrid can be found, without loading it."""
    try:
        found = is_sentence_transformer(name_or_path)
    except UserError as error:
        raise ParameterError("hybrid", str(error)) from error
    if not found:
        reason = "is not the folder or name of a sentence-transformers model"
        raise ParameterError("hybrid", f"{name_or_path!r} {reason}")


def load_dense(name_or_path: str) -> SentenceTransformer:
    """Load the dense model of a hybrid, and check that it gives one embedding per text."""
    check_dense(name_or_path)
    try:
        model = load_sentence_transformer(name_or_path)
        kinds = [type(module).__name__ for module in model]
        if {"Router", "Asym", HybridEmbedding.__name__} & {*kinds}:
            parts = ", ".join(kinds)
            raise UserError(
                f"{name_or_path!r} is made of {parts}; one encoder of all texts is needed"
            )
        with readable(name_or_path, "encode with"):
            embeddings: Any = model.encode(
                ["One text.", ""], convert_to_tensor=True, show_progress_bar=False
            )
            if embeddings.ndim != 2 or not embeddings.isfinite().all():
                raise UserError(f"{name_or_path!r} does not give one vector of numbers a text")
    except UserError as error:
        raise ParameterError("hybrid", str(error)) from error
    return model


def embed_padded(module: HybridEmbedding, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """Return embeddings (n, dim) of whole texts (n, length) by the dense model's tokenizer.

    The static part reads all tokens but those that the tokenizer puts around a text; what the dense
    part reads is cut here, as its tokenizer would. This is for one graph of both.
    """
    dense: Any = module.model
    limit = dense.max_seq_length or sys.maxsize
    lengths = attention_mask.sum(1, keepdim=True)  # (n, 1)
    positions = torch.arange(input_ids.shape[1])  # (length,)
    around = dense.tokenizer("a", return_special_tokens_mask=True)["special_tokens_mask"]
    before, after = around.index(0), around[::-1].index(0)  # how many tokens are put there
    is_token = (positions >= before) & (positions < lengths - after)  # (n, length)
    tokens = (module.table(input_ids) * is_token.unsqueeze(-1)).sum(1)  # (n, dim of the table)
    kept = torch.sym_min(input_ids.shape[1], limit)  # type: ignore[no-untyped-call]
    positions = positions[:kept]
    moved = (lengths - limit).clamp(min=0) * (
        positions >= limit - after
    )  # (n, kept), the last ones
    ids = input_ids.gather(1, positions + moved)
    features = {"input_ids": ids, "attention_mask": attention_mask[:, :kept], "modality": "text"}
    return joined(dense(features)["sentence_embedding"], tokens, module.weight)


def may_have_graph(module: HybridEmbedding) -> bool:
    """Return whether one graph can hold both parts, if they have one vocabulary."""
    dense = module.model
    return dense.transformers_model is not None and not any(dense.prompts.values())


def onnx_files(module: HybridEmbedding) -> tuple[PreTrainedTokenizerBase, PretrainedConfig]:
    """Return tokenizer and configuration for one ONNX graph of both parts.

    Raises:
        ParameterError: the parts read a text by different tokens, or with prompts.
    """
    dense = module.model
    own = without_special_tokens(fast_tokenizer(dense))
    transformer = dense.transformers_model
    same = may_have_graph(module) and own.to_str() == module.words.to_str()
    if transformer is None or not same:
        raise ParameterError(
            "to", "onnx needs one vocabulary of both parts, and a transformer without prompts"
        )
    tokenizer: PreTrainedTokenizerBase = copy.deepcopy(dense.tokenizer)
    tokenizer.model_max_length = sys.maxsize
    return tokenizer, transformer.config
