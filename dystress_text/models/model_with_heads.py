"""The module that training runs: a SentenceTransformer with heads that are not saved."""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.nn.functional as F
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Normalize,
    StaticEmbedding,
    Transformer,
    WeightedLayerPooling,
)
from torch import Tensor, nn

from dystress_text.errors import ParameterError
from dystress_text.models.encoding import can_pack, embed_tokens, in_evaluation_mode, tokenize
from dystress_text.models.loading import transformer_of
from dystress_text.models.packed import Packing, packed_states


class ModelWithHeads(nn.Module):
    """A model and its training heads, as one module that accelerate can prepare.

    Args:
        model: the model to train.
        head: SimCSE's MLP if only training uses it; a head that is kept is a module of the model.
        lm_head: the masked-language-model head for ``do_mlm``.

    Raises:
        ParameterError: a weight is not finite, or a token has no row in the embedding table.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        head: Dense | None = None,
        lm_head: nn.Module | None = None,
    ) -> None:
        super().__init__()
        _check_weights_are_finite(model[0])
        _check_tokens_have_rows(model[0])
        self.model = model
        self.head = head
        self.lm_head = lm_head
        pooler = getattr(model.transformers_model, "pooler", None)
        if isinstance(pooler, nn.Module):  # BERT's is saved, but no embedding depends on it
            pooler.requires_grad_(False)
        for module in model:
            if isinstance(module, WeightedLayerPooling):  # the weights of layers stay fixed
                module.requires_grad_(False)

    def forward(
        self,
        token_ids: Tensor,
        lengths: Tensor,
        longest: int | None = None,
        packed: bool = True,
        masked: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Return the embeddings of texts, (n, dim), without a final normalisation.

        Args:
            token_ids: the ids of all texts, concatenated, (tokens,).
            lengths: the number of tokens of each text, (n,).
            longest: the greatest length; None reads it from the device.
            packed: whether to run without padding if the model allows it; the result is the same.
            masked: indices into ``token_ids`` and the true tokens there, (m,) each. With them,
                return the sum of the masked-language-model losses, (1,), in place of embeddings.
        """
        if longest is None:
            longest = int(lengths.max())
        if masked is not None:
            return self._masked_lm_loss(token_ids, lengths, longest, *masked)
        modules = list(self.model)
        if isinstance(modules[-1], Normalize):  # the loss takes unit vectors itself
            modules.pop()
        if self.head is not None and self.training:
            modules.append(self.head)
        return embed_tokens(modules, token_ids, lengths, longest, packed and can_pack(self.model))

    def _masked_lm_loss(
        self,
        token_ids: Tensor,
        lengths: Tensor,
        longest: int,
        indices: Tensor,
        tokens: Tensor,
    ) -> Tensor:
        assert self.lm_head is not None
        transformer = transformer_of(cast(Transformer, self.model[0]))
        packing = Packing.of_lengths(lengths, longest, len(token_ids))
        states = packed_states(transformer, token_ids, packing)[-1]  # (tokens, dim)
        logits = self.lm_head(states[indices])  # (m, vocabulary)
        return F.cross_entropy(logits.float(), tokens, reduction="sum").unsqueeze(0)


def _check_weights_are_finite(first: nn.Module) -> None:
    for name, parameter in first.named_parameters():
        if not parameter.isfinite().all():
            raise ParameterError("model_name_or_path", f"the weights {name} are not all finite")


def _check_tokens_have_rows(first: Any) -> None:
    table = first if isinstance(first, StaticEmbedding) else first.model.get_input_embeddings()
    tokens = 1 + max(first.tokenizer.get_vocab().values())
    if tokens > table.num_embeddings:
        reason = (
            f"{tokens:,} tokens, but its embedding table has only {table.num_embeddings:,} rows; "
            "call resize_token_embeddings and save it again"
        )
        raise ParameterError("model_name_or_path", f"its tokenizer has {reason}")


def check_views(trained: ModelWithHeads) -> None:
    """Check that dropout gives a text two different embeddings, since equal views teach nothing.

    The random state is restored.
    """
    device = trained.model.device
    ids, (length,) = tokenize(trained.model, ["Two views of one sentence."])
    lengths = torch.tensor([length, length], device=device)
    devices = [device] if device.type == "cuda" else []
    in_training = in_evaluation_mode(trained).train()
    with torch.no_grad(), torch.random.fork_rng(devices):
        first, second = in_training(ids.to(device).repeat(2), lengths)
    if torch.equal(first, second):
        reason = (
            "this encoder has no dropout, so both views of a text are equal; give a rate, such as "
            "0.1, or set `views` to crop"
        )
        raise ParameterError("dropout", reason)
