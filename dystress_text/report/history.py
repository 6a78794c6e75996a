"""What a run of text or images left: its record, its curves and its logged similarities."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dystress_text.core.registry import Temperature
from dystress_text.errors import UserError
from dystress_text.training.run_folder import LOG, PROGRAMS, SIMILARITY_LOG, read_record, read_steps

_NEEDED = {"settings", "objective", "temperature", "steps", "train_seconds", "device", "trained"}
_NOT_DRAWN = ("learning_rate", "samples_per_second")
_ORDER = ("loss", "spearman", "alignment", "uniformity")


@dataclass(frozen=True)
class RunHistory:
    """A finished run.

    Attributes:
        name: of its folder.
        record: what ``run.json`` holds.
        curves: the loss and the metrics over the steps.
        similarity_steps: the lines of ``similarity.jsonl``; empty without --log_similarity.
        temperature: what was trained with; None where it is unknown or there is none.
    """

    name: str
    record: Mapping[str, Any]
    curves: RunCurves
    similarity_steps: Sequence[Mapping[str, Any]]
    temperature: Temperature | None

    @property
    def profile(self) -> Temperature | None:
        """The temperature if it depends on the similarity alone, so that it has a curve."""
        tau = self.temperature
        return None if tau is None or tau.needs_progress or tau.needs_mean_positive else tau


def read_history(folder: Path, temperature: Temperature | None = None) -> RunHistory:
    """Read a finished run; ``temperature`` is what it was trained with.

    Raises:
        UserError: the folder holds no finished run, or a log is damaged.
    """
    record = read_record(folder)
    if record.get("program") not in PROGRAMS or not record.keys() >= _NEEDED:
        raise UserError(f"{str(folder)!r} holds no finished run")
    log = folder / SIMILARITY_LOG
    similarity_steps = list(read_steps(log)) if log.is_file() else []
    return RunHistory(folder.resolve().name, record, read_curves(folder), similarity_steps, temperature)


@dataclass(frozen=True)
class RunCurves:
    """The loss and the metrics that a run wrote while training.

    Attributes:
        name: of its folder.
        metrics: by name, steps and values; NaN where a value was not finite.
    """

    name: str
    metrics: dict[str, tuple[list[float], list[float]]]


def read_curves(folder: Path) -> RunCurves:
    """Loss and metrics over the steps of a run.

    Raises:
        UserError: the folder holds no run, or its log is damaged or empty.
    """
    log = folder / LOG
    if not log.is_file():
        raise UserError(f"no run in {str(folder)!r}: it has no {LOG}")
    metrics: dict[str, tuple[list[float], list[float]]] = {}
    for values in read_steps(log):
        step = float(values.pop("step"))
        try:
            found = {k: math.nan if v is None else float(v) for k, v in values.items() if k not in _NOT_DRAWN}
        except (ValueError, TypeError) as error:
            raise UserError(f"{log}: the line of step {step:g} holds more than numbers") from error
        for name, value in found.items():
            steps, column = metrics.setdefault(name, ([], []))
            steps.append(step)
            column.append(value)
    if not metrics:
        raise UserError(f"{log} has no step yet")
    return RunCurves(folder.resolve().name, metrics)


def metrics_of(runs: list[RunCurves]) -> list[str]:
    """The metrics that any of the runs has: loss, Spearman, alignment, uniformity, then others."""
    names = list(dict.fromkeys(name for run in runs for name in run.metrics))

    def place(name: str) -> int:
        kind = name.rpartition("_")[2]
        return _ORDER.index(kind) if kind in _ORDER else len(_ORDER)

    return sorted(names, key=place)
