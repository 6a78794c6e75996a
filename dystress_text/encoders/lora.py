"""LoRA by peft: low-rank adapters train in place of the encoder's weights."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from torch import nn
from transformers import PreTrainedModel

from dystress_text.cli.extras import require
from dystress_text.errors import ParameterError, reason_of

if TYPE_CHECKING:
    from peft import PeftModel


def add_lora(
    transformer: PreTrainedModel,
    rank: int,
    alpha: float | None = None,
    dropout: float = 0.0,
    target_modules: Sequence[str] | None = None,
) -> PeftModel:
    """Put adapters into an encoder's linear layers and freeze everything else; the encoder itself is changed.

    Args:
        transformer: the encoder.
        rank: of the adapters.
        alpha: the adapters are scaled by ``alpha / rank``; None is twice the rank.
        dropout: rate in front of the adapters.
        target_modules: names of linear layers, or ends of names; None is peft's choice for this kind of encoder.

    Returns:
        peft's model, which shares all weights with ``transformer``.
    """
    require("lora", "lora_rank")
    from peft import LoraConfig, get_peft_model
    from peft.tuners.lora import LoraLayer

    targets = None if target_modules is None else list(target_modules)
    # peft divides by the rank, so any number will do, although its type says int
    scale = cast(int, 2 * rank if alpha is None else alpha)
    config = LoraConfig(r=rank, lora_alpha=scale, lora_dropout=dropout, target_modules=targets)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of peft's own calls to transformers
            adapted = get_peft_model(transformer, config)
    except ValueError as error:
        message = f"give the names of linear layers of this encoder: {reason_of(error)}"
        raise ParameterError("lora_target_modules", message) from error
    for name, module in transformer.named_modules():
        if isinstance(module, LoraLayer) and not isinstance(module.get_base_layer(), nn.Linear):
            raise ParameterError("lora_target_modules", f"{name} is not a linear layer")
    return adapted


def merged(adapted: PeftModel) -> PreTrainedModel:
    """A copy of the encoder without adapters and with the same vectors: the adapters are added to its weights."""
    return cast(PreTrainedModel, copy.deepcopy(adapted).merge_and_unload())


def save_adapter(adapted: PeftModel, folder: Path) -> None:
    """Write the adapter as ``PeftModel.from_pretrained(base, folder)`` reads it; of a base's folder it has the name."""
    config = adapted.peft_config["default"]
    base = Path(config.base_model_name_or_path or "")
    if base.is_dir():
        config.base_model_name_or_path = base.resolve().name
    adapted.save_pretrained(str(folder), save_embedding_layers=False)  # only linear layers have adapters
    (folder / "README.md").unlink(missing_ok=True)  # an empty form
