"""Which model of a run is saved: the one with the highest metric, or the last one if no metric decides."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import nn

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


def check_finite(model: nn.Module, step: int) -> None:
    """Check that all weights are finite.

    Raises:
        TrainingError: a weight is not finite.
    """
    if not all(bool(parameter.isfinite().all()) for parameter in model.parameters()):
        raise TrainingError(f"a weight is not finite at step {step}; lower --learning_rate")


def _value(metrics: Mapping[str, float], name: str | None) -> float | None:
    return metrics[name] if name and metrics else None
