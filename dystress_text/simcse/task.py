"""SimCSE as a task for the engine, with any objective and temperature.

Unsupervised, the views of a sample are two dropout views of one sentence; supervised, they are the sentences of a row:
anchor, positive and hard negatives, each encoded once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from dystress_text.core.objectives import ContrastiveLoss
from dystress_text.encoders.encoder import SentenceEncoder
from dystress_text.encoders.masked_lm import TokenMasking
from dystress_text.evaluation.evaluators import Evaluation
from dystress_text.simcse.corpus import TokenizedCorpus
from dystress_text.training.batches import Batch
from dystress_text.training.distributed import is_sharded


class SimcseTask:
    """Implements :class:`dystress_text.training.trainer.Task` for sentences.

    Args:
        model: the encoder.
        tokenizer: its tokenizer.
        corpus: the training sentences; supervised, those of each row one after another.
        objective: the loss.
        evaluation: what it is evaluated on; None for nothing.
        packing: compute nothing for padding, where the encoder allows that (BERT, RoBERTa and their kin).
        columns: sentences a row; 1 is unsupervised.
        mask_duplicates: samples with the same tokens are no negatives of each other.
        masking: hides tokens for a masked-language-model loss beside the objective's; None for none. The encoder has
            the head.
        mlm_weight: of that loss.
    """

    def __init__(
        self,
        model: SentenceEncoder,
        tokenizer: PreTrainedTokenizerBase,
        corpus: TokenizedCorpus,
        objective: ContrastiveLoss,
        evaluation: Evaluation | None = None,
        packing: bool = True,
        columns: int = 1,
        mask_duplicates: bool = True,
        masking: TokenMasking | None = None,
        mlm_weight: float = 0.1,
    ) -> None:
        self.model = model
        self.packing = packing and model.can_pack
        self.tokenizer = tokenizer
        self.corpus = corpus
        self.objective = objective
        self.evaluation = evaluation
        self.columns = columns
        self.mask_duplicates = mask_duplicates
        self.masking = masking
        self.mlm_weight = mlm_weight
        self.positions = 0
        self.tokens = 0

    def __len__(self) -> int:
        """Samples."""
        return len(self.corpus) // self.columns

    @property
    def padding_share(self) -> float:
        """The share of positions so far that were padding."""
        return 1 - self.tokens / max(self.positions, 1)

    def load(self, indices: NDArray[np.int64]) -> Batch:
        rows = indices * self.columns + np.arange(self.columns)[:, None]  # (columns, n)
        batch = self.corpus.batch(rows.ravel())
        if self.mask_duplicates:
            batch["sample_ids"] = self.corpus.digests(rows.ravel())  # (columns * n,)
        if self.masking is not None:
            batch |= self.masking(batch, indices)
        self.positions += batch["attention_mask"].numel()
        self.tokens += len(batch["places"])
        return batch

    def embed(self, model: nn.Module, batch: Batch) -> tuple[Tensor, ...]:
        """The views, and behind them what :meth:`loss` has to know: which samples are the same, and the other loss."""
        # all views in one pass, through the prepared model's forward: precision and gradient averaging hook in there
        ids, mask, places = (batch[name] for name in ("input_ids", "attention_mask", "places"))  # (columns * n, length)
        packing = self.packing and not is_sharded(model)  # packed arithmetic uses the layers' weights, not the layers
        more: list[Tensor] = []
        if self.mask_duplicates:
            more += batch["sample_ids"].chunk(self.columns)  # each (n,)
        if self.masking is not None:
            hidden = (batch["masked_places"], batch["masked_tokens"])
            more += [model(batch["masked_ids"], mask, places if packing else None, hidden), batch["masked_count"]]
        if self.columns == 1:
            places = torch.cat([places, places + ids.numel()])
            ids, mask = ids.repeat(2, 1), mask.repeat(2, 1)
        vectors: Tensor = model(ids, mask, places if packing else None)
        return *vectors.chunk(max(2, self.columns)), *more  # vectors (n, dim)

    @property
    def state(self) -> nn.Module:
        return self.objective

    def begin_step(self, epoch: float, run_fraction: float) -> None:
        self.objective.temperature.advance(epoch, run_fraction)

    def loss(self, embeddings: tuple[Tensor, ...]) -> Tensor:
        views, more = embeddings[: max(2, self.columns)], embeddings[max(2, self.columns) :]
        ids = more[: self.columns] if self.mask_duplicates else None
        if ids is not None and self.columns == 1:
            ids = (ids[0], ids[0])  # two views of one sentence
        loss = cast(Tensor, self.objective(*views, ids=ids))
        if self.masking is not None:
            total, count = more[-2:]  # one entry a chunk of the batch
            gather = self.objective.gather
            everybody = gather(count.sum().unsqueeze(0)).sum()
            loss = loss + self.mlm_weight * gather.world_size * total.sum() / everybody.clamp(min=1)
        return loss

    def evaluate(self) -> dict[str, float]:
        return {} if self.evaluation is None else self.evaluation(self.encode)

    def encode(self, sentences: Any) -> Tensor:
        """Vectors of sentences as evaluation uses them."""
        vectors = self.model.encode(sentences, self.tokenizer)
        assert isinstance(vectors, Tensor)
        return vectors

    def save(self, folder: Path) -> None:
        self.objective.temperature.keep()
        self.model.save(folder, self.tokenizer)
