"""What the trainer asks of a task and of a run."""

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

PROBE = 64  # samples whose vectors are looked at in every run


class Task(Protocol):
    """What a :class:`~dystress_text.training.trainer.Trainer` trains."""

    @property
    def model(self) -> nn.Module:
        """The network; :meth:`embed` gets accelerate's prepared form of it."""

    @property
    def objective(self) -> Objective:
        """The loss, which knows what it learned."""

    @property
    def state(self) -> nn.Module:
        """What a checkpoint holds besides the model, such as the objective."""

    def load(self, indices: NDArray[np.int64], step: int) -> Batch:
        """The samples at ``indices`` as tensors on the CPU. What is drawn at random is seeded by
        the step, from 0.
        """

    def begin_step(self, epoch: float, run_fraction: float) -> None:
        """Receive the progress before each step: epochs done, and the fraction of the run in [0,
        1].
        """

    def embed(self, model: nn.Module, batch: Batch) -> Any:
        """The :class:`Embeddings` of a batch, or of a chunk of it."""

    def loss(self, embeddings: Any) -> Tensor:
        """The loss, a scalar, of the result of :meth:`embed`."""

    def probe(self) -> Tensor:
        """Vectors of some training samples, (n, dim), as the saved model gives them. Must not
        change anything.
        """

    def evaluate(self) -> Mapping[str, float]:
        """Metrics of ``model``, by name. Must not change the random state."""

    def save(self, folder: Path) -> None:
        """Write ``model`` in the form that users load; each file replaces the one before."""


@dataclass(kw_only=True)
class Run:
    """A task and what the trainer has to know to train it.

    Attributes:
        task: what is trained.
        samples: the number of training samples.
        options: all of the run; a resumed run must have the same.
        data_id: identifies the content of the training data, such as a checksum.
        record: the content of ``run.json``; it grows during the run.
        make_optimizer: makes the optimizer of a network; None is AdamW.
        best_metric: the metric that selects the best model; None selects the last model.
    """

    task: Task
    samples: int
    options: Mapping[str, Any] = field(default_factory=dict)
    data_id: str = ""
    record: dict[str, Any] = field(default_factory=dict)
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None
    best_metric: str | None = None
