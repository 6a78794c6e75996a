"""SimCSE's poolers as modules of sentence-transformers.

``cls`` and ``cls_before_pooler`` take the first token, ``last`` the last one, as decoders need.
``avg``, ``avg_top2`` and ``avg_first_last`` average over the tokens, the latter two over two layers
before.
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
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dystress_text.models.embedder import prompt_of
from dystress_text.models.loading import training_mode, transformer_of

FIRST = ("cls", "cls_before_pooler")
LAST = "last"
# poolers that average over tokens, with the layers that they average before
AVERAGED = {"avg": (-1,), "avg_top2": (-2, -1), "avg_first_last": (1, -1)}
POOLERS = (*FIRST, *AVERAGED, LAST)

_MODES = {
    **dict.fromkeys(FIRST, "cls"),
    **dict.fromkeys(AVERAGED, "mean"),
    LAST: "lasttoken",
}


def pooling_modules(pooler: str, module: Transformer) -> list[nn.Module]:
    """Return the modules that pool the states of a transformer, to follow it in the model.

    A pooler of several layers makes the transformer return the states of all its layers.
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
    """Return the pooler that a model's modules amount to; None for any other pooling."""
    modules = {type(module): module for module in model}
    if not isinstance(model[0], Transformer):
        return "avg"  # a static model's mean over its tokens
    pooling = modules.get(Pooling)
    weighted = modules.get(WeightedLayerPooling)
    if pooling is None:
        return None
    for pooler, mode in _MODES.items():
        if pooling.pooling_mode != mode:
            continue
        if weighted is None and not averages_layers(pooler):
            return pooler
        if weighted is not None and averages_layers(pooler):
            weights = cast(Tensor, weighted.layer_weights)  # (layers + 1,)
            if torch.equal(weights.cpu(), layer_weights(pooler, len(weights) - 1)):
                return pooler
    return None


def averages_layers(pooler: str) -> bool:
    """Return whether a pooler averages over layers before it averages over tokens."""
    return len(AVERAGED.get(pooler, ())) > 1


def layer_weights(pooler: str, layers: int) -> Tensor:
    """Return weights of the embedding layer and the other layers, (layers + 1,): 1 or 0."""
    weights = torch.zeros(layers + 1)
    weights[list(AVERAGED[pooler])] = 1.0
    return weights


@torch.no_grad()
def embeddings_by_pooler(
    model: SentenceTransformer, texts: Sequence[str], poolers: Sequence[str], batch_size: int = 64
) -> dict[str, Tensor]:
    """Return what the model's transformer gives with each of several poolers, in one pass.

    Returns:
        Embeddings (texts, dim) on the CPU, not normalised and without a head, by pooler.
    """
    module = cast(Transformer, model[0])
    transformer = transformer_of(module)
    asked_for_layers = transformer.config.output_hidden_states
    modules = {pooler: pooling_modules(pooler, module) for pooler in poolers}
    transformer.config.output_hidden_states = True
    prompt = prompt_of(model)
    order = sorted(range(len(texts)), key=lambda row: len(texts[row]))
    pieces: dict[str, list[Tensor]] = {pooler: [] for pooler in poolers}
    with training_mode(model, False):
        for start in range(0, len(order), batch_size):
            batch = [texts[row] for row in order[start : start + batch_size]]
            features = model.preprocess(batch, prompt=prompt)
            features = {name: _to(value, model.device) for name, value in features.items()}
            features = module(features)
            for pooler, its_modules in modules.items():
                pooled = dict(features)
                for each in its_modules:
                    pooled = each.to(model.device)(pooled)
                pieces[pooler].append(pooled["sentence_embedding"].float().cpu())
    transformer.config.output_hidden_states = asked_for_layers
    inverse = torch.tensor(order).argsort()
    return {pooler: torch.cat(of_pooler)[inverse] for pooler, of_pooler in pieces.items()}


def _to(value: object, device: torch.device) -> object:
    return value.to(device) if isinstance(value, Tensor) else value


@torch.no_grad()
def attends_to_the_left_only(
    transformer: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> bool:
    """Return whether a token sees only those before it, so that the first one sees no other."""
    first, other = sorted(tokenizer.get_vocab().values())[-2:]
    ids = torch.tensor([[first, first], [first, other]], device=transformer.device)
    with training_mode(transformer, False):
        states = transformer(ids).last_hidden_state
    same_first = torch.equal(states[0, 0], states[1, 0])
    same_second = torch.equal(states[0, 1], states[1, 1])
    return same_first and not same_second
