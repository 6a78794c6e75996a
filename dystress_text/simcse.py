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

from dystress_text.batches import Batch
from dystress_text.core.objectives import (
    ContrastiveLoss,
)
from dystress_text.corpus import TokenizedCorpus
from dystress_text.distributed import is_sharded
from dystress_text.encoder import SentenceEncoder
from dystress_text.errors import UserError
from dystress_text.evaluators import Evaluation


class SimcseTask:
    """Implements :class:`dystress_text.engine.Task` for sentences.

    Args:
        model: the encoder.
        tokenizer: its tokenizer.
        corpus: the training sentences; supervised, those of each row one after another.
        objective: the loss.
        evaluation: what it is evaluated on; None for nothing.
        packing: compute nothing for padding, where the encoder allows that (BERT, RoBERTa and their kin).
        columns: sentences a row; 1 is unsupervised.

    Raises:
        UserError: hard negatives for an objective that takes none.
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
    ) -> None:
        if columns > 2 and not objective.takes_hard_negatives:
            raise UserError(f"--objective: {type(objective).__name__} takes no hard negatives; infonce does")
        self.model = model
        self.packing = packing and model.can_pack
        self.tokenizer = tokenizer
        self.corpus = corpus
        self.objective = objective
        self.evaluation = evaluation
        self.columns = columns
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
        self.positions += batch["attention_mask"].numel()
        self.tokens += len(batch["places"])
        return batch

    def embed(self, model: nn.Module, batch: Batch) -> tuple[Tensor, ...]:
        # all views in one pass, through the prepared model's forward: precision and gradient averaging hook in there
        ids, mask, places = (batch[name] for name in ("input_ids", "attention_mask", "places"))  # (columns * n, length)
        if self.columns == 1:
            places = torch.cat([places, places + ids.numel()])
            ids, mask = ids.repeat(2, 1), mask.repeat(2, 1)
        packing = self.packing and not is_sharded(model)  # packed arithmetic uses the layers' weights, not the layers
        vectors: Tensor = model(ids, mask, places if packing else None)
        return vectors.chunk(max(2, self.columns))  # each (n, dim)

    @property
    def state(self) -> nn.Module:
        return self.objective

    def begin_step(self, epoch: float, run_fraction: float) -> None:
        self.objective.temperature.advance(epoch, run_fraction)

    def loss(self, embeddings: tuple[Tensor, ...]) -> Tensor:
        return cast(Tensor, self.objective(*embeddings))

    def evaluate(self) -> dict[str, float]:
        return {} if self.evaluation is None else self.evaluation(self.encode)

    def encode(self, sentences: Any) -> Tensor:
        """Vectors of sentences as evaluation uses them."""
        vectors = self.model.encode(sentences, self.tokenizer)
        assert isinstance(vectors, Tensor)
        return vectors

    def save(self, folder: Path) -> None:
        self.model.save(folder, self.tokenizer)
