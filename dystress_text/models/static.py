"""Static models: ``StaticEmbedding`` of sentence-transformers, the mean of token vectors.

A new model starts from random vectors scaled by the inverse document frequency of their tokens; it
is a fair model even untrained.

The document row is the vector of a token that only the prompt for documents has. A cosine divides a
document's sum of rows x by |x|; with this row it divides by sqrt(|x|^2 + p m^2), where m^2 is the
mean of |x|^2 over the training samples, so short documents count less. The row is (sqrt(p) m, 0,
..., 0), and the first entry of all other rows is 0, so without the prompt the cosine is the usual
one.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any, cast

import torch
import torch.nn.functional as F
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, StaticEmbedding
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from dystress_text.errors import ParameterError
from dystress_text.io.paths import EMBEDDED, EMBEDDED_MODEL
from dystress_text.models.hybrid_module import DOCUMENT

STATIC = "static"  # stands for a new static model where a model is named
PIECES = 4096  # size of a learned vocabulary
TEXTS_READ = 200_000  # a vocabulary is learned from at most so many texts
# up to 16 letters, marks, digits and joiners (scripts without spaces have longer runs), or one
# other visible character
_WORD = Regex(r"[\p{L}\p{M}\p{N}\u200c\u200d]{1,16}|[^\s\p{L}\p{M}\p{N}\p{Cc}\p{Cf}]")
# Each entry of the unknown token's vector. If it were 0, so would be a text of unknown tokens, and
# sentence-transformers (in Normalize and its losses) would divide by its length with a gradient of
# 1e12: one such text in a batch would stop training. Known vectors are 5,000 times as long, so in
# other texts it changes the vector by 1e-5, also for readers that skip it, such as model2vec.
UNKNOWN = 2e-5
_SPREAD = 0.1  # standard deviation of a new row whose idf is the mean
# The token of the document row; it has invisible separators, so a text with "[DOC]" lacks it.
_DOCUMENT_TOKEN = DOCUMENT.rstrip()
PIVOT = 0.25  # p of the document row
_RARE = 0.01  # of the texts; tokens that are rarer get little more weight


def new_static(tokenizer: Tokenizer, dim: int, normalize: bool) -> SentenceTransformer:
    """Return a static model with a document row, whose vectors are still 0.

    Args:
        tokenizer: the tokenizer, which will add no special tokens.
        dim: the dimension of the vectors.
        normalize: whether the model scales embeddings to length 1.
    """
    tokenizer = without_special_tokens(tokenizer)
    tokenizer.no_truncation()  # a call of transformers may have set it
    tokenizer.add_special_tokens([AddedToken(_DOCUMENT_TOKEN, normalized=False)])
    rows = 1 + max(tokenizer.get_vocab().values())
    embedding = StaticEmbedding(tokenizer, embedding_weights=torch.zeros(rows, dim))
    modules: list[nn.Module] = [embedding]
    if normalize:
        modules.append(Normalize())
    prompts = {"query": "", "document": DOCUMENT}
    model = SentenceTransformer(
        modules=modules, device="cpu", prompts=prompts, similarity_fn_name="cosine"
    )
    set_unknown(model)
    return model


def tokenizer_of(model: SentenceTransformer) -> Tokenizer:
    return cast(StaticEmbedding, model[0]).tokenizer


def is_static(model: SentenceTransformer) -> bool:
    return isinstance(model[0], StaticEmbedding)


def table_of(model: SentenceTransformer) -> nn.Parameter:
    """Return the token vectors of a static model, (vocabulary, dim)."""
    return cast(nn.Parameter, cast(StaticEmbedding, model[0]).embedding.weight)


def mean_of_rows(table: Tensor, token_ids: Tensor, lengths: Tensor) -> Tensor:
    """Return the mean over each text's tokens of the rows of ``table``, (n, dim).

    Args:
        table: (vocabulary, dim).
        token_ids: the ids of all texts, concatenated, (tokens,).
        lengths: the number of tokens of each text, (n,). The mean of no rows is 0.
    """
    return cast(Tensor, _MeanOfRows.apply(table, token_ids, lengths))  # type: ignore[no-untyped-call]


class _MeanOfRows(torch.autograd.Function):
    """``F.embedding_bag`` with a faster backward pass.

    It sums the gradients of each token at once, where ``F.embedding_bag`` scatters them row by row.
    """

    @staticmethod
    def forward(ctx: Any, table: Tensor, token_ids: Tensor, lengths: Tensor) -> Tensor:
        ctx.save_for_backward(token_ids, lengths)
        ctx.vocabulary = len(table)
        starts = lengths.cumsum(0) - lengths  # (n,)
        return F.embedding_bag(token_ids, table.detach(), starts, mode="mean")

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        token_ids, lengths = ctx.saved_tensors  # (tokens,), (n,)
        of_text = grads[0] / lengths.clamp(min=1).unsqueeze(1)  # (n, dim)
        text = torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)
        counts = torch.bincount(token_ids, minlength=ctx.vocabulary)  # (vocabulary,)
        starts = counts.cumsum(0) - counts
        by_token = text[token_ids.argsort(stable=True)]  # (tokens,)
        return F.embedding_bag(by_token, of_text, starts, mode="sum"), None, None


def idf(texts: int, texts_with: Tensor) -> Tensor:
    """Return the inverse document frequency of each token, (tokens,), in fp64.

    It is log((c + texts) / (c + texts_with)) with c = 0.01 texts.

    Args:
        texts: the number of all texts.
        texts_with: for each token, the number of texts that contain it, (tokens,).
    """
    rare = _RARE * texts
    return torch.log((rare + texts) / (rare + texts_with.double()))


@torch.no_grad()
def initialize_by_idf(
    model: SentenceTransformer, texts_with: Tensor, texts: int, seed: int
) -> None:
    """Draw the vectors of a static model, with standard deviation 0.1 idf / mean idf.

    Args:
        model: a static model, whose unknown vector stays.
        texts_with: for each token, the number of texts that contain it, (vocabulary,).
        texts: the number of all texts.
        seed: the seed of the random numbers.
    """
    weights = idf(texts, texts_with).float()  # (vocabulary,)
    table = table_of(model)  # (vocabulary, dim)
    rows = torch.randn(table.shape, generator=torch.Generator().manual_seed(seed))
    rows *= (_SPREAD * weights / weights.mean()).unsqueeze(1)
    unknown = unknown_id(model)
    if unknown is not None:
        rows[unknown] = table[unknown]
    table.copy_(rows)


def document_id(model: SentenceTransformer) -> int | None:
    """Return the index of a static model's document row, or None if it has none."""
    return tokenizer_of(model).token_to_id(_DOCUMENT_TOKEN)


@torch.no_grad()
def set_document_row(model: SentenceTransformer, batches: Iterable[Mapping[str, Any]]) -> None:
    """Set the document row of a static model, if it has one, from its other rows.

    The first entry of the other rows becomes 0. Training keeps it, as the gradient of a cosine is 0
    where both vectors are 0.

    Args:
        model: a static model.
        batches: ``token_ids`` (tokens,) and ``lengths`` (n,) of training samples.
    """
    document = document_id(model)
    if document is None:
        return
    table = table_of(model)
    table[:, 0] = 0
    table[document] = 0
    squares = []
    for batch in batches:
        ids, lengths = (batch[name].to(table.device) for name in ("token_ids", "lengths"))
        sums = mean_of_rows(table, ids, lengths) * lengths.unsqueeze(1)  # (samples, dim)
        squares.append(sums.square().sum(1))
    table[document, 0] = (PIVOT * torch.cat(squares).mean()).sqrt()


def unknown_token(tokenizer: Tokenizer) -> str | None:
    """Return the unknown token of a tokenizer, or None if it has none."""
    if isinstance(tokenizer.model, models.Unigram):  # only its settings name the token
        unknown = json.loads(tokenizer.to_str())["model"]["unk_id"]
        return None if unknown is None else tokenizer.id_to_token(unknown)
    token: str | None = getattr(tokenizer.model, "unk_token", None)
    return token


def unknown_id(model: SentenceTransformer) -> int | None:
    """Return the index of the unknown token's row in a static model, or None if it has none."""
    tokenizer = tokenizer_of(model)
    token = unknown_token(tokenizer)
    return None if token is None else tokenizer.token_to_id(token)


@torch.no_grad()
def set_unknown(model: SentenceTransformer, value: float = UNKNOWN) -> None:
    """Set the entries of the unknown token's vector to ``value``, unless the vector was trained.

    In a model with a document row the first entry stays 0.
    """
    unknown = unknown_id(model)
    if unknown is not None and table_of(model)[unknown].abs().max() <= UNKNOWN:
        first = int(document_id(model) is not None)
        table_of(model)[unknown, first:] = value


def freeze_unknown(model: SentenceTransformer) -> None:
    """Keep the unknown token's vector from training, unless an earlier run trained it."""
    unknown = unknown_id(model)
    table = table_of(model)
    if unknown is None or table[unknown].abs().max() > UNKNOWN:
        return

    def without_unknown(gradient: Tensor) -> Tensor:
        gradient[unknown] = 0  # in place, as a copy of (vocabulary, dim) would slow each step down
        return gradient

    table.register_hook(without_unknown)  # type: ignore[no-untyped-call]


def embedded_tokenizer() -> Tokenizer:
    """Return the package's own tokenizer, of English word pieces."""
    return Tokenizer.from_file(str(EMBEDDED / EMBEDDED_MODEL / "tokenizer.json"))


def learn_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Learn a byte-pair encoding of the UTF-8 of texts, in any script.

    Spaces and control characters are dropped. Fewer pieces improve search in long documents and
    worsen it in short ones (docs/laboratory/own-text.md).
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    words = pre_tokenizers.Split(_WORD, "removed", invert=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, as_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=PIECES,
        special_tokens=["[PAD]"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(islice(texts, TEXTS_READ), trainer)
    return tokenizer


def without_special_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """Return a copy of a tokenizer that adds neither special tokens nor padding."""
    settings = json.loads(tokenizer.to_str())
    settings |= {"post_processor": None, "padding": None}
    return Tokenizer.from_str(json.dumps(settings))


def pretrained_tokenizer(tokenizer: Tokenizer) -> PreTrainedTokenizerBase:
    """Wrap a copy of a static model's tokenizer as a tokenizer of transformers."""
    copy = without_special_tokens(tokenizer)
    vocabulary = copy.get_vocab()
    unknown = unknown_token(copy)
    padding = unknown or min(vocabulary, key=vocabulary.__getitem__)
    if "[PAD]" in vocabulary:
        padding = "[PAD]"
    return PreTrainedTokenizerFast(
        tokenizer_object=copy,
        model_max_length=(tokenizer.truncation or {}).get("max_length", sys.maxsize),
        unk_token=unknown,
        pad_token=padding,
    )


def fast_tokenizer(model: SentenceTransformer) -> Tokenizer:
    """Return a model's tokenizer as a ``tokenizers.Tokenizer``, which static models need."""
    tokenizer = getattr(model.tokenizer, "backend_tokenizer", model.tokenizer)
    if not isinstance(tokenizer, Tokenizer):
        reason = f"{type(tokenizer).__name__} has no fast version, which a static model needs"
        raise ParameterError("vocabulary", f"{reason}; use embedded")
    return tokenizer
