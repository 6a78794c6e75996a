"""The forward pass of training and evaluation: embed token ids with a SentenceTransformer.

Encoders that :mod:`dystress_text.models.packed` supports run without padding. Other models run
their own ``forward``. The embeddings are those of sentence-transformers within 1e-6.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import MethodType
from typing import Any, Literal, TypeVar, cast

import torch
import torch.nn.functional as F
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
from dystress_text.errors import ParameterError
from dystress_text.models.loading import transformer_of
from dystress_text.models.packed import MODEL_TYPES, Packing, packed_states
from dystress_text.models.static import mean_of_rows

TEXTS_AT_ONCE = 4_096  # tokenised together; features take many times the memory of the ids
TOKENS_ON_CPU = 2_048  # of a batch of texts
TOKENS_ON_ACCELERATOR = 16_384

M = TypeVar("M", bound=nn.Module)
Role = Literal["", "query", "document"]


class Embedder(nn.Module):
    """A model and the heads that only training needs, as one module for accelerate to prepare.

    Args:
        model: the model to train.
        head: SimCSE's head if it is used in training only; None if there is no head, or if it is a
            module of the model.
        lm_head: the masked-language-model head, for ``do_mlm``.

    Raises:
        ParameterError: some weights are not finite, or some tokens have no vector.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        head: Dense | None = None,
        lm_head: nn.Module | None = None,
    ) -> None:
        super().__init__()
        _check_weights(model[0])
        self.model = model
        self.head = head
        self.lm_head = lm_head
        pooler = getattr(model.transformers_model, "pooler", None)
        if isinstance(pooler, nn.Module):  # BERT's is saved, but pooling does not use it
            pooler.requires_grad_(False)
        for module in model:
            if isinstance(module, WeightedLayerPooling):  # which layers count is not trained
                module.requires_grad_(False)

    def forward(
        self,
        token_ids: Tensor,
        lengths: Tensor,
        longest: int | None = None,
        packed: bool = True,
        masked: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Return embeddings of token ids, (n, dim), which are not normalised.

        Args:
            token_ids: (tokens,), text after text.
            lengths: the number of tokens of each text, (n,).
            longest: the greatest length; None reads it from the device.
            packed: whether to leave out padding where the model allows it. The embeddings are the
                same.
            masked: indices of masked tokens among all tokens, and what they were, both (m,). If
                they are given, return the sum of the masked-language-model losses instead, (1,).
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


def _check_weights(first: Any) -> None:
    for name, parameter in first.named_parameters():
        if not parameter.isfinite().all():
            raise ParameterError("model_name_or_path", f"the weights {name} are not all finite")
    table = first if isinstance(first, StaticEmbedding) else first.model.get_input_embeddings()
    tokens = 1 + max(first.tokenizer.get_vocab().values())
    if tokens > table.num_embeddings:
        reason = f"{tokens:,} tokens, but its table has only {table.num_embeddings:,} rows"
        raise ParameterError("model_name_or_path", f"its tokenizer has {reason}")


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
    """Return embeddings (n, dim) of token ids (tokens,), text after text, with lengths (n,).

    With ``packed`` the transformer runs without padding, for which the model must be one that
    :func:`can_pack`.
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
    """Return padded inputs for a ``Transformer``, (n, length) each."""
    padding = cast(Any, module.tokenizer).pad_token_id or 0
    return {
        "input_ids": packing.pad(token_ids, padding),
        "attention_mask": packing.mask.long(),
        "modality": "text",
    }


def _packed_features(
    module: Transformer, others: Sequence[nn.Module], token_ids: Tensor, packing: Packing
) -> dict[str, Any]:
    """Return what a ``Transformer`` returns, computed without padding.

    The states are (n, length, dim), or (n, 1, dim) if pooling uses only the first token.
    """
    layers_count = any(isinstance(other, WeightedLayerPooling) for other in others)
    modes = {other.pooling_mode for other in others if isinstance(other, Pooling)}
    first_only = modes == {"cls"} and not layers_count
    states = packed_states(transformer_of(module), token_ids, packing, first_only)
    if first_only:
        vectors = states[-1].unsqueeze(1)  # (n, 1, dim)
        mask = torch.ones(vectors.shape[:2], dtype=torch.long, device=vectors.device)
        return {"token_embeddings": vectors, "attention_mask": mask}
    features: dict[str, Any] = {"attention_mask": packing.mask.long()}
    features["token_embeddings"] = packing.pad(states[-1])
    if layers_count:
        features["all_layer_embeddings"] = [packing.pad(layer) for layer in states]
    return features


def in_evaluation_mode(model: M) -> M:
    """Return a copy of a model in evaluation mode that shares all tensors with the model.

    Switching the mode of the model itself, as ``encode`` of sentence-transformers does, would
    affect other threads, and parts in another mode.
    """
    copies: dict[nn.Module | None, nn.Module] = {}
    for module in model.modules():
        copied = copy.copy(module)
        for name, value in vars(module).items():
            if isinstance(value, dict):  # hooks and buffers, to which a forward pass may add some
                vars(copied)[name] = value.copy()
            elif isinstance(value, MethodType) and value.__self__ is module:
                # forward, which accelerate's prepare replaces
                vars(copied)[name] = MethodType(value.__func__, copied)
            elif isinstance(value, partial) and module in value.args:  # as accelerate's hooks do
                vars(copied)[name] = partial(value.func, copied, *value.args[1:])
        copied.training = False
        copies[module] = copied
    for copied in copies.values():
        for name, part in copied._modules.items():
            compiled = getattr(part, "_orig_mod", part)  # a compiled module would call the original
            copied._modules[name] = copies.get(compiled)
    return cast(M, copies[model])


def prompt_of(model: SentenceTransformer, role: Role = "") -> str | None:
    """Return the prompt that ``encode``, ``encode_query`` or ``encode_document`` prepends."""
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
    """Return the embeddings that the model's ``encode`` returns, within 1e-6.

    Equal texts are encoded once.

    Args:
        model: a model on any device and in any mode; neither changes.
        texts: the texts, as strings.
        role: ``query`` and ``document`` stand for ``encode_query`` and ``encode_document``.
        progress: whether to show a bar.
        normalize: whether to apply the model's final ``Normalize``.

    Returns:
        Embeddings (texts, dim) in fp32 on the model's device.
    """
    rows = {text: row for row, text in enumerate(dict.fromkeys(texts))}
    distinct = list(rows)
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
    return embeddings[[rows[text] for text in texts]].float().clone()


def _encode_packed(
    model: SentenceTransformer, texts: Sequence[str], prompt: str | None, progress: bool
) -> Tensor:
    """Return embeddings (texts, dim), computed in batches of about the same number of tokens."""
    device = model.device
    most = TOKENS_ON_CPU if device.type == "cpu" else TOKENS_ON_ACCELERATOR
    order = sorted(range(len(texts)), key=lambda row: -len(texts[row]))
    pieces: list[Tensor] = []
    bar = progress_bar(total=len(texts), show=progress, desc="encoding", unit=" texts")
    with bar:
        for start in range(0, len(order), TEXTS_AT_ONCE):
            some = [texts[row] for row in order[start : start + TEXTS_AT_ONCE]]
            token_ids, lengths = tokenize(model, some, prompt)
            ends = torch.tensor(lengths).cumsum(0).tolist()
            for first, last in batches_by_tokens(lengths, most):
                ids = token_ids[ends[first] - lengths[first] : ends[last - 1]].to(device)
                batch = torch.tensor(lengths[first:last], device=device)
                longest = max(1, *lengths[first:last])
                pieces.append(embed_tokens(list(model), ids, batch, longest).float())
                bar.update(last - first)
    return torch.cat(pieces)[torch.tensor(order).argsort().to(device)]


def tokenize(
    model: SentenceTransformer, texts: Sequence[str], prompt: str | None = None
) -> tuple[Tensor, list[int]]:
    """Return the token ids of texts, (tokens,), text after text, and the length of each text."""
    return tokens_of(model.preprocess(list(texts), prompt=prompt))


def tokens_of(features: Mapping[str, Any]) -> tuple[Tensor, list[int]]:
    """Return the token ids in the result of ``preprocess``, (tokens,), and each text's length."""
    ids = features["input_ids"]
    if "offsets" in features:  # of a static model, which does not pad
        starts = features["offsets"]  # (texts,)
        ends = torch.cat([starts[1:], starts.new_tensor([len(ids)])])
        return ids, (ends - starts).tolist()
    mask = features["attention_mask"].bool()  # (texts, length)
    return ids[mask], mask.sum(1).tolist()


def batches_by_tokens(lengths: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Yield slices (start, stop) of texts with at most ``most`` tokens together, or of one text."""
    first = 0
    tokens = 0
    for i, length in enumerate(lengths):
        if tokens + length > most and i > first:
            yield first, i
            first = i
            tokens = 0
        tokens += length
    if first < len(lengths):
        yield first, len(lengths)


def check_views(embedder: Embedder) -> None:
    """Check that dropout makes two views of a text differ; the random state is restored.

    Equal views would teach nothing.
    """
    device = embedder.model.device
    ids, (length,) = tokenize(embedder.model, ["Two views of one sentence."])
    lengths = torch.tensor([length, length], device=device)
    devices = [device] if device.type == "cuda" else []
    in_training = in_evaluation_mode(embedder).train()
    with torch.no_grad(), torch.random.fork_rng(devices):
        first, second = in_training(ids.to(device).repeat(2), lengths)
    if torch.equal(first, second):
        reason = "this encoder has none, so both views of a text are equal; give one or use crops"
        raise ParameterError("dropout", reason)
