"""The forward pass of BERT and similar encoders without padding.

The modules and weights are those of transformers, and so is the result; only attention pads the
texts of a batch. If pooling uses only the first token, the last layer computes only that token.
Dropout is that of :func:`dropout`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import GELUActivation

MODEL_TYPES = ("bert", "camembert", "roberta", "xlm-roberta")

_LEVELS = 1 << 16  # dropout rates on a CPU are multiples of 1 / _LEVELS


@dataclass(frozen=True)
class Packing:
    """Maps the concatenated tokens of texts, (tokens,), to rows padded on the right, (n, length).

    Attributes:
        starts: the index of each text's first token in the concatenation, (n,).
        indices: the index of each token in the flattened rows, ascending, (tokens,).
        mask: true at tokens, false at padding, (n, length).
    """

    starts: Tensor
    indices: Tensor
    mask: Tensor

    @classmethod
    def of_lengths(cls, lengths: Tensor, longest: int, tokens: int) -> Packing:
        """Return the packing of texts with ``lengths``, (n,).

        ``longest``, the greatest length, and ``tokens``, the sum, are arguments because reading
        them from ``lengths`` would wait for the device.
        """
        device = lengths.device
        starts = lengths.cumsum(0) - lengths
        row = torch.repeat_interleave(
            torch.arange(len(lengths), device=device), lengths, output_size=tokens
        )
        position = torch.arange(tokens, device=device) - starts[row]  # (tokens,), as row
        mask = torch.arange(longest, device=device) < lengths[:, None]
        return cls(starts, row * longest + position, mask)

    def pack(self, x: Tensor) -> Tensor:
        return cast(Tensor, _Pack.apply(x.flatten(0, 1), self.indices))  # type: ignore[no-untyped-call]

    def pad(self, x: Tensor, value: int = 0) -> Tensor:
        return _spread(x, self.indices, self.mask.numel(), value).view(
            *self.mask.shape, *x.shape[1:]
        )


class _Pack(torch.autograd.Function):
    """Select rows by distinct indices.

    As they are distinct, the backward pass copies gradients; autograd's would add them one by one.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, indices: Tensor) -> Tensor:
        ctx.save_for_backward(indices)
        ctx.size = len(x)
        return x[indices]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        (indices,) = ctx.saved_tensors
        return _spread(grads[0], indices, ctx.size), None


def _spread(x: Tensor, indices: Tensor, size: int, value: int = 0) -> Tensor:
    return x.new_full((size, *x.shape[1:]), value).index_copy_(0, indices, x)


def packed_states(
    transformer: PreTrainedModel, token_ids: Tensor, packing: Packing, first_only: bool = False
) -> list[Tensor]:
    """Return the hidden states after the embedding layer and after each encoder layer.

    Args:
        transformer: an encoder of a type in :data:`MODEL_TYPES`; in training mode it has dropout.
        token_ids: the ids of all texts, concatenated, (tokens,).
        packing: their packing.
        first_only: whether the last layer computes only the first token of each text.

    Returns:
        Tensors (tokens, dim); with ``first_only`` the last one is (n, dim).
    """
    layers = cast(Any, transformer).encoder.layer
    states = [_embed(cast(Any, transformer).embeddings, token_ids, packing)]
    for i, layer in enumerate(layers):
        states.append(_layer(layer, states[-1], packing, first_only and i + 1 == len(layers)))
    return states


def _embed(embeddings: Any, token_ids: Tensor, packing: Packing) -> Tensor:
    table: nn.Embedding = embeddings.position_embeddings
    positions = packing.indices % packing.mask.shape[1]  # (tokens,)
    padding = table.padding_idx
    if padding is not None:  # RoBERTa counts from padding + 1 and skips "<pad>" within a text
        counted = packing.pad(token_ids, padding) != padding  # (n, length)
        positions = (padding + counted.cumsum(1) * counted).flatten()[packing.indices]
    x = embeddings.word_embeddings(token_ids)  # (tokens, dim)
    x = x + table(positions) + embeddings.token_type_embeddings.weight[0]
    return _dropped(embeddings.LayerNorm(x), embeddings.dropout)


def _layer(layer: Any, x: Tensor, packing: Packing, first_only: bool) -> Tensor:
    attended = _attend(layer.attention.self, x, packing, first_only)
    if first_only:
        x = x[packing.starts]  # (n, dim)
    x = _residual(layer.attention.output, attended, x)
    return _residual(layer.output, _intermediate(layer.intermediate, x), x)


def _linear(module: nn.Module, x: Tensor) -> Tensor:
    """Apply a linear layer, (n, in) -> (n, out)."""
    if _by_onednn(module, x):
        return _onednn_linear(module, x, "none")
    return cast(Tensor, module(x))


def _intermediate(block: Any, x: Tensor) -> Tensor:
    """Apply the first linear layer of a block and its activation, (n, dim) -> (n, 4 dim)."""
    if type(block.intermediate_act_fn) is GELUActivation and _by_onednn(block.dense, x):
        return _onednn_linear(block.dense, x, "gelu")
    return cast(Tensor, block(x))


def _by_onednn(module: nn.Module, x: Tensor) -> bool:
    """Return whether oneDNN computes a linear layer: in fp32 on a CPU, as it has no gradient.

    There torch's default library takes 1.15 times as long (AMD EPYC with AVX-512).
    """
    return (
        type(module) is nn.Linear
        and x.device.type == "cpu"
        and x.dtype == module.weight.dtype == torch.float32
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    )


def _onednn_linear(module: Any, x: Tensor, activation: str) -> Tensor:
    exact = "none"  # GELU itself rather than its approximation by tanh
    out = torch.ops.mkldnn._linear_pointwise(x, module.weight, module.bias, activation, [], exact)
    return cast(Tensor, out)


def _residual(block: Any, x: Tensor, residual: Tensor) -> Tensor:
    x = _dropped(_linear(block.dense, x), block.dropout)
    return cast(Tensor, block.LayerNorm(x + residual))


def _attend(block: Any, x: Tensor, packing: Packing, first_only: bool) -> Tensor:
    """Return the result of self-attention, (tokens, dim), or with ``first_only`` (n, dim)."""
    size = block.attention_head_size

    def by_head(z: Tensor) -> Tensor:
        """Split (n, length, dim) into (n, heads, length, size)."""
        return z.view(*z.shape[:2], block.num_attention_heads, size).transpose(1, 2)

    if first_only:
        queries = _linear(block.query, x[packing.starts]).unsqueeze(1)  # (n, 1, dim)
    else:
        queries = packing.pad(_linear(block.query, x))  # (n, length, dim)
    query = by_head(queries)
    key = by_head(packing.pad(_linear(block.key, x)))
    value = by_head(packing.pad(_linear(block.value, x)))
    rate = block.dropout.p if block.training else 0.0
    scale = size**-0.5
    mask = packing.mask[:, None, None]  # (n, 1, 1, length)
    if x.device.type == "cpu" and rate > 0:  # torch has no fused kernel for this case
        scores = query @ key.transpose(2, 3) * scale  # (n, heads, length, length)
        attention = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(dim=-1)
        out = dropout(attention, rate) @ value
    else:
        out = F.scaled_dot_product_attention(query, key, value, mask, rate, scale=scale)
    out = out.transpose(1, 2).flatten(2)  # (n, length, dim)
    return out.squeeze(1) if first_only else packing.pack(out)


def _dropped(x: Tensor, module: nn.Dropout) -> Tensor:
    return dropout(x, module.p) if module.training else x


def dropout(x: Tensor, rate: float) -> Tensor:
    """Apply dropout, on a CPU with fewer random numbers than torch.

    On a CPU one 64-bit random number decides four entries, and the rate is rounded to a multiple of
    1/65,536; torch draws a number for each entry, which took a quarter of a training step. On other
    devices this is ``F.dropout``.

    Args:
        x: a tensor of any shape.
        rate: the probability of a zero, below 1. Other entries are divided by 1 - ``rate``.
    """
    if x.device.type != "cpu":
        return F.dropout(x, rate)
    threshold = round(rate * _LEVELS)
    if threshold == 0:
        return x
    bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(1 << 63), None)
    lanes = bits.view(torch.int16)[: x.numel()].view(x.shape)
    # in place and in int16, as making a boolean mask would take longer than drawing the numbers
    kept = lanes.ge_(threshold - _LEVELS // 2)
    return x * kept.to(x.dtype).mul_(_LEVELS / (_LEVELS - threshold))
