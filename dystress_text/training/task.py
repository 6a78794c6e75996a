"""What the trainer asks of a task and of a run, and the embeddings that pass between it and the task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dystress_text.training.batches import Batch
from dystress_text.training.similarity_log import SimilarityLog


@dataclass(frozen=True)
class Embeddings:
    """The views of a batch, one tensor (n, dim) each.

    A subclass adds the other inputs of its loss: tensors (with one entry or one row a sample), or None.
    """

    views: tuple[Tensor, ...]

    def tensors(self) -> list[Tensor]:
        """All tensors, the views first."""
        return [*self.views, *(x for x in self._others().values() if x is not None)]

    def with_tensors(self, tensors: Sequence[Tensor]) -> Self:
        """A copy with other tensors, in the order of :meth:`tensors`."""
        remaining = iter(tensors)
        views = tuple(next(remaining) for _ in self.views)
        others = {name: None if x is None else next(remaining) for name, x in self._others().items()}
        return replace(self, views=views, **others)

    def _others(self) -> dict[str, Any]:
        return {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "views"}


def concatenated(chunks: Sequence[Embeddings]) -> list[Tensor]:
    """The tensors of a batch, from those of its chunks."""
    return [torch.cat(pieces) for pieces in zip(*(chunk.tensors() for chunk in chunks), strict=True)]


class Task(Protocol):
    """What a :class:`~dystress_text.training.trainer.Trainer` trains."""

    @property
    def model(self) -> nn.Module:
        """The network; the trainer passes accelerate's prepared form of it to :meth:`embed`."""

    @property
    def state(self) -> nn.Module:
        """What a checkpoint holds besides the model, such as the objective."""

    def load(self, indices: NDArray[np.int64], step: int) -> Batch:
        """The samples at ``indices`` as tensors on the CPU. What is drawn at random is seeded by the step, from 0."""

    def begin_step(self, epoch: float, run_fraction: float) -> None:
        """Receive the progress before each step: epochs done, and the fraction of the run in [0, 1]."""

    def embed(self, model: nn.Module, batch: Batch) -> Any:
        """The :class:`Embeddings` of a batch, or of a chunk of it."""

    def loss(self, embeddings: Any) -> Tensor:
        """The loss, a scalar, of the result of :meth:`embed`."""

    def evaluate(self) -> Mapping[str, float]:
        """Metrics of ``model``, by name. Must not change the random state."""

    def save(self, folder: Path) -> None:
        """Write ``model`` in the form that users load; each file replaces that of the model before."""


@dataclass(kw_only=True)
class Run:
    """A task and all that training it needs; the recipes for text and images add what they print and publish.

    Attributes:
        task: the task to train.
        samples: number of training samples.
        options: all options of the run, for its record, for trackers and for the check of a resumed run.
        data_id: identifies the training data's content, such as a checksum.
        record: the content of ``run.json``; grows during the run.
        make_optimizer: builds the optimiser of a network; None is AdamW with the settings' learning rate.
        learned_temperature: the optimiser's parameter group of what the loss itself learns; None without one.
        similarity_log: for ``--log_similarity``; else None.
        best_metric: of the task's metrics the one that selects the best model; None selects the last model.
    """

    task: Task
    samples: int
    options: Mapping[str, Any] = field(default_factory=dict)
    data_id: str = ""
    record: dict[str, Any] = field(default_factory=dict)
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None
    learned_temperature: dict[str, Any] | None = None
    similarity_log: SimilarityLog | None = None
    best_metric: str | None = None

    def begin(self, steps: int, batch_size: int, before: Mapping[str, Any]) -> None:
        """Print what the run trains on, and measure the untrained model; on the main process, before the first step.

        Args:
            steps: of the whole run.
            batch_size: over all processes.
            before: the record of the run that is resumed; empty for a new run.
        """

    def finish(self, samples_per_second: float, output: Path) -> None:
        """Complete the record and publish the result; on the main process, after the last step."""
