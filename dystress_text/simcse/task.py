"""SimCSE as a task for the trainer, with any objective and temperature.

Without supervision, the views of a sample are two dropout views of one sentence, or two crops of a
text. With supervision, they are the sentences of a row: anchor, positive and hard negatives, each
encoded once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from dystress_text.core.objectives import ContrastiveLoss
from dystress_text.encoders.encoder import SentenceEncoder, TokenizedOnce, length_limit
from dystress_text.encoders.masked_lm import TokenMasking
from dystress_text.evaluation.embedder import prompted
from dystress_text.evaluation.evaluators import Evaluation
from dystress_text.simcse.corpus import TokenizedCorpus
from dystress_text.training.batches import Batch, Embeddings
from dystress_text.training.task import PROBE


@dataclass(eq=False)
class SimcseTask:
    """Implements :class:`dystress_text.training.task.Task` for sentences.

    Attributes:
        model: the encoder.
        tokenizer: of the encoder.
        corpus: the training samples, each a sentence or, with supervision, a row of sentences.
        objective: the loss.
        evaluation: of the encoder; None for no evaluation.
        packing: compute nothing for padding, where the encoder allows that (BERT, RoBERTa and their
            kin).
        masking: hides tokens for an additional masked-language-model loss, whose head the encoder
            must have.
        mlm_weight: of that loss.
    """

    model: SentenceEncoder
    tokenizer: PreTrainedTokenizerBase
    corpus: TokenizedCorpus
    objective: ContrastiveLoss
    evaluation: Evaluation | None = None
    packing: bool = True
    masking: TokenMasking | None = None
    mlm_weight: float = 0.1
    positions: int = field(default=0, init=False)  # so far, padding included
    tokens: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.packing = self.packing and self.model.can_pack
        self._tokenized = TokenizedOnce(
            self.tokenizer, length_limit(self.tokenizer, self.model.transformer)
        )

    @property
    def state(self) -> nn.Module:
        return self.objective

    @property
    def padding_share(self) -> float:
        """The share of positions so far that were padding."""
        return 1 - self.tokens / max(self.positions, 1)

    def load(self, indices: NDArray[np.int64], step: int) -> Batch:
        batch = self.corpus.batch(indices, step)
        if self.masking is not None:
            batch |= self.masking(batch, indices)
        self.positions += len(batch["lengths"]) * batch["longest"]
        self.tokens += len(batch["token_ids"])
        return batch

    def begin_step(self, epoch: float, run_fraction: float) -> None:
        self.objective.temperature.advance(epoch, run_fraction)

    def embed(self, model: nn.Module, batch: Batch) -> Embeddings:
        # all views in one call of the prepared model, whose forward handles precision and gradient
        # averaging
        ids, lengths, longest = (
            batch["token_ids"],
            batch["lengths"],
            batch["longest"],
        )  # (tokens,), (rows * n,)
        masked: tuple[Tensor, ...] = ()
        if (
            self.masking is not None
        ):  # the sum of the losses of hidden tokens, and their number, (1,) each
            hidden = (batch["masked_places"], batch["masked_tokens"])
            masked = (
                model(batch["masked_ids"], lengths, longest, self.packing, hidden),
                batch["masked_count"],
            )
        if self.corpus.rows == 1:  # two dropout views of each sentence
            ids, lengths = ids.repeat(2), lengths.repeat(2)
        vectors: Tensor = model(ids, lengths, longest, self.packing)
        return Embeddings(vectors.chunk(max(2, self.corpus.rows)), masked)

    def loss(self, embeddings: Embeddings) -> Tensor:
        loss: Tensor = self.objective(*embeddings.views)
        if self.masking is not None:
            losses, counts = embeddings.others  # one entry per chunk
            gather = self.objective.gather
            of_all = gather(counts.sum().unsqueeze(0)).sum()
            loss = loss + self.mlm_weight * gather.world_size * losses.sum() / of_all.clamp(min=1)
        return loss

    @torch.no_grad()
    def probe(self) -> Tensor:
        samples = np.linspace(0, len(self.corpus) - 1, min(PROBE, len(self.corpus))).astype(
            np.int64
        )
        batch = self.corpus.batch(samples)
        device, was_training = next(self.model.parameters()).device, self.model.training
        ids, lengths = batch["token_ids"].to(device), batch["lengths"].to(device)
        vectors: Tensor = self.model.eval()(ids, lengths, batch["longest"], self.packing)
        self.model.train(was_training)
        return vectors

    def evaluate(self) -> dict[str, float]:
        return {} if self.evaluation is None else self.evaluation(prompted(self.encode, self.model))

    def encode(self, sentences: Sequence[str]) -> Tensor:
        """Vectors of sentences for evaluation while training, (n, dim) in fp32, on the model's
        device.
        """
        return self.model.encode_again(sentences, self._tokenized)

    def save(self, folder: Path) -> None:
        self.model.save(folder, self.tokenizer)
