"""A masked-language-model loss, added to the contrastive one on the same encoder (SimCSE's
``--do_mlm``).

Some tokens of each sentence are hidden, and the encoder, in a pass of its own, has to name them
(Devlin et al., NAACL
2019: 80 % of them become the mask token, 10 % any token, 10 % stay). Only the hidden tokens go
    through the head.
"""

from __future__ import annotations

import warnings
from typing import Any, cast

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

HEADS = {
    "bert": "cls",
    "camembert": "lm_head",
    "roberta": "lm_head",
    "xlm-roberta": "lm_head",
}  # by model type


class TokenMasking:
    """Hides tokens of a batch; the seed and the batch's samples decide which ones.

    Args:
        tokenizer: the encoder's.
        probability: share of the tokens to hide, special tokens aside.
        seed: of the run.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, probability: float = 0.15, seed: int = 0
    ) -> None:
        if tokenizer.mask_token is None:
            raise ParameterError("do_mlm", "this encoder's tokenizer has no mask token")
        self._collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=probability)
        self._special = torch.tensor(sorted(set(tokenizer.all_special_ids)))
        self._seed = seed

    def __call__(self, batch: Batch, samples: NDArray[np.int64]) -> Batch:
        """The inputs of the loss for a batch of ``token_ids`` (tokens,), ``lengths`` (n,) and
        ``longest``.

        Returns:
            ``masked_ids`` (tokens,), the tokens with some of them hidden; ``masked_places`` (m,),
            where these stand among all tokens; ``masked_tokens`` (m,), what they are;
            ``masked_count`` (1,), m.
        """
        packing = Packing.of_lengths(batch["lengths"], batch["longest"], len(batch["token_ids"]))
        ids = packing.pad(batch["token_ids"])  # (n, longest)
        special = torch.isin(ids, self._special) | ~packing.mask
        draw = np.random.default_rng([self._seed, *samples.tolist()]).integers(2**63)
        self._collator.generator = torch.Generator().manual_seed(int(draw))
        masked, labels = self._collator.torch_mask_tokens(ids, special)
        wanted = labels[packing.mask]  # (tokens,), -100 at what stays
        places = (wanted >= 0).nonzero().squeeze(1)
        return {
            "masked_ids": masked[packing.mask],
            "masked_places": places,
            "masked_tokens": wanted[places],
            "masked_count": torch.tensor([len(places)]),
        }


def load_lm_head(name_or_path: str, transformer: PreTrainedModel) -> nn.Module:
    """The head that turns hidden states (m, dim) into logits (m, vocabulary), its last layer tied
    to the embeddings.

    ``transformer`` is what came from ``name_or_path``.
    """
    kind = transformer.config.model_type
    if kind not in HEADS:
        raise ParameterError(
            "do_mlm", f"no head is known for {kind!r}; known are {', '.join(HEADS)}"
        )
    with readable(name_or_path):
        model, info = AutoModelForMaskedLM.from_pretrained(
            name_or_path, dtype=torch.float32, output_loading_info=True, trust_remote_code=False,
            **files_of(name_or_path),
        )  # fmt: skip
    prefix = HEADS[kind] + "."
    if any(key.startswith(prefix) and "decoder" not in key for key in info["missing_keys"]):
        warnings.warn(
            f"{name_or_path!r} has no masked-language-model head: a new one is trained",
            stacklevel=2,
        )
    head = cast(nn.Module, getattr(model, HEADS[kind]))
    decoder: Any = head.get_submodule("predictions.decoder" if kind == "bert" else "decoder")
    decoder.weight = transformer.get_input_embeddings().weight
    return head
