"""From the hidden states of tokens to one vector a sentence; poolers have SimCSE's names, but for
``last``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

FIRST = ("cls", "cls_before_pooler")  # poolers that take the first token
LAST = "last"  # takes the last token, as decoders need
# poolers that average over the tokens, with the layers that they average before
AVERAGED = {"avg": (-1,), "avg_top2": (-2, -1), "avg_first_last": (1, -1)}
POOLERS = (*FIRST, *AVERAGED, LAST)


def pool(hidden_states: Sequence[Tensor], attention_mask: Tensor, pooler_type: str) -> Tensor:
    """One vector per sentence, (n, dim), from the hidden states of all layers.

    A row without a token gives what it does in sentence-transformers: zeros, or padding's state as
    the first token.

    Args:
        hidden_states: the outputs of the embedding layer and of each layer after it, all (n,
            length, dim); all but ``avg_top2`` and ``avg_first_last`` need only the last one.
        attention_mask: (n, length), 1 at tokens.
        pooler_type: one of :data:`POOLERS`.
    """
    if pooler_type in FIRST:
        return hidden_states[-1][:, 0]
    return pool_tokens(mean_layer(hidden_states, pooler_type), attention_mask, pooler_type)


def mean_layer(hidden_states: Sequence[Tensor], pooler_type: str) -> Tensor:
    """Mean of the layers that a pooler averages before the tokens, each (..., dim)."""
    states = [hidden_states[layer] for layer in AVERAGED.get(pooler_type, (-1,))]
    return states[0] if len(states) == 1 else (states[0] + states[1]) / 2


def pool_tokens(states: Tensor, attention_mask: Tensor, pooler_type: str) -> Tensor:
    """Mean of each row's tokens, or the last one; (n, length, dim) and (n, length) -> (n, dim)."""
    if pooler_type == LAST:
        places = (
            torch.arange(attention_mask.shape[1], device=states.device) * attention_mask
        )  # (n, length)
        last = places.float().argmax(
            1
        )  # as floats: ONNX Runtime 1.18 has no argmax of whole numbers
        pooled = states[torch.arange(len(states), device=states.device), last]
    else:
        mask = attention_mask.unsqueeze(-1).to(states.dtype)  # (n, length, 1)
        pooled = (states * mask).sum(1) / mask.sum(1)
    return pooled.masked_fill(attention_mask.sum(1, keepdim=True) == 0, 0)


def averages_layers(pooler_type: str) -> bool:
    """Whether a pooler needs several layers, which text-embeddings-inference and vLLM cannot give."""
    return len(AVERAGED.get(pooler_type, ())) > 1


def token_of(pooler_type: str) -> str:
    """What is taken of the tokens, in sentence-transformers' words."""
    return "cls" if pooler_type in FIRST else "mean" if pooler_type in AVERAGED else "lasttoken"


def token_pooler(pooler_type: str) -> str:
    """The pooler that takes the same of the tokens as another one, of the last layer."""
    return {"cls": "cls", "mean": "avg", "lasttoken": LAST}[token_of(pooler_type)]


def layer_weights(pooler_type: str, layers: int) -> Tensor:
    """Weights of the embedding layer and the other layers, (layers + 1,): 1 for those that a pooler
    averages, else 0.

    sentence-transformers' WeightedLayerPooling has them.
    """
    weights = torch.zeros(layers + 1)
    weights[list(AVERAGED.get(pooler_type, (-1,)))] = 1.0
    return weights
