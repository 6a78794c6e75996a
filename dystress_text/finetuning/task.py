"""The task of text training: the views of a sample, their embeddings and loss.

Without supervision the views of a sample are a sentence with two dropout masks, or two crops. With
supervision they are the texts of a row: anchor, positive and hard negatives.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dystress_text.evaluation.evaluator_list import EvaluatorList
from dystress_text.finetuning.corpus import Corpus
from dystress_text.finetuning.initial_model import TextModel
from dystress_text.losses.geometry import tolerance
from dystress_text.losses.objectives import ContrastiveLoss
from dystress_text.models.encoding import encode
from dystress_text.models.masked_lm import TokenMasking
from dystress_text.models.model_with_heads import ModelWithHeads
from dystress_text.models.static import set_document_row
from dystress_text.training.batches import Batch, Embeddings

PROBES = 64  # samples whose embeddings show a collapse


@dataclass(eq=False)
class TextTask:
    """Implements :class:`dystress_text.training.task.Task` for text.

    Attributes:
        text_model: the model to train, evaluate and save.
        corpus: the training samples.
        objective: the loss.
        evaluation: the evaluators; None for no evaluation.
        packed: whether to leave out padding where the model allows it (BERT, RoBERTa and similar).
        masking: masks tokens for an additional masked-language-model loss, which needs a
            language-model head; None for no such loss.
        mlm_weight: the weight of that loss.
    """

    text_model: TextModel
    corpus: Corpus
    objective: ContrastiveLoss
    evaluation: EvaluatorList | None = None
    packed: bool = True
    masking: TokenMasking | None = None
    mlm_weight: float = 0.1

    @property
    def model(self) -> ModelWithHeads:
        return self.text_model.embedder

    @property
    def state(self) -> nn.Module:
        return self.objective

    def load(self, indices: NDArray[np.int64], step: int) -> Batch:
        batch = self.corpus.batch(indices, step)
        if self.masking is not None:
            batch |= self.masking(batch, indices)
        return batch

    def begin_step(self, epoch: float, run_fraction: float) -> None:
        self.objective.temperature.advance(epoch, run_fraction)

    def embed(self, model: nn.Module, batch: Batch) -> Embeddings:
        # one call for all views: the forward of the prepared model sets the precision and averages
        # gradients
        ids = batch["token_ids"]  # (tokens,)
        lengths = batch["lengths"]  # (rows * n,)
        longest = batch["longest"]
        masked: tuple[Tensor, ...] = ()
        if self.masking is not None:
            to_predict = (batch["masked_indices"], batch["masked_tokens"])
            losses = model(batch["masked_ids"], lengths, longest, self.packed, to_predict)  # (1,)
            masked = (losses, batch["masked_count"])
        rows = self.corpus.rows_per_sample
        if rows == 1:  # each sentence twice, with two dropout masks
            rows = 2
            ids = ids.repeat(2)
            lengths = lengths.repeat(2)
        embeddings: Tensor = model(ids, lengths, longest, self.packed)
        texts = (batch["texts"],) if self.corpus.identifies_texts else ()
        return Embeddings(embeddings.chunk(rows), masked + texts)

    def loss(self, embeddings: Embeddings) -> Tensor:
        texts = embeddings.others[-1] if self.corpus.identifies_texts else None
        loss: Tensor = self.objective(*embeddings.views, texts=texts)
        if self.masking is not None:
            losses, counts = embeddings.others[:2]  # one entry per chunk
            gather = self.objective.gather
            of_all = gather(counts.sum().unsqueeze(0)).sum()
            loss = loss + self.mlm_weight * gather.world_size * losses.sum() / of_all.clamp(min=1)
        return loss

    def evaluate(self) -> dict[str, float]:
        if self.evaluation is None:
            return {}
        self._update_document_row()
        return self.evaluation(self.text_model.model)

    def spread(self) -> float:
        """Return 1 minus the mean cosine between samples; a collapse brings it near 0.

        For a hybrid, only the trained part counts.
        """
        model = self.text_model.embedder.model
        vectors = encode(model, self.corpus.sampled_texts[:PROBES]).double()  # (n, dim)
        one_class = torch.zeros(len(vectors), dtype=torch.long, device=vectors.device)
        return 1 - float(tolerance(vectors, one_class))

    def save(self, folder: Path) -> None:
        self._update_document_row()
        self.text_model.save(folder)

    def _update_document_row(self) -> None:
        """Compute the document row of a static model from its other rows."""
        if self.text_model.is_static:
            set_document_row(self.text_model.embedder.model, self.corpus.sentences())
