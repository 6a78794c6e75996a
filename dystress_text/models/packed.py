"""Run BERT and similar encoders on packed tokens, without padding.

The result equals that of the forward pass in transformers, with the same modules and weights, in
less time. Only attention sees padded rows. If only the first token's vector is needed, the last
layer computes nothing else. :func:`dropout` draws the dropout masks.
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

_LEVELS = 1 << 16  # of a dropout rate on a CPU


@dataclass(frozen=True)
class Packing:
    """A mapping between packed tokens, text after text, and rows that are padded on the right.

    Attributes:
        starts: the index of each text's first token among the packed tokens, (rows,).
        indices: the position of each packed token among the rows * length positions, ascending,
            (tokens,).
        mask: (rows, length), true at tokens.
    """

    starts: Tensor
    indices: Tensor
    mask: Tensor

    @classmethod
    def of_lengths(cls, lengths: Tensor, longest: int, tokens: int) -> Packing:
        """Return the packing of texts, without reading from the device.

        Args:
            lengths: the number of tokens of each text, (rows,).
            longest: the greatest length.
            tokens: the sum of the lengths.
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

    The backward copies the gradients of rows, which autograd's own backward adds one by one.
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
    """Return the hidden states after the embedding layer and after each further layer.

    Args:
        transformer: an encoder of a type in :data:`MODEL_TYPES`. Dropout applies in training mode.
        token_ids: (tokens,), row after row.
        packing: the packing of the tokens.
        first_only: whether to compute the last layer for the first token of each row alone.

    Returns:
        Tensors (tokens, dim); with ``first_only`` the last one is (rows, dim).
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
    if padding is not None:  # RoBERTa numbers positions from there, without those of "<pad>"
        counted = packing.pad(token_ids, padding) != padding  # (rows, length)
        positions = (padding + counted.cumsum(1) * counted).flatten()[packing.indices]
    x = embeddings.word_embeddings(token_ids)  # (tokens, dim)
    x = x + table(positions) + embeddings.token_type_embeddings.weight[0]
    return _dropped(embeddings.LayerNorm(x), embeddings.dropout)


def _layer(layer: Any, x: Tensor, packing: Packing, first_only: bool) -> Tensor:
    attended = _attend(layer.attention.self, x, packing, first_only)
    if first_only:
        x = x[packing.starts]  # (rows, dim)
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
    """Return whether to compute a linear layer by oneDNN.

    In fp32 torch uses another library by default, which takes 1.15 times as long on an AMD EPYC
    with AVX-512. The operator of oneDNN has no gradient.
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
    exact = "none"  # of GELU, and not tanh's approximation
    out = torch.ops.mkldnn._linear_pointwise(x, module.weight, module.bias, activation, [], exact)
    return cast(Tensor, out)


def _residual(block: Any, x: Tensor, residual: Tensor) -> Tensor:
    x = _dropped(_linear(block.dense, x), block.dropout)
    return cast(Tensor, block.LayerNorm(x + residual))


def _attend(block: Any, x: Tensor, packing: Packing, first_only: bool) -> Tensor:
    """Return the self-attention of tokens, (tokens, dim), or with ``first_only`` (rows, dim).

    Only attention needs padded rows.
    """
    size = block.attention_head_size

    def by_head(z: Tensor) -> Tensor:
        """Split (rows, length, dim) into (rows, heads, length, size)."""
        return z.view(*z.shape[:2], block.num_attention_heads, size).transpose(1, 2)

    if first_only:
        queries = _linear(block.query, x[packing.starts]).unsqueeze(1)  # (rows, 1, dim)
    else:
        queries = packing.pad(_linear(block.query, x))  # (rows, length, dim)
    query = by_head(queries)
    key = by_head(packing.pad(_linear(block.key, x)))
    value = by_head(packing.pad(_linear(block.value, x)))
    rate = block.dropout.p if block.training else 0.0
    scale = size**-0.5
    mask = packing.mask[:, None, None]  # (rows, 1, 1, length)
    if x.device.type == "cpu" and rate > 0:  # torch has no fused kernel for this case
        scores = query @ key.transpose(2, 3) * scale  # (rows, heads, length, length)
        attention = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(dim=-1)
        out = dropout(attention, rate) @ value
    else:
        out = F.scaled_dot_product_attention(query, key, value, mask, rate, scale=scale)
    out = out.transpose(1, 2).flatten(2)  # (rows, length, dim)
    return out.squeeze(1) if first_only else packing.pack(out)


def _dropped(x: Tensor, module: nn.Dropout) -> Tensor:
    return dropout(x, module.p) if module.training else x


def dropout(x: Tensor, rate: float) -> Tensor:
    """Apply dropout, on a CPU with fewer random numbers than torch.

    On a CPU a 64-bit random number decides four entries, and the rate is rounded to 1/65,536. A
    number for each entry, as torch draws it, took a quarter of a training step. On other devices
    this is ``F.dropout``.

    Args:
        x: a tensor of any shape.
        rate: the probability of a zero, below 1. Other entries are scaled up to preserve the mean.
    """
    if x.device.type != "cpu":
        return F.dropout(x, rate)
    threshold = round(rate * _LEVELS)
    if threshold == 0:
        return x
    bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(1 << 63), None)
    lanes = bits.view(torch.int16)[: x.numel()].view(x.shape)
    # in place and as int16: a boolean mask costs more than the numbers
    kept = lanes.ge_(threshold - _LEVELS // 2)
    return x * kept.to(x.dtype).mul_(_LEVELS / (_LEVELS - threshold))
