"""Embed texts or token ids with a SentenceTransformer, as its own ``encode`` does, in less time.

Encoders that :mod:`dystress_text.models.packed` supports run without padding; other models run
their own ``forward``. Embeddings equal those of sentence-transformers to 1e-6.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import MethodType
from typing import Any, Literal, TypeVar, cast

import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import (
    Dense,
    Normalize,
    Pooling,
    StaticEmbedding,
    Transformer,
    WeightedLayerPooling,
)
from torch import Tensor, nn

from dystress_text.cli.progress import progress_bar
from dystress_text.models.loading import transformer_of
from dystress_text.models.packed import MODEL_TYPES, Packing, packed_states
from dystress_text.models.static import mean_of_rows

TEXTS_AT_ONCE = 4_096  # tokenised in one call, whose result takes many times the memory of the ids
TOKENS_ON_CPU = 2_048  # in a batch
TOKENS_ON_ACCELERATOR = 16_384

M = TypeVar("M", bound=nn.Module)
Role = Literal["", "query", "document"]


def can_pack(model: SentenceTransformer) -> bool:
    """Return whether the packed pass supports all modules of a model."""
    first, *others = model
    if not isinstance(first, Transformer):
        return isinstance(first, StaticEmbedding)
    config = transformer_of(first).config
    known = (Dense, Normalize, Pooling, WeightedLayerPooling)
    return (
        config.model_type in MODEL_TYPES
        and not config.is_decoder
        and getattr(config, "position_embedding_type", "absolute") == "absolute"
        and all(isinstance(module, known) for module in others)
        and all(getattr(module, "include_prompt", True) for module in others)
    )


def embed_tokens(
    modules: Sequence[nn.Module],
    token_ids: Tensor,
    lengths: Tensor,
    longest: int,
    packed: bool = True,
) -> Tensor:
    """Return the embeddings of texts, (n, dim).

    Args:
        modules: the modules of a SentenceTransformer.
        token_ids: the ids of all texts, concatenated, (tokens,).
        lengths: the number of tokens of each text, (n,).
        longest: the greatest length.
        packed: whether the transformer runs without padding, which :func:`can_pack` must allow.
    """
    first, *others = modules
    if isinstance(first, StaticEmbedding):
        table = cast(nn.Parameter, first.embedding.weight)
        features = {"sentence_embedding": mean_of_rows(table, token_ids, lengths)}
    else:
        module = cast(Transformer, first)
        packing = Packing.of_lengths(lengths, longest, len(token_ids))
        if packed:
            features = _packed_features(module, others, token_ids, packing)
        else:
            features = module(_padded(module, token_ids, packing))
    for each in others:
        features = each(features)
    return features["sentence_embedding"]


def _padded(module: Transformer, token_ids: Tensor, packing: Packing) -> dict[str, Any]:
    """Return the padded inputs of a ``Transformer``, (n, longest) each."""
    padding = cast(Any, module.tokenizer).pad_token_id or 0
    return {
        "input_ids": packing.pad(token_ids, padding),
        "attention_mask": packing.mask.long(),
        "modality": "text",
    }


def _packed_features(
    module: Transformer, others: Sequence[nn.Module], token_ids: Tensor, packing: Packing
) -> dict[str, Any]:
    """Run a ``Transformer`` without padding; return the same features.

    Token embeddings are (n, longest, dim), or (n, 1, dim) if pooling uses only the first token.
    """
    needs_layers = any(isinstance(other, WeightedLayerPooling) for other in others)
    modes = {other.pooling_mode for other in others if isinstance(other, Pooling)}
    first_only = modes == {"cls"} and not needs_layers
    states = packed_states(transformer_of(module), token_ids, packing, first_only)
    if first_only:
        vectors = states[-1].unsqueeze(1)  # (n, 1, dim)
        mask = torch.ones(vectors.shape[:2], dtype=torch.long, device=vectors.device)
        return {"token_embeddings": vectors, "attention_mask": mask}
    features: dict[str, Any] = {"attention_mask": packing.mask.long()}
    features["token_embeddings"] = packing.pad(states[-1])
    if needs_layers:
        features["all_layer_embeddings"] = [packing.pad(layer) for layer in states]
    return features


def in_evaluation_mode(model: M) -> M:
    """Return a copy of a model in evaluation mode that shares the model's tensors.

    sentence-transformers' ``encode`` switches the mode of the model itself, which other threads
    notice, and which loses the modes of modules that differ.
    """
    copies: dict[nn.Module | None, nn.Module] = {}
    for module in model.modules():
        copied = copy.copy(module)
        for name, value in vars(module).items():
            if isinstance(value, dict):  # such as hooks and buffers, which a forward pass may add
                vars(copied)[name] = value.copy()
            elif isinstance(value, MethodType) and value.__self__ is module:
                # forward, which accelerate's prepare replaces
                vars(copied)[name] = MethodType(value.__func__, copied)
            elif isinstance(value, partial) and module in value.args:  # as accelerate's hooks do
                vars(copied)[name] = partial(value.func, copied, *value.args[1:])
        copies[module] = copied
    for copied in copies.values():
        for name, part in copied._modules.items():
            compiled = getattr(part, "_orig_mod", part)  # a compiled module would call the original
            copied._modules[name] = copies.get(compiled)
        copied.training = False  # in a compiled module it sets that of its part, now a copy
    return cast(M, copies[model])


def prompt_of(model: SentenceTransformer, role: Role = "") -> str | None:
    """Return the prompt that ``encode`` (or ``encode_query``, ``encode_document``) prepends."""
    names = {"query": ["query"], "document": ["document", "passage", "corpus"]}.get(role, [])
    known = [name for name in (*names, model.default_prompt_name) if name in model.prompts]
    return model.prompts[known[0]] if known else None


@torch.no_grad()
def encode(
    model: SentenceTransformer,
    texts: Sequence[str],
    role: Role = "",
    progress: bool = False,
    normalize: bool = True,
) -> Tensor:
    """Return the embeddings of texts, (n, dim), in fp32 on the model's device.

    They equal those of the model's own ``encode`` to 1e-6. Equal texts are encoded once.

    Args:
        model: a model on any device and in any mode; neither changes.
        texts: the texts, (n,).
        role: ``query`` for ``encode_query``, ``document`` for ``encode_document``.
        progress: whether to show a progress bar.
        normalize: whether to apply the model's final ``Normalize``, if it has one.
    """
    distinct = list(dict.fromkeys(texts))
    model = in_evaluation_mode(model)
    if not normalize and isinstance(model[-1], Normalize):
        del model[-1]
    with torch.autocast(model.device.type, enabled=False):  # also while training in bf16
        if can_pack(model):
            embeddings = _encode_packed(model, distinct, prompt_of(model, role), progress)
            embeddings = embeddings[:, : model.truncate_dim]
        else:
            methods = {"query": model.encode_query, "document": model.encode_document}
            method = methods.get(role, model.encode)
            embeddings = method(distinct, convert_to_tensor=True, show_progress_bar=progress)
    index = {text: i for i, text in enumerate(distinct)}
    return embeddings[[index[text] for text in texts]].float().clone()


def _encode_packed(
    model: SentenceTransformer, texts: Sequence[str], prompt: str | None, progress: bool
) -> Tensor:
    """Return embeddings (texts, dim), from batches of about the same number of tokens."""
    device = model.device
    max_tokens = TOKENS_ON_CPU if device.type == "cpu" else TOKENS_ON_ACCELERATOR
    order = sorted(range(len(texts)), key=lambda i: -len(texts[i]))
    embeddings: list[Tensor] = []
    with progress_bar(total=len(texts), show=progress, desc="encoding", unit=" texts") as bar:
        for start in range(0, len(order), TEXTS_AT_ONCE):
            chunk = [texts[i] for i in order[start : start + TEXTS_AT_ONCE]]
            token_ids, lengths = tokenize(model, chunk, prompt)
            by_text = torch.split(token_ids, lengths)
            for first, stop in batches_by_tokens(lengths, max_tokens):
                ids = torch.cat(by_text[first:stop]).to(device)
                batch = torch.tensor(lengths[first:stop], device=device)
                longest = max(1, *lengths[first:stop])
                embeddings.append(embed_tokens(list(model), ids, batch, longest).float())
                bar.update(stop - first)
    return torch.cat(embeddings)[torch.tensor(order).argsort().to(device)]


def tokenize(
    model: SentenceTransformer, texts: Sequence[str], prompt: str | None = None
) -> tuple[Tensor, list[int]]:
    """Return the token ids of all texts, concatenated, (tokens,), and each text's length."""
    return tokens_of(model.preprocess(list(texts), prompt=prompt))


def tokens_of(features: Mapping[str, Any]) -> tuple[Tensor, list[int]]:
    """Return what :func:`tokenize` returns, from the result of a model's ``preprocess``."""
    ids = features["input_ids"]
    if "offsets" in features:  # a static model does not pad
        starts = features["offsets"]  # (texts,)
        ends = torch.cat([starts[1:], starts.new_tensor([len(ids)])])
        return ids, (ends - starts).tolist()
    mask = features["attention_mask"].bool()  # (texts, length)
    return ids[mask], mask.sum(1).tolist()


def batches_by_tokens(lengths: Sequence[int], max_tokens: int) -> Iterator[tuple[int, int]]:
    """Yield slices (start, stop) of texts that have at most ``max_tokens``, or of a single text."""
    first = 0
    tokens = 0
    for i, length in enumerate(lengths):
        if tokens + length > max_tokens and i > first:
            yield first, i
            first = i
            tokens = 0
        tokens += length
    if first < len(lengths):
        yield first, len(lengths)
