"""The objectives as a loss for sentence-transformers' own trainer."""

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
        """No gradient cache to share."""


class DySTreSSLoss(_Cached, nn.Module):
    """A loss for ``SentenceTransformerTrainer`` whose temperature depends on the similarity of each
    pair.

    It replaces MultipleNegativesRankingLoss, and equals it (scale ``1 / tau``) at a constant
    temperature. With ``mini_batch_size`` it replaces CachedMultipleNegativesRankingLoss: the same
    gradient in the memory of one mini-batch, at the cost of a second forward pass.
    ``MatryoshkaLoss`` can wrap either form.

    The columns are (anchor, positive) and then any number of hard negatives; labels are ignored.
    Source of the temperature: Manna et al., "Dynamically Scaled Temperature in Self-Supervised
    Contrastive Learning"; of the gradient cache: Gao et al., RepL4NLP 2021, by
    sentence-transformers' own machinery.

    A temperature that follows the run (``ScheduledTemperature``) needs the progress from the
    trainer: ``SentenceTransformerTrainer(..., loss=loss, callbacks=[loss.callback()])``. It is set
    at every step, so a resumed run needs only the trainer's checkpoints. What a reweighting learns is the
    loss's own and not in those checkpoints.

    Args:
        model: the model to train. The objective moves to its device.
        temperature: a temperature or reweighting, or a number for a constant one, for the InfoNCE
            objective. Default: the paper's for text, ``ShiftedCosineTemperature(0.05, 0.07,
            shift=-0.4)``.
        objective: another objective with its temperature and options, in place of ``temperature``.
        gather_across_devices: use the candidates of all processes, not only of this one. Every
            process must have the same number of rows.
        mini_batch_size: rows to embed at a time, with gradients cached; None embeds all at once.
            Both sizes need sentence-transformers 5.7.
        mini_batch_num_tokens: tokens to embed at a time, in place of rows.
        show_progress_bar: over the mini-batches.

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
            reason = "give either temperature or objective"
            raise ValueError(f"an objective comes with its own temperature: {reason}")
        if not isinstance(objective, ContrastiveLoss):
            raise TypeError(
                f"objective must be an instance, such as NTXentLoss(0.05), got {objective!r}"
            )
        if isinstance(objective, QueueInfoNCELoss):
            reason = "which sentence-transformers' trainer has not"
            raise ValueError(f"QueueInfoNCELoss needs a momentum encoder, {reason}")
        if not isinstance(objective.gather, LocalGather):
            advice = "gather_across_devices=True replaces it"
            raise ValueError(f"build the objective without gather; {advice}")
        _check_size(model, "mini_batch_size", mini_batch_size)
        _check_size(model, "mini_batch_num_tokens", mini_batch_num_tokens)
        self.uses_gradient_cache = (mini_batch_size or mini_batch_num_tokens) is not None
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
        """The loss, a scalar, of the tokenised columns: anchors, positives and hard negatives."""
        columns = list(sentence_features)
        if self.uses_gradient_cache:
            return self.forward_cached(columns, None)
        return self.compute_loss_from_embeddings(_embed_columns(self.model, columns))

    def calculate_loss(
        self, reps: list[list[Tensor]], labels: Tensor | None = None, *, with_backward: bool = False
    ) -> Tensor:
        """The loss of the embeddings, a list of mini-batches (rows, dim) for each column.

        Called by the gradient cache, and by ``MatryoshkaLoss`` once for each dimension.
        """
        loss = self.compute_loss_from_embeddings([torch.cat(mini_batches) for mini_batches in reps])
        if with_backward:
            loss.backward()  # type: ignore[no-untyped-call]
            loss = loss.detach()
        return loss

    def advance(self, epoch: float, run_fraction: float) -> None:
        """Give the temperature the progress: epochs done, and the fraction of the run in [0, 1]."""
        self.objective.temperature.advance(epoch, run_fraction)
        self._knows_progress = True

    def callback(self) -> TrainerCallback:
        """A callback that gives the temperature the trainer's progress; pass it in the trainer's
        ``callbacks``.
        """
        return _Progress(self)

    def get_config_dict(self) -> dict[str, Any]:
        """The settings, for the model card."""
        return {
            "loss": str(self.objective),
            "gather_across_devices": self.gather_across_devices,
            "mini_batch_size": self.mini_batch_size if self.uses_gradient_cache else None,
            "mini_batch_num_tokens": self.mini_batch_num_tokens,
        }

    @property
    def temperature(self) -> float | LossPart:
        """The number of a constant temperature, else the temperature."""
        return self.objective.temperature.as_argument()

    @property
    def citation(self) -> str:
        """The paper's BibTeX entry, for the model card."""
        return CITATION

    def compute_loss_from_embeddings(
        self, embeddings: list[Tensor], labels: Tensor | None = None
    ) -> Tensor:
        """The loss of the columns' embeddings, each (rows, dim), for a loss of yours that has other
        terms too.
        """
        if len(embeddings) < 2:
            raise ValueError(
                f"{type(self.objective).__name__} takes the text columns (anchor, positive) and "
                f"any number of negatives behind them, got {len(embeddings)}; labels are not used"
            )
        temperature = self.objective.temperature
        if temperature.needs_progress and self.model.training and not self._knows_progress:
            raise ValueError(
                f"{type(temperature).__name__} follows the run but does not get its progress: pass "
                "callbacks=[loss.callback()] to the trainer, or call loss.advance(...) in your own "
                "loop"
            )
        self.objective.gather = LocalGather()
        # not in __init__: there may be no group yet
        if self.gather_across_devices and dist.is_initialized() and dist.get_world_size() > 1:
            self.objective.gather = ProcessGather(dist.get_rank(), dist.get_world_size())
        single = len(embeddings) == 2 and len(embeddings[0]) * self.objective.gather.world_size == 1
        if single and self.objective.negatives_from_batch:
            warnings.warn(
                "a batch of 1 pair has no negatives and counts as 0; dataloader_drop_last=True "
                "leaves it out",
                stacklevel=2,
            )
            return (torch.cat(embeddings) * 0).sum()
        loss: Tensor = self.objective(*embeddings)
        return loss


def _check_size(model: SentenceTransformer, name: str, size: int | None) -> None:
    """Refuse a size for the gradient cache that is no size, or that nothing here can use."""
    if size is None:
        return
    if type(size) is not int or size < 1:
        raise ValueError(f"{name} must be a whole number of at least 1, got {size!r}")
    if not hasattr(_Cached, "forward_cached"):
        raise ValueError(f"{name} needs sentence-transformers 5.7 or newer")
    if has_static_embedding_input(model):
        raise ValueError(f"{name}: the inputs of a StaticEmbedding do not divide; leave it out")


class _Progress(TrainerCallback):
    def __init__(self, loss: DySTreSSLoss) -> None:
        self.loss = loss

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.loss.advance(state.epoch or 0.0, state.global_step / state.max_steps)
