"""Which model of a run is saved: the one with the highest metric, or the last one if no metric decides.

It is copied in memory, and a thread writes the copy while training goes on.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import torch
from torch import nn
from torch.nn.utils import get_total_norm

from dystress_text.errors import TrainingError
from dystress_text.training.checkpoints import TrainingState


def is_best(state: TrainingState, metrics: Mapping[str, float], name: str | None) -> bool:
    """Whether the model of this step replaces the best one so far.

    Args:
        state: of the run.
        metrics: of this step; empty if nothing is evaluated.
        name: of the metric that decides (higher is better); None selects the last model.

    Raises:
        TrainingError: the first value of the metric is NaN, so there is no best model.
    """
    value = _value(metrics, name)
    if value is None:
        return True
    if state.best_metric is None and math.isnan(value):
        raise TrainingError(f"{name} is {value} at step {state.step}: the vectors are all equal or not finite")
    return not math.isnan(value) and (state.best_metric is None or value > state.best_metric)


def note_best(state: TrainingState, metrics: Mapping[str, float], name: str | None) -> None:
    """Record the model of this step as the best one."""
    state.best_metric, state.best_step, state.metrics = _value(metrics, name), state.step, dict(metrics)
    state.not_better = 0


def check_finite(model: nn.Module, step: int) -> None:
    """Check that all weights are finite; reads one number from the device.

    Raises:
        TrainingError: a weight is not finite.
    """
    weights = [parameter.detach() for parameter in model.parameters()]
    if not get_total_norm(weights, norm_type=math.inf).isfinite():  # the largest weight; NaN if there is one
        raise TrainingError(f"a weight is not finite at step {step}; lower --learning_rate")


Network = TypeVar("Network", bound=nn.Module)


@torch.no_grad()
def copied_to_cpu(network: Network) -> Network:
    """A copy of a network on the CPU; its device never holds a second copy of the weights."""
    copies: dict[int, torch.Tensor] = {}  # by identity, so that shared weights stay shared
    for parameter in network.parameters():
        copies[id(parameter)] = nn.Parameter(parameter.to("cpu", copy=True), parameter.requires_grad)
    for buffer in network.buffers():
        copies[id(buffer)] = buffer.to("cpu", copy=True)
    return copy.deepcopy(network, copies)


class ModelWriter:
    """Writes the best model to a folder in a thread, one model at a time.

    Attributes:
        folder: of the run.
        written: the step of the model that the folder holds; None before the first one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written: int | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="best-model")
        self._pending: Future[None] | None = None
        self._step: int | None = None

    def start(self, write: Callable[[Path], None], step: int) -> None:
        """Begin to write the model of a step; ``write`` writes a copy that nothing else changes.

        Raises:
            OSError, RuntimeError, SafetensorError: the model before could not be written.
        """
        self.finish()
        self._pending, self._step = self._thread.submit(write, self.folder), step

    def finish(self) -> None:
        """Wait until the model is written.

        Raises:
            OSError, RuntimeError, SafetensorError: it could not be written.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()
            self.written = self._step

    def close(self) -> None:
        """Wait for the thread and end it."""
        self._thread.shutdown()


def _value(metrics: Mapping[str, float], name: str | None) -> float | None:
    return metrics[name] if name and metrics else None
