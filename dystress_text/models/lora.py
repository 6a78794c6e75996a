"""Train LoRA adapters instead of a transformer's weights; saving merges them."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Transformer
from transformers import PreTrainedModel

from dystress_text.cli.extras import require
from dystress_text.errors import ParameterError


def add_adapters(transformer: PreTrainedModel, rank: int) -> None:
    """Add adapters, scaled by 2, to peft's default layers, and freeze all other weights."""
    require("lora", "lora")
    from peft import LoraConfig, get_peft_model

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of peft's own calls to transformers
            get_peft_model(transformer, LoraConfig(r=rank, lora_alpha=2 * rank))
    except ValueError as error:
        kind = transformer.config.model_type
        raise ParameterError(
            "lora", f"peft has no default layers for encoders of type {kind!r}"
        ) from error


@contextmanager
def merged_adapters(model: SentenceTransformer) -> Iterator[None]:
    """Replace the transformer, inside the context, with a copy whose adapters are merged."""
    first = model[0]
    adapted = first.model if isinstance(first, Transformer) else None
    if adapted is None or not any("lora_" in name for name, _ in adapted.named_parameters()):
        yield
        return
    first.model = _merged(adapted)
    try:
        yield
    finally:
        first.model = adapted


def _merged(transformer: PreTrainedModel) -> PreTrainedModel:
    from peft.tuners.tuners_utils import BaseTunerLayer

    merged = copy.deepcopy(transformer)
    for name, module in list(merged.named_modules()):
        if isinstance(module, BaseTunerLayer):
            module.merge()
            parent, _, child = name.rpartition(".")
            setattr(merged.get_submodule(parent), child, module.get_base_layer())
    return merged
