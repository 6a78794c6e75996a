"""The interface of a task, and the summary of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from dystress_text.training.batches import Batch
from dystress_text.training.embeddings import Embeddings


class Task(Protocol):
    """What a :class:`~dystress_text.training.trainer.Trainer` trains."""

    @property
    def state(self) -> nn.Module:
        """What a checkpoint holds besides the model, such as the objective."""

    @property
    def model(self) -> nn.Module:
        """The network; the trainer passes accelerate's prepared form of it to :meth:`embed`."""

    def load(self, indices: NDArray[np.int64], step: int) -> Batch:
        """The samples at ``indices`` as tensors on the CPU. What is drawn at random is seeded by the step, from 0."""

    def begin_step(self, epoch: float, run_fraction: float) -> None:
        """Receive the progress before each step: epochs done, and the fraction of the run in [0, 1]."""

    def embed(self, model: nn.Module, batch: Batch) -> Embeddings:
        """The views of a batch, and the other inputs of the loss."""

    def loss(self, embeddings: Any) -> Tensor:
        """The loss, a scalar, of the result of :meth:`embed`."""

    def evaluate(self) -> Mapping[str, float]:
        """Metrics of ``model``, by name. Must not change the random state."""

    def snapshot(self) -> Callable[[Path], None]:
        """Copy ``model`` in memory; what comes back writes the copy to a folder, in the form that users load.

        The writing runs in a thread beside training, so it must not draw random numbers.
        """


@dataclass(frozen=True)
class TrainingSummary:
    """The figures of a finished run.

    Attributes:
        steps: optimiser steps of the whole run.
        seconds: spent in training steps, evaluation and saving left out.
        samples_per_second: training samples over ``seconds``, all processes together.
        peak_memory_gb: of the device on CUDA, else of the process (resident), in 10^9 bytes.
        best_step: of the saved model.
        skipped_steps: steps that fp16 skipped, for gradients that overflowed.
        metrics: of the saved model.
    """

    steps: int
    seconds: float
    samples_per_second: float
    peak_memory_gb: float
    best_step: int | None
    skipped_steps: int
    metrics: dict[str, float]
