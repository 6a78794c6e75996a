"""The objectives as a loss for sentence-transformers' trainer."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch
import torch.distributed as dist
from sentence_transformers import SentenceTransformer
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from dystress_text.export.citation import CITATION
from dystress_text.losses.gather import LocalGather, ProcessGather
from dystress_text.losses.objectives import ContrastiveLoss, InfoNCELoss
from dystress_text.losses.other_losses import QueueInfoNCELoss
from dystress_text.losses.registry import LossPart
from dystress_text.losses.reweighting import Reweighting
from dystress_text.losses.temperature import ShiftedCosineTemperature, Temperature

try:
    from sentence_transformers.base.losses.merged_forward import embed_columns as _embed_columns
except ImportError:  # before 6.0

    def _embed_columns(model: Any, columns: Iterable[Any]) -> list[Tensor]:  # type: ignore[misc]
        return [model(features)["sentence_embedding"] for features in columns]


try:
    from sentence_transformers.base.losses.gradcache import CachedLossMixin as _Cached
    from sentence_transformers.base.losses.gradcache import has_static_embedding_input
except ImportError:  # before 5.7

    class _Cached:  # type: ignore[no-redef]
        """The base of the gradient cache, for releases of sentence-transformers that lack it."""


class DySTreSSLoss(_Cached, nn.Module):
    """DySTreSS for ``SentenceTransformerTrainer``: the similarity of a pair sets its temperature.

    At a constant temperature it equals MultipleNegativesRankingLoss (scale ``1 / tau``). With
    ``mini_batch_size`` it caches gradients (Gao et al., RepL4NLP 2021), as
    CachedMultipleNegativesRankingLoss does: the same gradient in the memory of one mini-batch, with
    a second forward pass. ``MatryoshkaLoss`` can wrap either form. The temperature is that of Manna
    et al., "Dynamically Scaled Temperature in Self-Supervised Contrastive Learning".

    The columns of the data are anchor, positive and any number of hard negatives. Labels are
    ignored.

    A temperature that follows the run, such as ``ScheduledTemperature``, needs
    ``SentenceTransformerTrainer(..., loss=loss, callbacks=[loss.callback()])``. The trainer's
    checkpoints do not contain parameters of the loss.

    Args:
        model: the model to train. The objective moves to its device.
        temperature: a temperature, a number for a constant one, or a reweighting, for InfoNCE.
            Default: the paper's for text, ``ShiftedCosineTemperature(0.05, 0.07, shift=-0.4)``.
        objective: replaces InfoNCE and ``temperature``.
        gather_across_devices: whether texts of all processes are negatives. Each process must have
            the same number of rows.
        mini_batch_size: rows to embed at a time, with gradient caching; None embeds all at once.
            Needs sentence-transformers 5.7.
        mini_batch_num_tokens: tokens to embed at a time, instead of rows.
        show_progress_bar: whether to show the progress over the mini-batches.

    Raises:
        ValueError: arguments exclude each other, or need another version of sentence-transformers
            or another model.

    Examples:
        >>> from datasets import Dataset
        >>> from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer
        >>> from dystress_text.io.paths import model_path
        >>> model = SentenceTransformer(model_path("bert-mini-wiki"), device="cpu")  # or any other
        >>> loss = DySTreSSLoss(model)
        >>> anchors = ["It rains.", "We are late."]
        >>> positives = ["It pours.", "Hurry up."]
        >>> loss([model.tokenize(texts) for texts in (anchors, positives)]).shape
        torch.Size([])
        >>> objective = NTXentLoss(CosineTemperature(0.03, 0.05))
        >>> loss = DySTreSSLoss(model, objective=objective, mini_batch_size=32)
        >>> pairs = Dataset.from_dict({"anchor": anchors, "positive": positives})
        >>> trainer = SentenceTransformerTrainer(model, train_dataset=pairs, loss=loss)
    """

    def __init__(
        self,
        model: SentenceTransformer,
        temperature: Reweighting | Temperature | float | None = None,
        *,
        objective: ContrastiveLoss | None = None,
        gather_across_devices: bool = False,
        mini_batch_size: int | None = None,
        mini_batch_num_tokens: int | None = None,
        show_progress_bar: bool = False,
    ) -> None:
        super().__init__()
        if objective is None:
            if temperature is None:
                temperature = ShiftedCosineTemperature(0.05, 0.07, -0.4)
            objective = InfoNCELoss(temperature)
        elif temperature is not None:
            raise ValueError("give either temperature or objective, which has a temperature")
        if isinstance(objective, QueueInfoNCELoss):
            raise ValueError("objective: QueueInfoNCELoss needs a momentum encoder")
        self.uses_gradient_cache = (mini_batch_size or mini_batch_num_tokens) is not None
        if self.uses_gradient_cache:
            _check_gradient_cache(model)
        self.mini_batch_size = mini_batch_size or 32
        self.mini_batch_num_tokens = mini_batch_num_tokens
        self.show_progress_bar = show_progress_bar
        self.model = model
        self.objective = objective.to(model.device)
        self.gather_across_devices = gather_across_devices
        self._knows_progress = False

    def forward(
        self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None
    ) -> Tensor:
        """Return the loss, a scalar.

        Args:
            sentence_features: tokenised anchors, positives and hard negatives.
            labels: ignored.
        """
        columns = list(sentence_features)
        if self.uses_gradient_cache:
            return self.forward_cached(columns, None)
        return self.compute_loss_from_embeddings(_embed_columns(self.model, columns))

    def calculate_loss(
        self, reps: list[list[Tensor]], labels: Tensor | None = None, *, with_backward: bool = False
    ) -> Tensor:
        """Return the loss for the gradient cache, or for one dimension of ``MatryoshkaLoss``.

        Args:
            reps: mini-batches of embeddings, (rows, dim) each, for each column.
            labels: ignored.
            with_backward: whether to call the backward.
        """
        loss = self.compute_loss_from_embeddings([torch.cat(mini_batches) for mini_batches in reps])
        if with_backward:
            loss.backward()  # type: ignore[no-untyped-call]
            loss = loss.detach()
        return loss

    def advance(self, epoch: float, run_fraction: float) -> None:
        """Set the progress of the run for the temperature.

        Args:
            epoch: epochs done.
            run_fraction: fraction of the run in [0, 1].
        """
        self.objective.temperature.advance(epoch, run_fraction)
        self._knows_progress = True

    def callback(self) -> TrainerCallback:
        """Return a callback for the trainer that calls :meth:`advance` before each step."""
        return _Progress(self)

    def get_config_dict(self) -> dict[str, Any]:
        """Return the settings for the model card."""
        return {
            "loss": str(self.objective),
            "gather_across_devices": self.gather_across_devices,
            "mini_batch_size": self.mini_batch_size if self.uses_gradient_cache else None,
            "mini_batch_num_tokens": self.mini_batch_num_tokens,
        }

    @property
    def temperature(self) -> float | LossPart:
        """The temperature; a float if it is constant."""
        return self.objective.temperature.as_argument()

    @property
    def citation(self) -> str:
        """The paper's BibTeX entry, for the model card."""
        return CITATION

    def compute_loss_from_embeddings(
        self, embeddings: list[Tensor], labels: Tensor | None = None
    ) -> Tensor:
        """Return the loss of embeddings, for use within another loss.

        Args:
            embeddings: (rows, dim) for each column.
            labels: ignored.

        Raises:
            ValueError: there is only one column, or a temperature needs the progress of the run and
                never received it.
        """
        if len(embeddings) < 2:
            raise ValueError(
                f"{type(self.objective).__name__} needs the columns (anchor, positive) and "
                f"optional negatives, got {len(embeddings)} without labels"
            )
        temperature = self.objective.temperature
        if temperature.needs_progress and self.model.training and not self._knows_progress:
            raise ValueError(
                f"{type(temperature).__name__} needs the progress of the run: pass "
                "callbacks=[loss.callback()] to the trainer, or call loss.advance(...)"
            )
        self.objective.gather = LocalGather()
        # not in __init__, where the process group may not exist yet
        if self.gather_across_devices and dist.is_initialized() and dist.get_world_size() > 1:
            self.objective.gather = ProcessGather(dist.get_rank(), dist.get_world_size())
        single = len(embeddings) == 2 and len(embeddings[0]) * self.objective.gather.world_size == 1
        if single and self.objective.negatives_from_batch:
            warnings.warn(
                "a batch of 1 pair has no negatives: its loss is 0; set dataloader_drop_last=True",
                stacklevel=2,
            )
            return (torch.cat(embeddings) * 0).sum()
        loss: Tensor = self.objective(*embeddings)
        return loss


def _check_gradient_cache(model: SentenceTransformer) -> None:
    if not hasattr(_Cached, "forward_cached"):
        raise ValueError("mini-batches need sentence-transformers 5.7 or newer")
    if has_static_embedding_input(model):
        raise ValueError("a StaticEmbedding cannot be embedded in mini-batches")


class _Progress(TrainerCallback):
    def __init__(self, loss: DySTreSSLoss) -> None:
        self.loss = loss

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.loss.advance(state.epoch or 0.0, state.global_step / state.max_steps)
