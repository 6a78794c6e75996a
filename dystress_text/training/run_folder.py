"""Read and write the files in the folder of a run.

A run owns ``run.json``, ``metrics.jsonl``, ``similarity.jsonl``, ``report.html``, ``audit.json``,
``checkpoint-STEP/``, ``tracker-logs/dystress/``, the model, and the results of its evaluations
(``results.jsonl``, ``vision-DATASET.jsonl``). All other files are the user's.

The logs are lines of JSON objects, each with its ``step``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dystress_text.errors import UserError
from dystress_text.io.atomic import append_json, write_json, write_text
from dystress_text.training.run_record import RunRecord
from dystress_text.training.settings import CONFIGURATION_FREE

RECORD = "run.json"
REPORT = "report.html"
AUDIT = "audit.json"
LOG = "metrics.jsonl"
SIMILARITY_LOG = "similarity.jsonl"
TRACKER_FOLDER = "tracker-logs"
STAGING = ".checkpoint-writing"
TEXT_PROGRAM = "dystress_text/train.py"
IMAGE_PROGRAM = "vision/train.py"
PROGRAMS = (TEXT_PROGRAM, IMAGE_PROGRAM)
# a folder without any of them holds no model
MODEL_FILES = (
    "modules.json",
    "model.safetensors",
    "model-?????-of-?????.safetensors",
    "model.safetensors.index.json",
    "projector.safetensors",
)
# 0.2 wrote those without an l
EVALUATIONS = ("results.jsonl", "senteval-*.json", "vision-*.jsonl", "vision-*.json")
FILES = (LOG, SIMILARITY_LOG, REPORT, AUDIT, *EVALUATIONS, *MODEL_FILES)
_STEP = re.compile(r"checkpoint-(\d+)")


def changed_options(record: Mapping[str, Any], requested: Mapping[str, Any]) -> str:
    """Return how the options of a run differ from the requested ones; "" if they do not."""
    options = record.get("settings") or {}
    compared = requested.keys() - set(CONFIGURATION_FREE)
    return differences(options, {name: requested[name] for name in sorted(compared)})


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describe how the current settings differ from earlier ones; "" if they do not."""
    now = json.loads(json.dumps(now))
    names = [name for name in now if then.get(name) != now[name]]
    return "; ".join(f"{name} was {then.get(name)}, is {now[name]}" for name in names)


def write_record(output: Path, record: Mapping[str, Any]) -> None:
    """Write ``run.json``."""
    write_json(output / RECORD, record)


def read_record(output: Path) -> dict[str, Any]:
    """Return the content of ``run.json``; {} if it cannot be read."""
    try:
        return read_json(output / RECORD)
    except UserError:
        return {}


def read_run(folder: Path) -> RunRecord:
    """Return the record of the run in a folder, of this version or 0.2."""
    values = read_json(folder / RECORD)
    try:
        return RunRecord.from_json(values)
    except (AttributeError, TypeError) as error:
        raise UserError(f"{folder / RECORD} is not the record of a run: {error}") from error


def read_json(file: Path) -> dict[str, Any]:
    """Return the object in a JSON file of a run."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{file} is not a JSON object")
    return content


def run_folders(folders: Iterable[Path]) -> list[Path]:
    """Return the runs in folders, each once: a folder is a run or holds several."""
    unique: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"no such folder: {str(folder)!r}")
        inner = sorted(file.parent for file in folder.glob(f"*/{RECORD}"))
        runs = [folder] if (folder / RECORD).is_file() else inner
        if not runs:
            raise UserError(f"no {RECORD} in {str(folder)!r} or its folders")
        unique += [run for run in runs if run not in unique]
    return unique


def checkpoint_folders(output: Path) -> list[Path]:
    """Return a run's checkpoints, complete or not, newest first."""
    by_step = {}
    for path in output.glob("checkpoint-*"):
        step = _STEP.fullmatch(path.name)
        if step and path.is_dir():
            by_step[int(step[1])] = path
    return [by_step[step] for step in sorted(by_step, reverse=True)]


def append(log: Path, step: int, values: Mapping[str, Any]) -> None:
    """Append a line to a log."""
    append_json(log, {"step": step, **values})


def shorten_logs(output: Path, step: int) -> None:
    """Remove later steps from the logs of a run, and a last line that a kill cut off."""
    for log in (output / LOG, output / SIMILARITY_LOG):
        if log.is_file():
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
            kept = [line for line in lines if 0 < _step_of(line) <= step]
            write_text(log, "".join(f"{line}\n" for line in kept))


def read_steps(log: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a log in order; a number that was not finite is None."""
    try:
        lines = log.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"{log} cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        if _step_of(line) == 0:
            raise UserError(f"{log}: line {number} is not a step")
        yield json.loads(line)


def _step_of(line: str) -> int:
    """Return the step of a log line; 0 if it has none."""
    try:
        return int(json.loads(line)["step"])
    except (ValueError, TypeError, LookupError, RecursionError):
        return 0
