"""The interface between the trainer and what it trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from dystress_text.losses.objectives import Objective
from dystress_text.training.batches import Batch
from dystress_text.training.run_record import RunRecord


class Task(Protocol):
    """The embeddings of a batch and their loss; evaluation and saving of the model."""

    @property
    def model(self) -> nn.Module:
        """The network. :meth:`embed` receives it as accelerate has prepared it."""

    @property
    def objective(self) -> Objective:
        """The loss."""

    @property
    def state(self) -> nn.Module:
        """A module whose tensors a checkpoint saves besides the model, such as the objective."""

    def load(self, indices: NDArray[np.int64], step: int) -> Batch:
        """Return the samples at ``indices``, on the CPU.

        Random draws depend on ``step`` alone, which counts from 0.
        """

    def begin_step(self, epoch: float, run_fraction: float) -> None:
        """Update whatever is scheduled, such as a temperature.

        Args:
            epoch: the number of epochs done.
            run_fraction: the fraction of the run done, in [0, 1].
        """

    def embed(self, model: nn.Module, batch: Batch) -> Any:
        """Return the :class:`Embeddings` of a batch or chunk."""

    def loss(self, embeddings: Any) -> Tensor:
        """Return the loss of the result of :meth:`embed`, a scalar."""

    def evaluate(self) -> Mapping[str, float]:
        """Return the metrics of ``model`` by name. The random state must not change."""

    def save(self, folder: Path) -> None:
        """Save ``model`` in the format that users load; replace the one saved before."""


@dataclass(kw_only=True)
class TrainingPlan:
    """A task, and how to train it.

    Attributes:
        task: the task.
        samples: the number of training samples.
        data_id: identifies the content of the training data, such as a checksum.
        record: the record of the run. Its ``settings`` are all options, which a resumed run must
            share; their ``metric_for_best_model`` selects the model to keep; None keeps the last.
        make_optimizer: makes the optimizer for a network; None for AdamW.
        has_collapsed: returns whether the embeddings of all samples have become equal. Such a model
            does not replace a saved one.
    """

    task: Task
    samples: int
    data_id: str = ""
    record: RunRecord = field(default_factory=RunRecord)
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None
    has_collapsed: Callable[[], bool] = lambda: False
