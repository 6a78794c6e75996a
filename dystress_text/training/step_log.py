"""Logs with one JSON object per line and ``step`` in each: a run appends to them, reports and figures read them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dystress_text.errors import UserError
from dystress_text.files.whole import to_json, write_text


def append(log: Path, step: int, values: Mapping[str, Any]) -> None:
    """Append a line.

    Raises:
        OSError: the log cannot be written.
    """
    with log.open("a", encoding="utf-8") as file:
        file.write(to_json({"step": step, **values}) + "\n")


def shorten(log: Path, step: int) -> None:
    """Remove the lines of later steps, and an incomplete line that a killed run has left.

    Raises:
        OSError: the log cannot be written.
    """
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    write_text(log, "".join(line + "\n" for line in lines if (_step_of(line) or math.inf) <= step))


def read_steps(log: Path) -> Iterator[dict[str, Any]]:
    """The lines, in order; a number that was not finite is None.

    Raises:
        UserError: the log cannot be read, or a line is not the record of a step.
    """
    try:
        lines = log.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"{log} cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        if _step_of(line) is None:
            raise UserError(f"{log}: line {number} is not the record of a step")
        yield json.loads(line)


def _step_of(line: str) -> int | None:
    try:
        step: int = json.loads(line)["step"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return step if isinstance(step, int) else None
