"""From the hidden states of tokens to one vector a sentence."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# poolers that average over the tokens, with the layers that they average before; the others take the first token
AVERAGED = {"avg": (-1,), "avg_top2": (-2, -1), "avg_first_last": (1, -1)}
POOLERS = ("cls", "cls_before_pooler", *AVERAGED)


def pool(hidden_states: Sequence[Tensor], attention_mask: Tensor, pooler_type: str) -> Tensor:
    """One vector per sentence from the hidden states of all layers.

    Args:
        hidden_states: the outputs of the embedding layer and of each layer after it, all (n, length, dim); ``cls``,
            ``cls_before_pooler`` and ``avg`` need only the last one.
        attention_mask: (n, length), 1 at tokens.
        pooler_type: ``cls`` and ``cls_before_pooler`` take the first token of the last layer, ``avg`` the mean over the
            tokens of the last layer, ``avg_top2`` that of the last two layers, ``avg_first_last`` that of the first and
            the last layer.

    Returns:
        (n, dim).
    """
    if pooler_type in AVERAGED:
        return mean_token(mean_layer(hidden_states, pooler_type), attention_mask)
    if pooler_type in POOLERS:
        return hidden_states[-1][:, 0]
    raise ValueError(f"unknown pooler {pooler_type!r}; known are {', '.join(POOLERS)}")


def mean_layer(hidden_states: Sequence[Tensor], pooler_type: str) -> Tensor:
    """Mean of the layers that a pooler averages before the tokens, each (n, length, dim)."""
    states = [hidden_states[layer] for layer in AVERAGED[pooler_type]]
    return states[0] if len(states) == 1 else (states[0] + states[1]) / 2


def mean_token(states: Tensor, attention_mask: Tensor) -> Tensor:
    """Mean of each row's tokens, (n, length, dim) and (n, length) -> (n, dim)."""
    mask = attention_mask.unsqueeze(-1).to(states.dtype)  # (n, length, 1)
    return (states * mask).sum(1) / mask.sum(1)


def layer_weights(averaged: Sequence[int], layers: int) -> Tensor:
    """Weights of the embedding layer and the other layers, (layers + 1,): 1 for averaged layers, else 0."""
    weights = torch.zeros(layers + 1)
    weights[list(averaged)] = 1.0
    return weights
