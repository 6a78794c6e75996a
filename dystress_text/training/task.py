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

from dystress_text.core.objectives import Objective
from dystress_text.training.batches import Batch
from dystress_text.training.settings import EngineSettings

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
        """Write ``model`` in the form that users load; each file replaces that of the model before."""


@dataclass(kw_only=True)
class Run:
    """A task and all that training it needs; the recipes for text and images add what they print
    and publish.
    """

    task: Task
    samples: int  # number of training samples
    options: Mapping[str, Any] = field(
        default_factory=dict
    )  # all of the run; a resumed one must have the same
    data_id: str = ""  # identifies the training data's content, such as a checksum
    record: dict[str, Any] = field(
        default_factory=dict
    )  # the content of ``run.json``; grows during the run
    make_optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None  # None is AdamW
    best_metric: str | None = (
        None  # the task's metric that selects the best model; None selects the last model
    )
    engine: EngineSettings | None = (
        None  # in place of those asked for, where the samples decide on some
    )

    def begin(self, steps: int, before: Mapping[str, Any]) -> None:
        """Print what the run trains on, and measure the untrained model; on the main process,
        before the first step.

        ``before`` is the record of the run that is resumed, empty for a new one.
        """

    def finish(self, samples_per_second: float, output: Path) -> None:
        """Complete the record and publish the result; on the main process, after the last step."""
