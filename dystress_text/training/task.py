"""The interface of a task that the trainer trains."""

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
    """A task of :class:`~dystress_text.training.trainer.Trainer`."""

    @property
    def model(self) -> nn.Module:
        """The network; :meth:`embed` receives it as prepared by accelerate."""

    @property
    def objective(self) -> Objective:
        """The loss."""

    @property
    def state(self) -> nn.Module:
        """The state to save in a checkpoint besides the model, such as the objective."""

    def load(self, indices: NDArray[np.int64], step: int) -> Batch:
        """Return the samples at ``indices`` on the CPU; seed random draws by the step, from 0."""

    def begin_step(self, epoch: float, run_fraction: float) -> None:
        """Receive the progress: epochs done, and the fraction of the run in [0, 1]."""

    def embed(self, model: nn.Module, batch: Batch) -> Any:
        """Return the :class:`Embeddings` of a batch or chunk."""

    def loss(self, embeddings: Any) -> Tensor:
        """Return the scalar loss of the result of :meth:`embed`."""

    def evaluate(self) -> Mapping[str, float]:
        """Return the metrics of ``model`` by name. Must not change the random state."""

    def save(self, folder: Path) -> None:
        """Save ``model`` for users, replacing the files of the last save."""


@dataclass(kw_only=True)
class Run:
    """A task and how to train it.

    Attributes:
        task: the model and its loss.
        samples: the number of training samples.
        options: all options of the run; a resumed run must have the same.
        data_id: identifies the content of the training data, such as a checksum.
        record: of the run, which grows while it trains.
        make_optimizer: makes the optimizer of a network; None is AdamW.
        best_metric: the metric that selects the best model; None selects the last model.
        has_collapsed: tells whether the embeddings of all samples have become one; such a model
            replaces no saved one.
    """

    task: Task
    samples: int
    options: Mapping[str, Any] = field(default_factory=dict)
    data_id: str = ""
    record: RunRecord = field(default_factory=RunRecord)
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None
    best_metric: str | None = None
    has_collapsed: Callable[[], bool] = lambda: False
