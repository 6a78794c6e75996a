"""Static models: ``StaticEmbedding`` of sentence-transformers, the mean of token vectors.

A new model starts from random vectors, scaled by the inverse document frequency of their tokens,
which is a fair model even untrained.

A document row changes the norm of documents. A plain cosine divides a document's sum of rows x by
|x|; with this row it is divided by sqrt(|x|^2 + p m^2), where m^2 is the mean of |x|^2 over the
training samples. The row belongs to a token that the prompt for documents prepends. It is (sqrt(p)
m, 0, ..., 0), and the first number of all other rows is 0, so ``encode`` without the prompt gives a
plain cosine.
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

STATIC = "static"  # in place of a model's name: a new static model
PIECES = 4096  # most word pieces of a vocabulary that is learned
TEXTS_READ = 200_000  # most texts that a vocabulary is learned from
# a word of letters, marks, digits and joiners, split after 16 characters (for scripts without
# spaces), or one other visible character
_WORD = Regex(r"[\p{L}\p{M}\p{N}\u200c\u200d]{1,16}|[^\s\p{L}\p{M}\p{N}\p{Cc}\p{Cf}]")
# Each entry of the unknown token's vector. With 0, a text of only unknown tokens would have length
# 0, and sentence-transformers divides by the length (in Normalize and in each loss) with a slope of
# 1e12: one such text in a batch stops training. Known vectors are 5,000 times as large, so a text
# of both changes by 1e-5, also for readers such as model2vec that leave unknown tokens out.
UNKNOWN = 2e-5
_SPREAD = 0.1  # standard deviation of a new row at the mean idf
# The token of the document row: between invisible separators, which no keyboard writes, so that a
# text with "[DOC]" does not have it.
DOCUMENT = "\u2063[DOC]\u2063"
PIVOT = 0.25  # p of the document row
_RARE = 0.01  # share of the texts; a token in fewer weighs little more, since other texts come


def new_static(tokenizer: Tokenizer, dim: int, normalize: bool) -> SentenceTransformer:
    """Return a static model with a document row; its vectors are not initialised.

    Args:
        tokenizer: the tokenizer; its special tokens are left out.
        dim: the dimension of the vectors.
        normalize: whether embeddings have length 1.
    """
    tokenizer = without_special_tokens(tokenizer)
    tokenizer.no_truncation()  # which a call may have left
    tokenizer.add_special_tokens([AddedToken(DOCUMENT, normalized=False)])
    rows = 1 + max(tokenizer.get_vocab().values())
    embedding = StaticEmbedding(tokenizer, embedding_weights=torch.zeros(rows, dim))
    modules: list[nn.Module] = [embedding]
    if normalize:
        modules.append(Normalize())
    prompts = {"query": "", "document": f"{DOCUMENT} "}
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
    """Return the mean of the table's rows over the tokens of each text, (n, dim).

    Args:
        table: (vocabulary, dim).
        token_ids: (tokens,), text after text.
        lengths: the number of tokens of each text, (n,). The mean over no tokens is 0.
    """
    return cast(Tensor, _MeanOfRows.apply(table, token_ids, lengths))  # type: ignore[no-untyped-call]


class _MeanOfRows(torch.autograd.Function):
    """The mean of rows, whose backward is faster than that of ``F.embedding_bag``.

    The backward sums the gradients of each token at once; ``embedding_bag`` scatters them row by
    row.
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

    It is log((c + texts) / (c + texts with the token)), where c is a hundredth of the texts.

    Args:
        texts: the number of all texts.
        texts_with: the number of texts that contain each token, (tokens,).
    """
    rare = _RARE * texts
    return torch.log((rare + texts) / (rare + texts_with.double()))


@torch.no_grad()
def initialize_by_idf(
    model: SentenceTransformer, texts_with: Tensor, texts: int, seed: int
) -> None:
    """Draw the vectors of a static model, with standard deviation 0.1 times idf / mean idf.

    Args:
        model: a static model.
        texts_with: the number of texts that contain each token, (vocabulary,).
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
    """Return the index of a static model's document row; None without one."""
    return tokenizer_of(model).token_to_id(DOCUMENT)


@torch.no_grad()
def set_document_row(model: SentenceTransformer, batches: Iterable[Mapping[str, Any]]) -> None:
    """Set the document row of a static model, if it has one, from its other rows.

    The first number of the other rows is set to 0. It stays 0 in training, as the gradient of a
    cosine is 0 where both vectors are 0.

    Args:
        model: a static model.
        batches: batches of whole samples, as :meth:`dystress_text.finetuning.corpus.Corpus.batch`
            returns them.
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
    """Return the unknown token of a tokenizer; None without one."""
    if isinstance(tokenizer.model, models.Unigram):  # only its settings have the id
        unknown = json.loads(tokenizer.to_str())["model"]["unk_id"]
        return None if unknown is None else tokenizer.id_to_token(unknown)
    token: str | None = getattr(tokenizer.model, "unk_token", None)
    return token


def unknown_id(model: SentenceTransformer) -> int | None:
    """Return the index of the unknown token's row in a static model; None without one."""
    tokenizer = tokenizer_of(model)
    token = unknown_token(tokenizer)
    return None if token is None else tokenizer.token_to_id(token)


@torch.no_grad()
def set_unknown(model: SentenceTransformer, value: float = UNKNOWN) -> None:
    """Set all entries of the unknown token's vector to ``value``, unless the vector was trained.

    In a table with a document row the first entry stays 0.
    """
    unknown = unknown_id(model)
    if unknown is not None and table_of(model)[unknown].abs().max() <= UNKNOWN:
        first = int(document_id(model) is not None)
        table_of(model)[unknown, first:] = value


def freeze_unknown(model: SentenceTransformer) -> None:
    """Exclude the unknown token's vector from training, unless an earlier run trained it."""
    unknown = unknown_id(model)
    table = table_of(model)
    if unknown is None or table[unknown].abs().max() > UNKNOWN:
        return

    def without_unknown(gradient: Tensor) -> Tensor:
        gradient[unknown] = 0  # in place: a copy of (vocabulary, dim) would cost each step
        return gradient

    table.register_hook(without_unknown)  # type: ignore[no-untyped-call]


def embedded_tokenizer() -> Tokenizer:
    """Return the tokenizer with English word pieces that comes with the package."""
    return Tokenizer.from_file(str(EMBEDDED / EMBEDDED_MODEL / "tokenizer.json"))


def learn_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """Learn word pieces for texts in any script, by byte-pair encoding of UTF-8.

    Spaces and control characters get no pieces. With fewer pieces, search in long documents gets
    better and search in short ones worse (docs/laboratory/own-text.md).
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
    """Return a copy of a tokenizer without special tokens and padding."""
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
    """Return a model's tokenizer as one of the package tokenizers, as static models need it."""
    tokenizer = getattr(model.tokenizer, "backend_tokenizer", model.tokenizer)
    if not isinstance(tokenizer, Tokenizer):
        raise ParameterError(
            "vocabulary", f"{type(tokenizer).__name__} has no fast form; embedded needs none"
        )
    return tokenizer
