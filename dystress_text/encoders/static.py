"""A static encoder: a table of word vectors, whose mean over a text's tokens is the text's vector.

Saved it is sentence-transformers' ``StaticEmbedding``. A new table starts as random numbers that
weigh a token by its inverse document frequency, which is a fair encoder by itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers import (
    PretrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.modeling_outputs import BaseModelOutput

from dystress_text.encoders.encoder import SentenceEncoder
from dystress_text.encoders.saving import PROMPTS, SETTINGS, quiet, reword
from dystress_text.errors import ParameterError
from dystress_text.files.places import EMBEDDED, EMBEDDED_MODEL
from dystress_text.files.whole import replaced_files, write_json

NEW = "static"  # the name of a new table in place of a model's
PIECES, READ = 4096, 200_000  # of a vocabulary that is learned: at most so many, from so many texts
# a word with its marks and joiners, in parts where a script has no spaces, or one other sign
_WORD = Regex(r"[\p{L}\p{M}\p{N}\u200c\u200d]{1,16}|[^\s\p{L}\p{M}\p{N}\p{Cc}\p{Cf}]")
# Each number of the unknown token's row. At 0 a text of unknown tokens alone would have no direction,
# and where sentence-transformers divides by its length (in Normalize, and in each loss) the slope is
# 1e12: one such text in a batch stops training. Normalize being its own, only the row can mend that.
# A known row's numbers are 5,000 times as large: a text of both changes by 1e-5, also for readers
# such as model2vec, which leave the unknown token out; one without it does not change at all.
UNKNOWN = 2e-5
_SPREAD = 0.1  # standard deviation of a new table's rows at the mean idf


class StaticConfig(PretrainedConfig):
    """Of a :class:`StaticTable`."""

    model_type = "static_table"

    def __init__(
        self,
        vocab_size: int = 1,
        hidden_size: int = 512,
        unk_token_id: int | None = None,
        **more: Any,
    ) -> None:
        super().__init__(**more)
        self.vocab_size, self.hidden_size, self.num_hidden_layers = vocab_size, hidden_size, 0
        self.unk_token_id = unk_token_id


class StaticTable(PreTrainedModel):
    """Word vectors as a model of transformers: the states of its only layer are the tokens' rows.

    The row of the unknown token, if the configuration names it, stays as it is, next to nothing:
    what is not known has no meaning.
    """

    config_class = StaticConfig

    def __init__(self, config: StaticConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        if config.unk_token_id is not None:
            self.embedding.weight.register_hook(self._without_unknown)  # type: ignore[no-untyped-call]
            self.set_unknown(UNKNOWN)

    @torch.no_grad()
    def set_unknown(self, value: float) -> None:
        """Set each number of the unknown token's row, if there is one."""
        if self.config.unk_token_id is not None:
            self.embedding.weight[self.config.unk_token_id] = value

    def _without_unknown(self, gradient: Tensor) -> Tensor:
        gradient[self.config.unk_token_id] = (
            0  # in place: a copy of (vocabulary, dim) numbers would cost each step
        )
        return gradient

    def get_input_embeddings(self) -> nn.Module:
        return self.embedding

    def forward(self, input_ids: Tensor, **_: Any) -> BaseModelOutput:
        """States (n, length, dim) of token ids (n, length)."""
        states = self.embedding(input_ids)
        return BaseModelOutput(last_hidden_state=states, hidden_states=(states,))

    @torch.no_grad()
    def start(self, texts_with: Tensor, texts: int, seed: int) -> None:
        """Begin as idf x random: N(0, 0.1) x idf / mean idf, idf = log((c + texts) / (c + texts
        with the token)).

        c is a hundredth of the texts: what is in fewer texts weighs little more, in other texts
        too.

        Args:
            texts_with: the number of texts in which each token is, (vocabulary,).
            texts: the number of all.
            seed: of the random numbers.
        """
        few = 0.01 * texts
        idf = torch.log((few + texts) / (few + texts_with.double())).float()  # (vocabulary,)
        rows = torch.randn(
            self.embedding.weight.shape, generator=torch.Generator().manual_seed(seed)
        )
        rows *= (_SPREAD * idf / idf.mean()).unsqueeze(1)
        if (unknown := self.config.unk_token_id) is not None:
            rows[unknown] = self.embedding.weight[unknown]
        self.embedding.weight.copy_(rows)


class StaticEncoder(SentenceEncoder):
    """The mean of a table's rows; all else is as for a transformer with the pooler ``avg``."""

    transformer: StaticTable
    can_pack = True

    def __init__(self, table: StaticTable, normalize: bool = False) -> None:
        super().__init__(table, "avg", mlp_head=False, normalize=normalize)

    def forward(self, token_ids: Tensor, lengths: Tensor, *_: Any, **__: Any) -> Tensor:
        """Vectors (n, dim) of texts: ids (tokens,), text after text, and lengths (n,); 0 without a
        token.

        Nothing is padded, so what else a transformer needs does not count.
        """
        first = lengths.cumsum(0) - lengths  # (n,), where each text begins
        vectors = F.embedding_bag(token_ids, self.transformer.embedding.weight, first, mode="mean")
        return self.apply_head(vectors)

    def _pooled(self, token_ids: Tensor, lengths: Tensor, *_: Any) -> list[Tensor]:
        return [self(token_ids, lengths)]

    @quiet()
    def save(self, folder: str | Path, tokenizer: PreTrainedTokenizerBase) -> None:
        from sentence_transformers import SentenceTransformer  # slow to import

        kinds: Any = import_module("sentence_transformers.models")
        self.transformer.set_unknown(UNKNOWN)  # weight decay makes it smaller
        weights = self.transformer.embedding.weight.detach().cpu().clone()
        modules: list[nn.Module] = [
            kinds.StaticEmbedding(words_of(tokenizer), embedding_weights=weights)
        ]
        modules += [kinds.Normalize()] * self.normalize
        kept = getattr(self.transformer.config, PROMPTS, {})
        with replaced_files(folder) as complete:
            SentenceTransformer(modules=modules, device="cpu", **kept).save(
                str(complete), create_model_card=False
            )
            reword(complete, "mean")
            settings = complete / SETTINGS
            if self.normalize:  # model2vec reads this in place of Normalize
                content = json.loads(settings.read_text(encoding="utf-8"))
                write_json(settings, content | {"normalize": True})


def new_static(
    dim: int, texts: Iterable[str] | None = None, pieces: Tokenizer | None = None
) -> tuple[StaticTable, PreTrainedTokenizerBase]:
    """A table, (vocabulary, dim), whose rows are not yet started, and its tokenizer: the embedded
    word pieces, those of another tokenizer, or, with ``texts``, pieces learned from them.
    """
    embedded = EMBEDDED / EMBEDDED_MODEL / "tokenizer.json"
    pieces = pieces or (Tokenizer.from_file(str(embedded)) if texts is None else _learned(texts))
    tokenizer = tokenizer_of(pieces)
    rows = 1 + max(tokenizer.get_vocab().values())
    return StaticTable(StaticConfig(rows, dim, tokenizer.unk_token_id)), tokenizer


def _learned(texts: Iterable[str]) -> Tokenizer:
    """Pieces of texts in any script, byte-pair encoding over UTF-8: all characters but spaces and
    control signs count.

    With fewer pieces long documents gain and short ones lose (docs/laboratory/own-text.md).
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(_WORD, "removed", invert=True), as_bytes]
    )
    tokenizer.decoder = decoders.ByteLevel()
    bytes_alone = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=PIECES,
        special_tokens=["[PAD]"],
        initial_alphabet=bytes_alone,
        show_progress=False,
    )
    tokenizer.train_from_iterator(islice(texts, READ), trainer)
    return tokenizer


def tokenizer_of(backend: Tokenizer) -> PreTrainedTokenizerBase:
    """A tokenizer of transformers without special tokens around a text, as ``StaticEmbedding``
    reads.
    """
    written = json.loads(backend.to_str())
    written |= {"post_processor": None, "truncation": None, "padding": None}
    names = {"unk_token": written["model"].get("unk_token"), "pad_token": "[PAD]"}
    known = backend.get_vocab()
    plain = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(written)),
        **{name: token for name, token in names.items() if token in known},
    )
    if plain.pad_token is None:
        plain.pad_token = plain.unk_token or min(known, key=known.__getitem__)
    return plain


def words_of(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    """The same for a saved table: a copy without the limit of the last call."""
    backend: Tokenizer = tokenizer_of(tokenizer.backend_tokenizer).backend_tokenizer
    return backend


def table_of(weight: Tensor, unknown: int | None = None) -> StaticTable:
    """A table of trained rows, (vocabulary, dim), which are copied; the unknown token's stays next
    to nothing if it is.
    """
    has_none = unknown is not None and bool(weight[unknown].abs().max() <= UNKNOWN)
    rows, dim = weight.shape
    table = StaticTable(StaticConfig(rows, dim, unknown if has_none else None))
    table.embedding.weight.data = weight.detach().float().clone()
    table.set_unknown(UNKNOWN)
    return table


def refuse(name: str, **options: object) -> None:
    """Refuse options that a table does not have."""
    for option, value in options.items():
        if value:
            raise ParameterError(
                option, f"a static encoder such as {name!r} has none; leave the option out"
            )
