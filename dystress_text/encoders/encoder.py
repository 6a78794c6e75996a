"""Sentence encoders: a transformer, a pooler and a head.

Poolers have SimCSE's names and meanings. The head is dense + tanh on the pooled vector; by default
only ``cls`` has one. It is dropped after training (SimCSE's ``--mlp_only_train``) or kept in the
model, as in the supervised recipe.
"""

from __future__ import annotations

import copy
import sys
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dystress_text.cli.extras import require
from dystress_text.cli.options import check_names
from dystress_text.cli.progress import progress_bar
from dystress_text.encoders.packed import MODEL_TYPES, Packing, packed_states
from dystress_text.encoders.pooling import (
    FIRST,
    POOLERS,
    averages_layers,
    mean_layer,
    pool,
    pool_tokens,
)
from dystress_text.encoders.saving import write_model
from dystress_text.errors import ParameterError
from dystress_text.files.whole import replaced_files

if TYPE_CHECKING:
    from peft import PeftModel

SENTENCES_A_BATCH = 64  # on a CPU
TOKENS_A_BATCH = 16_384  # on an accelerator, padding included
_AT_ONCE = 4_096  # sentences; the tokenizer's results take many times the memory of the ids


class SentenceEncoder(nn.Module):
    """A transformer with pooling and, optionally, a head.

    Args:
        transformer: any encoder of transformers whose output has ``last_hidden_state`` and
            ``hidden_states``.
        pooler_type: one of :data:`POOLERS`.
        mlp_head: train a head, dense + tanh; None follows SimCSE's rule, with ``cls`` only.
        keep_head: use the head in evaluation too, and save it with the model.
        normalize: :meth:`encode`, and the saved model, scale the vectors to length 1; training does
            not need it.
        layers: weights, (layers + 1,), of a mean of the embedding layer and all others, which is
            pooled in place of the last layer; sentence-transformers trains them. They stay as they
            are here.
    """

    def __init__(
        self,
        transformer: PreTrainedModel,
        pooler_type: str = "cls",
        mlp_head: bool | None = None,
        keep_head: bool = False,
        normalize: bool = False,
        layers: Tensor | None = None,
    ) -> None:
        super().__init__()
        check_names("pooler_type", [pooler_type], POOLERS)
        if transformer.config.to_dict().get(
            "use_cache"
        ):  # of a decoder, which generates nothing here
            transformer.config.use_cache = False
        self.transformer = transformer
        self.pooler_type = pooler_type
        unused = getattr(transformer, "pooler", None)  # BERT's pooler is saved, but not used here
        if isinstance(unused, nn.Module):
            unused.requires_grad_(False)
        self.lm_head: nn.Module | None = None  # for --do_mlm
        self.head: nn.Linear | None = None  # (dim, dim), tanh follows
        if mlp_head or (mlp_head is None and pooler_type == "cls"):
            dim = transformer.config.hidden_size
            self.head = nn.Linear(dim, dim)
            nn.init.normal_(
                self.head.weight, std=getattr(transformer.config, "initializer_range", 0.02)
            )
            nn.init.zeros_(self.head.bias)
        self.keep_head = keep_head and self.head is not None
        self.normalize, self.layers = normalize, layers
        self._adapted: tuple[PeftModel, ...] = ()  # a tuple, since it must not be a submodule

    def start_head(self, dense: nn.Linear) -> None:
        """Give the head the weights of another dense layer, (dim, dim)."""
        assert self.head is not None
        self.head.load_state_dict(dense.state_dict())

    def add_lora(self, rank: int) -> None:
        """Put low-rank adapters (peft), scaled by 2, into the layers of peft's choice, and freeze
        all other weights.

        :meth:`save` merges them.
        """
        require("lora", "lora")
        from peft import LoraConfig, get_peft_model

        try:
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore"
                )  # of its own calls to transformers, and of transposed weights
                self._adapted = (
                    get_peft_model(self.transformer, LoraConfig(r=rank, lora_alpha=2 * rank)),
                )
        except ValueError as error:
            kind = self.transformer.config.model_type
            raise ParameterError(
                "lora", f"peft has no choice of layers for encoders of type {kind!r}"
            ) from error

    @property
    def can_pack(self) -> bool:
        """Whether :meth:`forward` can skip padding."""
        config = self.transformer.config
        absolute = (
            getattr(config, "position_embedding_type", "absolute") == "absolute"
        )  # of transformers 4
        return (
            config.model_type in MODEL_TYPES
            and not config.is_decoder
            and absolute
            and self.layers is None
        )

    @property
    def apart(self) -> bool:
        """Whether more than pooling follows the last layer: the saved model is then for
        sentence-transformers alone.
        """
        return self.keep_head or self.layers is not None or averages_layers(self.pooler_type)

    def forward(
        self,
        token_ids: Tensor,
        lengths: Tensor,
        longest: int | None = None,
        packed: bool = False,
        masked: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Sentence vectors (n, dim) of token ids.

        A head that is not kept applies only in training.

        Args:
            token_ids: (tokens,), sentence after sentence.
            lengths: (n,) of the sentences, in tokens.
            longest: the greatest length; None reads it from the device.
            packed: compute nothing for padding (see :mod:`dystress_text.encoders.packed`); the
                vectors are the same.
            masked: indices of hidden tokens among all tokens, and the true tokens, both (m,). With
                it the result is the sum of the masked-language-model losses, (1,).
        """
        packing = Packing.of_lengths(lengths, longest or int(lengths.max()), len(token_ids))
        if masked is not None:
            return self._masked_lm_loss(token_ids, packing, packed, *masked)
        if not packed:
            return self.forward_padded(*self._padded(token_ids, packing))
        first = self.pooler_type in FIRST
        states = packed_states(
            self.transformer, token_ids, packing, first_only=first
        )  # (tokens, dim) each
        if first:
            return self.apply_head(states[-1])
        mean = packing.pad(mean_layer(states, self.pooler_type))  # (n, length, dim)
        return self.apply_head(pool_tokens(mean, packing.mask, self.pooler_type))

    def forward_padded(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Padded token ids and mask, both (n, length), to sentence vectors (n, dim), without
        packing.
        """
        states = self._hidden_states(input_ids, attention_mask)
        return self.apply_head(pool(states, attention_mask, self.pooler_type))

    def token_states(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """States of tokens (n, length, dim) that the pooler takes its token from, or averages."""
        return mean_layer(self._hidden_states(input_ids, attention_mask), self.pooler_type)

    def apply_head(self, vectors: Tensor) -> Tensor:
        """The head on pooled vectors (n, dim), where the encoder has one."""
        if self.head is not None and (self.training or self.keep_head):
            vectors = self.head(vectors).tanh()
        return vectors

    def _masked_lm_loss(
        self, token_ids: Tensor, packing: Packing, packed: bool, masked: Tensor, tokens: Tensor
    ) -> Tensor:
        assert self.lm_head is not None
        if packed:
            states = packed_states(self.transformer, token_ids, packing)[-1]  # (tokens, dim)
        else:
            states = packing.pack(self._hidden_states(*self._padded(token_ids, packing))[-1])
        logits = self.lm_head(states[masked])  # (m, vocabulary)
        return F.cross_entropy(logits.float(), tokens, reduction="sum").unsqueeze(0)

    def _padded(
        self, token_ids: Tensor, packing: Packing, padding: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Ids and mask as transformers takes them, both (n, length)."""
        if padding is None:
            padding = self.transformer.config.pad_token_id or 0
        return packing.pad(token_ids, padding), packing.mask.long()

    def _hidden_states(
        self, input_ids: Tensor, attention_mask: Tensor, all_layers: bool = False
    ) -> Sequence[Tensor]:
        several = all_layers or self.layers is not None or averages_layers(self.pooler_type)
        output = self.transformer(
            input_ids, attention_mask=attention_mask, output_hidden_states=several
        )
        states: Sequence[Tensor] = output.hidden_states if several else (output.last_hidden_state,)
        if self.layers is None or all_layers:
            return states
        weights = self.layers.to(states[0])
        return (torch.einsum("l,lntd->ntd", weights / weights.sum(), torch.stack(tuple(states))),)

    def encode(
        self,
        sentences: Sequence[str],
        tokenizer: PreTrainedTokenizerBase,
        batch_size: int = SENTENCES_A_BATCH,
        progress: bool = False,
        dtype: torch.dtype = torch.float32,
        raw: bool = False,
    ) -> Tensor:
        """Vectors of sentences, (n, dim) in fp32 on the CPU.

        They are computed without dropout, with a kept head, and cut at the encoder's length limit,
        ``batch_size`` sentences at a time in the order of their length. Any other ``dtype`` than
        fp32 uses autocast. ``raw`` leaves out the normalisation, as SentEval's transfer tasks need.
        """
        tokenized = TokenizedOnce(tokenizer, length_limit(tokenizer, self.transformer))
        batches = progress_bar(
            by_sentences(sentences, batch_size), progress, desc="encoding", unit=" batches"
        )
        vectors = self._encode(sentences, tokenized, batches, dtype)[self.pooler_type].cpu()
        return F.normalize(vectors, dim=1) if self.normalize and not raw else vectors

    def encode_again(self, sentences: Sequence[str], tokenized: TokenizedOnce) -> Tensor:
        """What :meth:`encode` gives ``raw``, (n, dim), on the encoder's device; sentences may come
        again and again.

        On a CPU the vectors are those of :meth:`encode` bit for bit. On an accelerator batches have
        :data:`TOKENS_A_BATCH` tokens, and nothing is copied from the device.
        """
        if next(self.parameters()).device.type == "cpu":
            batches = by_sentences(sentences, SENTENCES_A_BATCH)
        else:
            batches = by_tokens([len(ids) for ids in tokenized(sentences)])
        return self._encode(sentences, tokenized, batches, torch.float32)[self.pooler_type]

    def encode_by_pooler(
        self, sentences: Sequence[str], tokenizer: PreTrainedTokenizerBase, poolers: Sequence[str]
    ) -> dict[str, Tensor]:
        """What :meth:`encode` would give with each of several poolers, without head and
        normalisation, in one pass.
        """
        tokenized = TokenizedOnce(tokenizer, length_limit(tokenizer, self.transformer))
        vectors = self._encode(
            sentences, tokenized, by_sentences(sentences, SENTENCES_A_BATCH), torch.float32, poolers
        )
        return {name: of_pooler.cpu() for name, of_pooler in vectors.items()}

    @torch.no_grad()
    def _encode(
        self,
        sentences: Sequence[str],
        tokenized: TokenizedOnce,
        batches: Iterable[Sequence[int]],
        dtype: torch.dtype,
        poolers: Sequence[str] | None = None,
    ) -> dict[str, Tensor]:
        """Vectors (n, dim) by pooler on the encoder's device, from the places of the sentences of
        each batch.
        """
        device, was_training = next(self.parameters()).device, self.training
        vectors: dict[str, list[Tensor]] = {name: [] for name in poolers or (self.pooler_type,)}
        places: list[int] = []
        self.eval()
        for batch in batches:
            ids = tokenized([sentences[i] for i in batch])
            lengths = [len(of_sentence) for of_sentence in ids]
            token_ids, longest = (
                torch.cat(ids).to(device),
                max(1, *lengths),
            )  # no encoder reads (n, 0) tokens
            half = torch.autocast(device.type, dtype, enabled=dtype != torch.float32)
            padding = tokenized.tokenizer.pad_token_id
            pooled = self._pooled(
                token_ids, torch.tensor(lengths).to(device), longest, padding, half, poolers
            )
            for of_pooler, found in zip(vectors.values(), pooled, strict=True):
                of_pooler.append(found)
            places.extend(batch)
        self.train(was_training)
        order = torch.tensor(places).argsort().to(device)
        return {name: torch.cat(of_pooler)[order] for name, of_pooler in vectors.items()}

    def _pooled(
        self,
        token_ids: Tensor,
        lengths: Tensor,
        longest: int,
        padding: int | None,
        half: torch.autocast,
        poolers: Sequence[str] | None,
    ) -> list[Tensor]:
        """Vectors (n, dim) of ids (tokens,), by the encoder's pooler and head, or by each of the
        poolers alone.
        """
        packing = Packing.of_lengths(lengths, longest, len(token_ids))
        padded, mask = self._padded(token_ids, packing, padding)
        with half:
            states = self._hidden_states(padded, mask, all_layers=poolers is not None)
        if poolers is None:
            return [self.apply_head(pool(states, mask, self.pooler_type).float())]
        return [pool(states, mask, name).float() for name in poolers]

    def save(self, folder: str | Path, tokenizer: PreTrainedTokenizerBase) -> None:
        """Write a sentence-transformers model whose vectors are those of :meth:`encode`.

        A head that is not kept is not saved, and the length limit is that of the encoder. Adapters
        are merged. Old files are replaced when all new files are complete.
        """
        plain: Any = (
            copy.deepcopy(self._adapted[0]).merge_and_unload()
            if self._adapted
            else self.transformer
        )
        limited = copy.deepcopy(tokenizer)
        limited.model_max_length = length_limit(tokenizer, self.transformer)
        limited.padding_side = "right"
        types = tokenizer("One sentence.").get("token_type_ids")
        if types and (
            any(types) or not getattr(plain.config, "type_vocab_size", 0)
        ):  # GPT-2 takes them for words
            names = [name for name in limited.model_input_names if name != "token_type_ids"]
            limited.model_input_names = limited.init_kwargs["model_input_names"] = names
        dense = self.head if self.keep_head else None
        with replaced_files(folder) as complete:
            write_model(
                complete, plain, limited, self.pooler_type, dense, self.normalize, self.layers
            )
        if self.apart:  # of a model that was here before
            (Path(folder) / "config.json").unlink(missing_ok=True)


class TokenizedOnce:
    """A tokenizer that keeps the ids of each sentence, at most ``limit``: evaluations ask for the
    same ones again.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, limit: int) -> None:
        self.tokenizer = tokenizer
        self.limit = limit
        self._ids: dict[str, Tensor] = {}

    def __call__(self, sentences: Sequence[str]) -> list[Tensor]:
        """The ids of each sentence, (tokens,)."""
        new = list(dict.fromkeys(sentence for sentence in sentences if sentence not in self._ids))
        for start in range(0, len(new), _AT_ONCE):
            part = new[start : start + _AT_ONCE]
            ids = self.tokenizer(part, truncation=True, max_length=self.limit)["input_ids"]
            self._ids.update(zip(part, map(torch.LongTensor, ids), strict=True))
        return [self._ids[sentence] for sentence in sentences]


def by_sentences(sentences: Sequence[str], size: int) -> list[list[int]]:
    """Places of sentences in batches of ``size``, in the order of their length in characters."""
    order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
    return [order[start : start + size] for start in range(0, len(order), size)]


def by_tokens(lengths: Sequence[int], most: int = TOKENS_A_BATCH) -> list[list[int]]:
    """Places of sentences in batches of at most ``most`` positions, padding included, or of one
    sentence.
    """
    batches: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batches and (len(batches[-1]) + 1) * lengths[i] <= most:  # the longest one so far
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches


def length_limit(tokenizer: PreTrainedTokenizerBase, transformer: PreTrainedModel) -> int:
    """The most tokens of a sentence, special tokens included: the smaller limit of tokenizer and
    position table.
    """
    return min(position_limit(transformer), _limit(tokenizer.model_max_length))


def position_limit(transformer: PreTrainedModel) -> int:
    """The number of tokens for which an encoder has positions; ``sys.maxsize`` without a table of
    positions.

    RoBERTa and similar encoders number positions from the padding index + 1; the rows before are
    not used.
    """
    limit = _limit(getattr(transformer.config, "max_position_embeddings", None))
    for name, module in transformer.named_modules():
        if (
            name.endswith("position_embeddings")
            and isinstance(module, nn.Embedding)
            and module.padding_idx is not None
        ):
            limit -= module.padding_idx + 1
    return limit


def _limit(given: float | None) -> int:
    """A limit as a number of tokens; ``sys.maxsize`` for none, which files write as null, 0, -1 or
    1e30.
    """
    return int(given) if given is not None and 0 < given < sys.maxsize else sys.maxsize


def check_views(model: SentenceEncoder, tokenizer: PreTrainedTokenizerBase) -> None:
    """Check that dropout gives two different views of a sentence; the random state is restored.

    Training would learn nothing from equal views.
    """
    device = next(model.parameters()).device
    ids = torch.tensor(
        tokenizer("Two views of one sentence.")["input_ids"], device=device
    )  # (tokens,)
    was_training, lengths = model.training, torch.tensor([len(ids)] * 2, device=device)
    with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
        first, second = model.train()(ids.repeat(2), lengths)
    model.train(was_training)
    if torch.equal(first, second):
        reason = "this encoder has none, so two views of a sentence are equal; give a rate, or views crop"
        raise ParameterError("dropout", reason)
