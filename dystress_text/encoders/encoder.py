"""Sentence encoders: a transformer, a pooler and a head.

Poolers have SimCSE's names and meanings. The head is dense + tanh on the pooled vector; by default only ``cls`` has
one. It is dropped after training (SimCSE's ``--mlp_only_train``) or kept in the model, as in the supervised recipe.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from dystress_text.cli.progress import progress_bar
from dystress_text.encoders.encoding import SENTENCES_A_BATCH, TokenizedOnce, by_sentences, by_tokens
from dystress_text.encoders.lora import merged, save_adapter
from dystress_text.encoders.native_layout import write_native
from dystress_text.encoders.packed import Packing, can_pack, packed_states
from dystress_text.encoders.pooling import AVERAGED, POOLERS, mean_layer, mean_token, pool
from dystress_text.encoders.pretrained import Pretrained, load_pretrained, pooler_dense, readable
from dystress_text.encoders.prompts import Prompts, prompt_length
from dystress_text.errors import UserError
from dystress_text.files.whole import replaced_files
from dystress_text.training.run_folder import ADAPTER

if TYPE_CHECKING:
    from peft import PeftModel


class SentenceEncoder(nn.Module):
    """A transformer with pooling and, optionally, a head.

    Args:
        transformer: any encoder of transformers whose output has ``last_hidden_state`` and ``hidden_states``.
        pooler_type: one of :data:`POOLERS`.
        mlp_head: train a head, dense + tanh; None follows SimCSE's rule, with ``cls`` only.
        keep_head: use the head in evaluation too, and save it with the model.
        normalize: scale the vectors to length 1.

    Raises:
        ValueError: the pooler is unknown.
    """

    def __init__(
        self,
        transformer: PreTrainedModel,
        pooler_type: str = "cls",
        mlp_head: bool | None = None,
        keep_head: bool = False,
        normalize: bool = False,
    ) -> None:
        super().__init__()
        if pooler_type not in POOLERS:
            raise ValueError(f"unknown pooler {pooler_type!r}; known are {', '.join(POOLERS)}")
        self.transformer = transformer
        self._no_split_modules = transformer._no_split_modules  # FSDP shards these layers one by one
        self.pooler_type = pooler_type
        unused = getattr(transformer, "pooler", None)  # BERT's pooler is saved, but not used here
        if isinstance(unused, nn.Module):
            unused.requires_grad_(False)
        self.lm_head: nn.Module | None = None  # for --do_mlm
        self.head: nn.Sequential | None = None
        if mlp_head or (mlp_head is None and pooler_type == "cls"):
            dim = transformer.config.hidden_size
            dense = nn.Linear(dim, dim)
            nn.init.normal_(dense.weight, std=getattr(transformer.config, "initializer_range", 0.02))
            nn.init.zeros_(dense.bias)
            self.head = nn.Sequential(dense, nn.Tanh())
        self.keep_head = keep_head and self.head is not None
        self.normalize = normalize
        self.prompts = Prompts()
        self._left_out = 0  # tokens of the prompt that are not pooled
        self._adapted: tuple[PeftModel, ...] = ()  # a tuple, since it must not be a submodule
        self._keep_adapter = False

    @property
    def head_dense(self) -> nn.Linear:
        """The head's dense layer, (dim, dim).

        Raises:
            ValueError: the encoder has no head.
        """
        if self.head is None:
            raise ValueError("this encoder has no head")
        dense = self.head[0]
        assert isinstance(dense, nn.Linear)
        return dense

    @torch.no_grad()
    def start_head(self, dense: nn.Linear) -> None:
        """Give the head the weights of another dense layer, (dim, dim)."""
        self.head_dense.weight.copy_(dense.weight)
        self.head_dense.bias.copy_(dense.bias)

    def use_prompts(self, prompts: Prompts, tokenizer: PreTrainedTokenizerBase) -> None:
        """Put the default prompt in front of sentences in :meth:`encode`; :meth:`save` keeps all prompts.

        :meth:`forward` takes token ids that begin with it.
        """
        self.prompts = prompts
        self._left_out = 0 if prompts.pooled or not prompts.text else prompt_length(tokenizer, prompts.text)

    def _pooled(self, mask: Tensor) -> Tensor:
        """A mask (n, length), 1 at the tokens that are pooled."""
        return (
            mask if self._left_out == 0 else mask * (torch.arange(mask.shape[1], device=mask.device) >= self._left_out)
        )

    def adapt(self, adapted: PeftModel, keep: bool = False) -> None:
        """Tell the encoder that its transformer has adapters (:func:`dystress_text.encoders.lora.add_lora`).

        :meth:`save` merges them, and with ``keep`` writes them to a folder of their own as well.
        """
        self._adapted = (adapted,)
        self._keep_adapter = keep

    @property
    def can_pack(self) -> bool:
        """Whether :meth:`forward` can skip padding."""
        return can_pack(self.transformer)

    def forward(
        self,
        token_ids: Tensor,
        attention_mask: Tensor,
        packed: bool = False,
        masked: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Sentence vectors (n, dim) of token ids.

        A head that is not kept applies only in training.

        Args:
            token_ids: (tokens,), row after row.
            attention_mask: (n, length), 1 where a row has a token, from its first position on.
            packed: compute nothing for padding (see :mod:`dystress_text.encoders.packed`); the vectors are the same.
            masked: indices of hidden tokens among all tokens, and the true tokens, both (m,). With it the result is the
                sum of the masked-language-model losses, (1,).
        """
        packing = Packing.of_mask(attention_mask, len(token_ids))
        if masked is not None:
            return self._masked_lm_loss(token_ids, packing, packed, *masked)
        if not packed:
            ids = packing.padded_ids(token_ids, self.transformer.config.pad_token_id or 0)
            return self.forward_padded(ids, attention_mask)
        averaged = self.pooler_type in AVERAGED
        states = packed_states(self.transformer, token_ids, packing, first_only=not averaged)
        vectors = states[-1]
        if averaged:
            vectors = mean_token(packing.pad(mean_layer(states, self.pooler_type)), self._pooled(attention_mask))
        return self._apply_head(vectors)

    def forward_padded(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        """Padded token ids and mask, both (n, length), to sentence vectors (n, dim), without packing."""
        states = self._hidden_states(input_ids, attention_mask)
        return self._apply_head(pool(states, self._pooled(attention_mask), self.pooler_type))

    def _apply_head(self, vectors: Tensor) -> Tensor:
        """The head and the normalisation on pooled vectors (n, dim), as far as the encoder has them."""
        if self.head is not None and (self.training or self.keep_head):
            vectors = self.head(vectors)
        return nn.functional.normalize(vectors, dim=-1) if self.normalize else vectors

    def _masked_lm_loss(
        self, token_ids: Tensor, packing: Packing, packed: bool, masked: Tensor, tokens: Tensor
    ) -> Tensor:
        assert self.lm_head is not None
        if packed:
            states = packed_states(self.transformer, token_ids, packing)[-1]  # (tokens, dim)
        else:
            ids = packing.padded_ids(token_ids, self.transformer.config.pad_token_id or 0)
            states = self._hidden_states(ids, packing.mask)[-1].flatten(0, 1)[packing.places]
        logits = self.lm_head(states[masked])  # (m, vocabulary)
        return F.cross_entropy(logits.float(), tokens, reduction="sum").unsqueeze(0)

    def _hidden_states(self, input_ids: Tensor, attention_mask: Tensor, all_layers: bool = False) -> Sequence[Tensor]:
        all_layers = all_layers or len(AVERAGED.get(self.pooler_type, ())) > 1
        output = self.transformer(input_ids, attention_mask=attention_mask, output_hidden_states=all_layers)
        states: Sequence[Tensor] = output.hidden_states if all_layers else (output.last_hidden_state,)
        return states

    def encode(
        self,
        sentences: Sequence[str],
        tokenizer: PreTrainedTokenizerBase,
        batch_size: int = 64,
        poolers: Sequence[str] | None = None,
        progress: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> Tensor | dict[str, Tensor]:
        """Vectors of sentences for evaluation: without dropout, with a kept head, cut at the encoder's length limit.

        Args:
            sentences: any number of them; they are encoded in the order of their length.
            tokenizer: of the encoder.
            batch_size: sentences at a time.
            poolers: encode with each of these poolers in one forward pass, without head and normalisation.
            progress: show a progress bar.
            dtype: of the forward pass; any other than fp32 uses autocast.

        Returns:
            (n, dim) fp32 on the CPU; with ``poolers`` one such tensor for each name.
        """
        limit, batches = length_limit(tokenizer, self.transformer), by_sentences(sentences, batch_size)
        prompt = self.prompts.text

        def tokenized() -> Iterator[tuple[Tensor, Tensor]]:
            for rows in progress_bar(batches, progress, desc="encoding", unit=" batches"):
                batch = tokenizer(
                    [prompt + sentences[i] for i in rows],
                    padding=True,
                    truncation=True,
                    max_length=limit,
                    return_tensors="pt",
                )
                yield batch["input_ids"], batch["attention_mask"]

        vectors = {name: found.cpu() for name, found in self._encode(tokenized(), batches, poolers, dtype).items()}
        return vectors if poolers is not None else vectors[self.pooler_type]

    def encode_again(
        self, sentences: Sequence[str], tokenized: TokenizedOnce, dtype: torch.dtype = torch.float32
    ) -> Tensor:
        """What :meth:`encode` gives, for sentences that are encoded again and again.

        On a CPU the vectors are those of :meth:`encode` bit for bit. On an accelerator batches have
        :data:`~dystress_text.encoders.encoding.TOKENS_A_BATCH` tokens, and nothing is copied from the device.

        Returns:
            (n, dim) fp32 on the encoder's device.
        """
        prompt = self.prompts.text
        ids = tokenized([prompt + sentence for sentence in sentences] if prompt else sentences)
        on_cpu = next(self.parameters()).device.type == "cpu"
        batches = by_sentences(sentences, SENTENCES_A_BATCH) if on_cpu else by_tokens([len(one) for one in ids])
        padded = (tokenized.padded([ids[i] for i in rows]) for rows in batches)
        return self._encode(padded, batches, None, dtype)[self.pooler_type]

    @torch.no_grad()
    def _encode(
        self,
        padded: Iterable[tuple[Tensor, Tensor]],
        batches: Sequence[Sequence[int]],
        poolers: Sequence[str] | None,
        dtype: torch.dtype,
    ) -> dict[str, Tensor]:
        """Vectors (n, dim) by pooler on the encoder's device, from ids and mask of each batch and its places."""
        wanted = tuple(poolers or (self.pooler_type,))
        device, n, dim = next(self.parameters()).device, sum(map(len, batches)), self.transformer.config.hidden_size
        vectors = {name: torch.empty(n, dim, device=device) for name in wanted}  # in the order of the batches
        was_training, done = self.training, 0
        self.eval()
        try:
            for batch in padded:
                ids, mask = (tensor.to(device) for tensor in batch)
                with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
                    states = self._hidden_states(ids, mask, all_layers=poolers is not None)
                for name in wanted:
                    pooled = pool(states, self._pooled(mask), name).float()
                    vectors[name][done : done + len(ids)] = pooled if poolers is not None else self._apply_head(pooled)
                done += len(ids)
        finally:
            self.train(was_training)
        places = torch.tensor([i for rows in batches for i in rows], dtype=torch.int64).argsort().to(device)
        return {name: found[places] for name, found in vectors.items()}

    def save(self, folder: str | Path, tokenizer: PreTrainedTokenizerBase) -> None:
        """Write a native sentence-transformers model whose vectors are those of :meth:`encode`.

        A head that is not kept is not saved, and the length limit is that of the encoder. Adapters are merged. Old
        files are replaced when all new files are complete.
        """
        plain = merged(self._adapted[0]) if self._adapted else self.transformer
        limit, dense = length_limit(tokenizer, self.transformer), self.head_dense if self.keep_head else None
        with replaced_files(folder) as complete:
            write_native(complete, plain, tokenizer, limit, self.pooler_type, dense, self.normalize, self.prompts)
            for adapted in self._adapted if self._keep_adapter else ():
                save_adapter(adapted, complete / ADAPTER)


def length_limit(tokenizer: PreTrainedTokenizerBase, transformer: PreTrainedModel) -> int:
    """The most tokens of a sentence, special tokens included: the smaller limit of tokenizer and position table."""
    return min(position_limit(transformer), tokenizer.model_max_length)


def position_limit(transformer: PreTrainedModel) -> int:
    """The number of tokens for which an encoder has positions; ``sys.maxsize`` without a table of positions.

    RoBERTa and similar encoders number positions from the padding index + 1; the rows before are not used.
    """
    limit = int(getattr(transformer.config, "max_position_embeddings", sys.maxsize))
    for name, module in transformer.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding) and module.padding_idx is not None:
            limit -= module.padding_idx + 1
    return limit


def check_length(max_seq_length: int, tokenizer: PreTrainedTokenizerBase, model: SentenceEncoder) -> None:
    """Check that the encoder has a position for every token of a training sentence.

    Raises:
        UserError: the encoder has fewer positions.
    """
    limit = length_limit(tokenizer, model.transformer)
    if max_seq_length > limit:
        raise UserError(f"--max_seq_length: this encoder reads at most {limit} tokens, got {max_seq_length}")


def check_views(model: SentenceEncoder, tokenizer: PreTrainedTokenizerBase) -> None:
    """Check that dropout gives two different views of a sentence; the random state is restored.

    Raises:
        UserError: the views are equal, so training would learn nothing from positive pairs.
    """
    device = next(model.parameters()).device
    batch = tokenizer(["Two views of one sentence."] * 2, return_tensors="pt").to(device)
    was_training = model.training
    devices = [device] if device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices):
        mask = batch["attention_mask"]
        first, second = model.train()(batch["input_ids"][mask.bool()], mask)
    model.train(was_training)
    if torch.equal(first, second):
        raise UserError(
            "--dropout: this encoder has no dropout, so the two views of a sentence are the same; give a rate, such "
            "as --dropout 0.1"
        )


def load_encoder(
    name_or_path: str, pooler_type: str = "cls", mlp_head: bool | None = None, dropout: float | None = None
) -> tuple[SentenceEncoder, PreTrainedTokenizerBase]:
    """An encoder and its tokenizer from a folder or from the hub, in fp32. Code that comes with a model is never run.

    Args:
        name_or_path: folder or hub name.
        pooler_type: one of :data:`POOLERS`.
        mlp_head: see :class:`SentenceEncoder`.
        dropout: a rate for every dropout of the encoder, in place of its configuration's.

    Raises:
        UserError: the encoder cannot be loaded, tokenizer and encoder do not belong together, or the pooler is unknown.
    """
    if pooler_type not in POOLERS:
        raise UserError(f"--pooler_type: unknown pooler {pooler_type!r}; known are {', '.join(POOLERS)}")
    found = load_pretrained(name_or_path, dropout)
    return build_encoder(found, pooler_type, mlp_head), found.tokenizer


def build_encoder(
    found: Pretrained, pooler_type: str = "cls", mlp_head: bool | None = None, keep_head: bool = False
) -> SentenceEncoder:
    """A sentence encoder from loaded files; it encodes one sentence as a trial.

    Args:
        found: transformer and tokenizer.
        pooler_type: one of :data:`POOLERS`.
        mlp_head: see :class:`SentenceEncoder`.
        keep_head: see :class:`SentenceEncoder`.

    Raises:
        UserError: the trial fails.
    """
    with readable(found.name):
        encoder = SentenceEncoder(found.transformer, pooler_type, mlp_head, keep_head)
        with torch.random.fork_rng(devices=[]):
            encoder.encode(["A configuration can name what shows itself in the forward pass alone."], found.tokenizer)
    return encoder


def pooler_encoder(found: Pretrained) -> SentenceEncoder:
    """An encoder whose vectors are transformers' ``pooler_output``: the first token, then the pooler's dense + tanh.

    Raises:
        UserError: the encoder has no such pooler, or the files have no weights for it.
    """
    dense = pooler_dense(found.transformer)
    if found.pooler is None or dense is None:
        raise UserError(
            f"--pooler_type pooler: {found.name!r} has no weights of a pooler (dense + tanh on the first token)"
        )
    encoder = build_encoder(found, "cls", mlp_head=True, keep_head=True)
    encoder.start_head(dense)
    return encoder
