"""What a run of text or images left: its record, its curves and its logged similarities."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dystress_text.errors import UserError
from dystress_text.training.run_folder import LOG, PROGRAMS, SIMILARITY_LOG, read_record, read_steps

Curves = dict[str, tuple[list[float], list[float]]]  # steps and values of a metric by its name
_NOT_DRAWN = ("step", "learning_rate", "samples_per_second")
_ORDER = ("loss", "spearman", "alignment", "uniformity")


@dataclass(frozen=True)
class RunHistory:
    """A finished run.

    Attributes:
        name: of its folder.
        record: what ``run.json`` holds.
        curves: the loss and the metrics over the steps.
        similarity_steps: the lines of ``similarity.jsonl``; empty without --log_similarity.
    """

    name: str
    record: Mapping[str, Any]
    curves: Curves
    similarity_steps: Sequence[Mapping[str, Any]]


def read_history(folder: Path) -> RunHistory:
    """Read a finished run; a folder without one, or a damaged log, is a UserError."""
    record = read_record(folder)
    if record.get("program") not in PROGRAMS or "trained" not in record:
        raise UserError(f"{str(folder)!r} holds no finished run")
    log = folder / SIMILARITY_LOG
    return RunHistory(
        folder.resolve().name, record, read_curves(folder), list(read_steps(log)) if log.is_file() else []
    )


def read_curves(folder: Path) -> Curves:
    """Loss and metrics over the steps of a run, NaN where a value was not finite."""
    log = folder / LOG
    if not log.is_file():
        raise UserError(f"no run in {str(folder)!r}: it has no {LOG}")
    curves: Curves = {}
    for values in read_steps(log):
        for name in values.keys() - {*_NOT_DRAWN}:
            steps, column = curves.setdefault(name, ([], []))
            try:
                column.append(math.nan if values[name] is None else float(values[name]))
            except (ValueError, TypeError) as error:
                raise UserError(f"{log}: the line of step {values['step']} holds more than numbers") from error
            steps.append(float(values["step"]))
    if not curves:
        raise UserError(f"{log} has no step yet")
    return curves


def metrics_of(runs: Sequence[Curves]) -> list[str]:
    """The metrics that any of the runs has: loss, Spearman, alignment, uniformity, then others."""

    def place(name: str) -> tuple[int, str]:
        kind = name.rpartition("_")[2]
        return _ORDER.index(kind) if kind in _ORDER else len(_ORDER), name

    return sorted({name for run in runs for name in run}, key=place)
