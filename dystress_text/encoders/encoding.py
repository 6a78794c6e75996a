"""Sentences for evaluation: token ids that are kept, and how sentences share a batch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerBase

SENTENCES_A_BATCH = 64  # on a CPU
TOKENS_A_BATCH = 16_384  # on an accelerator, padding included
_AT_ONCE = 4_096  # sentences; the tokenizer's results take many times the memory of the ids


class TokenizedOnce:
    """A tokenizer that keeps the ids of each sentence, as every evaluation of a run asks for the same ones.

    Args:
        tokenizer: of the encoder.
        limit: the most tokens of a sentence.
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
            self._ids.update(zip(part, map(torch.tensor, ids), strict=True))
        return [self._ids[sentence] for sentence in sentences]

    def padded(self, sentences: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Ids and mask of a batch, both (n, longest)."""
        ids, side = self(sentences), self.tokenizer.padding_side
        mask = [torch.ones_like(one) for one in ids]
        return pad_sequence(ids, True, self.tokenizer.pad_token_id, side), pad_sequence(mask, True, 0, side)


def by_sentences(sentences: Sequence[str], size: int) -> list[list[int]]:
    """Places of sentences in batches of ``size``, in the order of their length in characters."""
    order = sorted(range(len(sentences)), key=lambda i: len(sentences[i]))
    return [order[start : start + size] for start in range(0, len(order), size)]


def by_tokens(lengths: Sequence[int], most: int = TOKENS_A_BATCH) -> list[list[int]]:
    """Places of sentences in batches of at most ``most`` positions, padding included, or of one sentence."""
    batches: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        if batches and (len(batches[-1]) + 1) * lengths[i] <= most:  # the longest one so far
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches
