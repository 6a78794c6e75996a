"""SimCSE's poolers as modules of sentence-transformers.

``cls`` and ``cls_before_pooler`` take the first token, ``last`` takes the last one (for decoders).
``avg`` is the mean over the tokens, ``avg_top2`` and ``avg_first_last`` the mean over two layers
and the tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Pooling,
    Transformer,
    WeightedLayerPooling,
)
from torch import Tensor, nn
from transformers import PreTrainedModel

from dystress_text.models.encoding import encode
from dystress_text.models.loading import prompts_of, transformer_of

FIRST = ("cls", "cls_before_pooler")
LAST = "last"
# poolers that average over tokens, and the layers that they average first
AVERAGED = {"avg": (-1,), "avg_top2": (-2, -1), "avg_first_last": (1, -1)}
POOLERS = (*FIRST, *AVERAGED, LAST)

_MODES = {
    **dict.fromkeys(FIRST, "cls"),
    **dict.fromkeys(AVERAGED, "mean"),
    LAST: "lasttoken",
}


def pooling_modules(pooler: str, module: Transformer) -> list[nn.Module]:
    """Return the modules that pool a transformer's output.

    If ``pooler`` averages layers, this sets ``output_hidden_states`` in the transformer's
    configuration.
    """
    config = transformer_of(module).config
    pooling = Pooling(config.hidden_size, _MODES[pooler])
    if not averages_layers(pooler):
        return [pooling]
    config.output_hidden_states = True
    depth = config.num_hidden_layers
    weights = nn.Parameter(layer_weights(pooler, depth), requires_grad=False)
    return [WeightedLayerPooling(config.hidden_size, depth, 0, weights), pooling]


def pooler_of(model: SentenceTransformer) -> str | None:
    """Return the name of a model's pooler, or None if :data:`POOLERS` lacks it."""
    if not isinstance(model[0], Transformer):
        return "avg"  # a static model is the mean over its tokens
    modules = {type(module): module for module in model}
    pooling = modules.get(Pooling)
    weighted = modules.get(WeightedLayerPooling)
    for pooler, mode in _MODES.items():
        has_mode = pooling is not None and pooling.pooling_mode == mode
        if has_mode and _averages_as(pooler, weighted):
            return pooler
    return None


def _averages_as(pooler: str, weighted: nn.Module | None) -> bool:
    """Return whether ``weighted``, or its absence, averages the same layers as a pooler."""
    if not averages_layers(pooler):
        return weighted is None
    if weighted is None:
        return False
    weights = cast(Tensor, weighted.layer_weights).cpu()  # (layers + 1,)
    return torch.equal(weights, layer_weights(pooler, len(weights) - 1))


def averages_layers(pooler: str) -> bool:
    return len(AVERAGED.get(pooler, ())) > 1


def layer_weights(pooler: str, layers: int) -> Tensor:
    """Return the weights, 1 or 0, of the embedding layer and each encoder layer, (layers + 1,)."""
    weights = torch.zeros(layers + 1)
    weights[list(AVERAGED[pooler])] = 1.0
    return weights


class _Poolers(nn.Module):
    """Concatenates the embeddings of several poolers."""

    def __init__(self, poolers: Sequence[str], module: Transformer) -> None:
        super().__init__()
        self.pools = nn.ModuleList(
            nn.Sequential(*pooling_modules(pooler, module)) for pooler in poolers
        )

    def forward(self, features: dict[str, Tensor], **_: object) -> dict[str, Tensor]:
        pooled = [pool(dict(features))["sentence_embedding"] for pool in self.pools]  # (n, dim)
        return {"sentence_embedding": torch.cat(pooled, 1)}


def embeddings_by_pooler(
    model: SentenceTransformer, texts: Sequence[str], poolers: Sequence[str]
) -> dict[str, Tensor]:
    """Embed texts with several poolers on a model's transformer, in one pass.

    Returns:
        Embeddings by pooler, (texts, dim) each, on the CPU, without head and normalisation.
    """
    module = cast(Transformer, model[0])
    config = transformer_of(module).config
    before = config.output_hidden_states
    modules = [module, _Poolers(poolers, module)]
    every = SentenceTransformer(modules=modules, device=str(model.device), **prompts_of(model))
    embeddings = encode(every, texts).cpu()  # (texts, poolers * dim)
    config.output_hidden_states = before
    return dict(zip(poolers, embeddings.chunk(len(poolers), 1), strict=True))


def attends_to_the_left_only(transformer: PreTrainedModel) -> bool:
    """Return whether a token attends only to itself and earlier tokens, as in a decoder."""
    return any(getattr(module, "is_causal", False) for module in transformer.modules())
