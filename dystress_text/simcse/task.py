"""SimCSE as a task for the trainer, with any objective and temperature.

Without supervision, the views of a sample are two dropout views of one sentence. With supervision, they are the
sentences of a row: anchor, positive and hard negatives, each encoded once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from dystress_text.core.matryoshka import matryoshka
from dystress_text.core.objectives import ContrastiveLoss
from dystress_text.encoders.encoder import SentenceEncoder, length_limit
from dystress_text.encoders.encoding import TokenizedOnce
from dystress_text.encoders.masked_lm import TokenMasking
from dystress_text.evaluation.evaluators import Evaluation
from dystress_text.simcse.corpus import TokenizedCorpus
from dystress_text.simcse.helpers import Helpers
from dystress_text.training.batches import Batch
from dystress_text.training.best_model import copied_to_cpu
from dystress_text.training.distributed import is_sharded
from dystress_text.training.embeddings import Embeddings


@dataclass(frozen=True)
class TextEmbeddings(Embeddings):
    """The views of sentences, and the other inputs of the loss.

    Attributes:
        sample_ids: ids of the samples, one tensor (n,) per column; () if duplicates are not masked.
        guide: the guide's vectors of the sentences, one tensor (n, any dim) per column; () without a guide.
        teacher: the same of the teacher.
        masked_losses: the sum of the masked-language-model losses, (1,); None without that loss.
        masked_counts: the number of tokens in the sum, (1,).
    """

    sample_ids: tuple[Tensor, ...] = ()
    masked_losses: Tensor | None = None
    masked_counts: Tensor | None = None
    guide: tuple[Tensor, ...] = ()
    teacher: tuple[Tensor, ...] = ()


class SimcseTask:
    """Implements :class:`dystress_text.training.task.Task` for sentences.

    Args:
        model: the encoder.
        tokenizer: of the encoder.
        corpus: the training samples, each a sentence or, with supervision, a row of sentences.
        objective: the loss.
        evaluation: of the encoder; None for no evaluation.
        packing: compute nothing for padding, where the encoder allows that (BERT, RoBERTa and their kin).
        mask_duplicates: samples with the same tokens are not used as negatives for each other.
        masking: hides tokens for an additional masked-language-model loss, whose head the encoder must have; None
            for no such loss.
        mlm_weight: of that loss.
        evaluation_dtype: of the forward pass in evaluations while training.
        helpers: guide, teacher and the like.
    """

    def __init__(
        self,
        model: SentenceEncoder,
        tokenizer: PreTrainedTokenizerBase,
        corpus: TokenizedCorpus,
        objective: ContrastiveLoss,
        evaluation: Evaluation | None = None,
        packing: bool = True,
        mask_duplicates: bool = True,
        masking: TokenMasking | None = None,
        mlm_weight: float = 0.1,
        evaluation_dtype: torch.dtype = torch.float32,
        helpers: Helpers = Helpers(),  # noqa: B008  # it does not change
    ) -> None:
        self.model = model
        self.packing = packing and model.can_pack
        self.tokenizer = tokenizer
        self.corpus = corpus
        self.objective = objective
        objective.temperature.set_samples(len(corpus))
        self.evaluation = evaluation
        self.mask_duplicates = mask_duplicates
        self.masking = masking
        self.mlm_weight = mlm_weight
        self.evaluation_dtype = evaluation_dtype
        self.helpers = helpers
        if helpers.guide is not None:
            objective.guided = torch.zeros(1, dtype=torch.int64)
        self._tokenized = TokenizedOnce(tokenizer, length_limit(tokenizer, model.transformer))
        self.positions = 0
        self.tokens = 0

    @property
    def padding_share(self) -> float:
        """The share of positions so far that were padding."""
        return 1 - self.tokens / max(self.positions, 1)

    def load(self, indices: NDArray[np.int64], step: int) -> Batch:
        batch = self.corpus.batch(indices)
        if self.mask_duplicates:
            batch["sample_ids"] = self.corpus.digests(indices)  # (columns * n,)
        if self.objective.temperature.by_sample:
            batch["samples"] = torch.from_numpy(indices)
        if self.masking is not None:
            batch |= self.masking(batch, indices)
        batch |= self.helpers.load(indices, self.corpus)
        self.positions += batch["attention_mask"].numel()
        self.tokens += len(batch["token_ids"])
        return batch

    def embed(self, model: nn.Module, batch: Batch) -> TextEmbeddings:
        # all views in one call of the prepared model, whose forward handles precision and gradient averaging
        ids, mask = batch["token_ids"], batch["attention_mask"]  # (tokens,), (columns * n, longest)
        columns = self.corpus.columns
        packed = self.packing and not is_sharded(model)  # packing reads the layers' weights directly
        masked_losses = None
        if self.masking is not None:
            hidden = (batch["masked_places"], batch["masked_tokens"])
            masked_losses = model(batch["masked_ids"], mask, packed, hidden)
        if columns == 1:  # two dropout views of each sentence
            ids, mask = ids.repeat(2), mask.repeat(2, 1)
        vectors: Tensor = model(ids, mask, packed)
        return TextEmbeddings(
            views=vectors.chunk(max(2, columns)),
            sample_ids=batch["sample_ids"].chunk(columns) if self.mask_duplicates else (),
            guide=self.helpers.vectors("guide", batch),
            teacher=self.helpers.vectors("teacher", batch),
            masked_losses=masked_losses,
            masked_counts=batch.get("masked_count"),
            samples=batch.get("samples"),
        )

    @property
    def state(self) -> nn.Module:
        return self.objective

    def begin_step(self, epoch: float, run_fraction: float) -> None:
        self.objective.temperature.advance(epoch, run_fraction)

    def loss(self, embeddings: TextEmbeddings) -> Tensor:
        gather, views = self.objective.gather, embeddings.views
        inputs: dict[str, Any] = {"ids": _of_views(embeddings.sample_ids) or None, "samples": embeddings.samples}
        guide = self.helpers.guidance(_of_views(embeddings.guide), gather)
        if guide is not None:
            inputs["guide"] = guide
        dims = self.helpers.dims
        loss = (
            matryoshka(self.objective, views, dims, **inputs)
            if dims
            else cast(Tensor, self.objective(*views, **inputs))
        )
        if self.helpers.distillation is not None:
            loss = loss + self.helpers.distillation(views, _of_views(embeddings.teacher), gather)
        if embeddings.masked_losses is not None and embeddings.masked_counts is not None:  # one entry per chunk
            of_all = gather(embeddings.masked_counts.sum().unsqueeze(0)).sum()
            masked = self.mlm_weight * gather.world_size * embeddings.masked_losses.sum()
            loss = loss + masked / of_all.clamp(min=1)
        return loss

    def evaluate(self) -> dict[str, float]:
        return {} if self.evaluation is None else self.evaluation(self.encode)

    def encode(self, sentences: Sequence[str]) -> Tensor:
        """Vectors of sentences for evaluation while training, (n, dim), on the model's device."""
        return self.model.encode_again(sentences, self._tokenized, self.evaluation_dtype)

    def snapshot(self) -> Callable[[Path], None]:
        self.objective.temperature.keep()
        if self.model.keep_head:
            # sentence-transformers, which wrote the model before, drew a head's first weights each time; without
            # them a run would have another dropout from its first saved model on than it has always had
            nn.Linear(self.model.head_dense.in_features, self.model.head_dense.out_features)
        model = copied_to_cpu(self.model)
        self.helpers.draw_back(model)
        return lambda folder: model.save(folder, self.tokenizer)


def _of_views(columns: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """One tensor a view, from one a column: two views of one sentence share theirs."""
    return columns * 2 if len(columns) == 1 else columns
