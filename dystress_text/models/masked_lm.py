"""A masked-language-model loss beside the contrastive loss (SimCSE's ``do_mlm``).

In a second forward pass the encoder predicts some tokens of each text: 80 % of them are replaced by
the mask token, 10 % by a random token, and 10 % stay (Devlin et al., NAACL 2019). Only these tokens
pass through the head.
"""

from __future__ import annotations

import warnings
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import (
    AutoModelForMaskedLM,
    DataCollatorForLanguageModeling,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from dystress_text.errors import ParameterError
from dystress_text.models.loading import files_of, readable
from dystress_text.models.packed import Packing
from dystress_text.training.batches import Batch

HEADS = {"bert": "cls"} | dict.fromkeys(("camembert", "roberta", "xlm-roberta"), "lm_head")


class TokenMasking:
    """Masks random tokens of a batch; the seed and the indices of its samples determine them.

    Args:
        tokenizer: the tokenizer of the encoder.
        probability: the share of tokens to mask; special tokens are never masked.
        seed: the seed of the run.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, probability: float = 0.15, seed: int = 0
    ) -> None:
        if tokenizer.mask_token is None:
            reason = "this encoder's tokenizer has no mask token; leave the option out"
            raise ParameterError("do_mlm", reason)
        self._collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=probability)
        self._special = torch.tensor(sorted(set(tokenizer.all_special_ids)))
        self._seed = seed

    def __call__(self, batch: Batch, samples: NDArray[np.int64]) -> Batch:
        """Mask tokens of a batch; return the inputs of the loss.

        Args:
            batch: ``token_ids`` (tokens,), ``lengths`` (n,) and ``longest``.
            samples: the indices of the samples, (n,).

        Returns:
            ``masked_ids`` (tokens,), the ids after masking; ``masked_indices`` (m,), the indices of
            the tokens to predict; ``masked_tokens`` (m,), their true ids; ``masked_count`` (1,), m.
        """
        packing = Packing.of_lengths(batch["lengths"], batch["longest"], len(batch["token_ids"]))
        ids = packing.pad(batch["token_ids"])  # (n, longest)
        special = torch.isin(ids, self._special) | ~packing.mask
        draw = np.random.default_rng([self._seed, *samples.tolist()]).integers(2**63)
        self._collator.generator = torch.Generator().manual_seed(int(draw))
        masked, labels = self._collator.torch_mask_tokens(ids, special)
        targets = labels[packing.mask]  # (tokens,), -100 at tokens that are not predicted
        indices = (targets >= 0).nonzero().squeeze(1)
        return {
            "masked_ids": masked[packing.mask],
            "masked_indices": indices,
            "masked_tokens": targets[indices],
            "masked_count": torch.tensor([len(indices)]),
        }


def load_lm_head(name_or_path: str, transformer: PreTrainedModel) -> nn.Module:
    """Load the masked-language-model head, from hidden states (m, dim) to logits (m, vocabulary).

    Args:
        name_or_path: folder or hub name.
        transformer: the encoder from the same files, whose token embeddings the head shares.
    """
    kind = transformer.config.model_type
    if kind not in HEADS:
        raise ParameterError("do_mlm", f"not supported for {kind!r}, only for {', '.join(HEADS)}")
    with readable(name_or_path):
        model, info = AutoModelForMaskedLM.from_pretrained(
            name_or_path,
            dtype=torch.float32,
            output_loading_info=True,
            trust_remote_code=False,
            **files_of(name_or_path),
        )
    prefix = HEADS[kind] + "."
    if any(key.startswith(prefix) and "decoder" not in key for key in info["missing_keys"]):
        warnings.warn(
            f"{name_or_path!r} has no masked-language-model head: a new one is trained",
            stacklevel=2,
        )
    model.get_output_embeddings().weight = transformer.get_input_embeddings().weight
    return cast(nn.Module, getattr(model, HEADS[kind]))
