"""The files in the folder of a run: its record, its logs, and the results of its evaluations.

A run owns ``run.json`` (written before the first step, so that the folder is known as a run's),
``metrics.jsonl``, ``similarity.jsonl``, ``report.html``, ``audit.json``, ``checkpoint-STEP/``, the
trackers' ``tracker-logs/dystress/``, the model, and the results of its evaluations
(``results.jsonl``, ``vision-DATASET.json``). All other files are the user's.

The logs hold one JSON object per line with ``step`` in each.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dystress_text.errors import ParameterError, UserError
from dystress_text.io.atomic import to_json, write_json, write_text
from dystress_text.training.run_record import RunRecord
from dystress_text.training.settings import CONFIGURATION_FREE, DATA_OPTIONS

RECORD = "run.json"
REPORT = "report.html"
AUDIT = "audit.json"  # what dystress audit writes
LOG = "metrics.jsonl"
SIMILARITY_LOG = "similarity.jsonl"
TRACKER_FOLDER = "tracker-logs"
STAGING = ".checkpoint-writing"
TEXT_PROGRAM = "dystress_text/train.py"
IMAGE_PROGRAM = "vision/train.py"
PROGRAMS = (TEXT_PROGRAM, IMAGE_PROGRAM)
# no model loads without one of them
MODEL_FILES = (
    "modules.json",
    "model.safetensors",
    "model-?????-of-?????.safetensors",
    "model.safetensors.index.json",
    "projector.safetensors",
)
EVALUATIONS = ("results.jsonl", "senteval-*.json", "vision-*.json")  # of 0.2 the second
# of a run, besides its record
FILES = (LOG, SIMILARITY_LOG, REPORT, AUDIT, *EVALUATIONS, *MODEL_FILES)
_NAMED = 8  # differences that a message names
_STEP = re.compile(r"checkpoint-(\d+)")


def changed_options(record: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    """Return how the options of a run differ from those asked for; data may have been moved."""
    options = record.get("settings") or {}
    then = {name: _without_folder(name, options.get(name)) for name in asked}
    now = {name: _without_folder(name, value) for name, value in asked.items()}
    return differences(then, now, CONFIGURATION_FREE)


def _without_folder(name: str, value: Any) -> Any:
    if name not in DATA_OPTIONS or value is None:
        return value
    if isinstance(value, str):
        return Path(value).name
    return [Path(each).name for each in value]


def differences(then: Mapping[str, Any], now: Mapping[str, Any], but: Collection[str] = ()) -> str:
    """In which of two runs' settings, apart from those in ``but``, they differ, in words; "" for
    none.
    """
    now = json.loads(json.dumps(now))
    names = [x for x in {**then, **now} if x not in but and then.get(x) != now.get(x)]
    words = [f"{name} was {then.get(name)}, is {now.get(name)}" for name in names[:_NAMED]]
    if len(names) > _NAMED:  # of another program's run
        words.append(f"{len(names) - _NAMED} more")
    return "; ".join(words)


def check_version(folder: Path, record: Mapping[str, Any]) -> None:
    """Refuse a record of an earlier version, whose options were others."""
    if record.get("program") in PROGRAMS and "version" not in record:
        raise UserError(
            f"{folder / RECORD} was written by dystress-text 0.1.0, and that version reads it"
        )


def write_record(output: Path, record: Mapping[str, Any]) -> None:
    """Write ``run.json``."""
    write_json(output / RECORD, record)


def read_record(output: Path) -> dict[str, Any]:
    """The content of ``run.json``; {} if there is no such file or it cannot be read."""
    try:
        return read_json(output / RECORD)
    except UserError:
        return {}


def read_run(folder: Path) -> RunRecord:
    """Return the record of the run in a folder, of this version or 0.2."""
    values = read_json(folder / RECORD)
    check_version(folder, values)
    try:
        return RunRecord.from_json(values)
    except (AttributeError, TypeError) as error:
        raise UserError(f"{folder / RECORD} is not the record of a run: {error}") from error


def read_json(file: Path) -> dict[str, Any]:
    """The object that a JSON file of a run holds."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{file} is not a record")
    return content


def run_folders(folders: Iterable[Path]) -> list[Path]:
    """The runs, finished or not and each one once, that folders are or hold."""
    unique: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise UserError(f"no such folder: {str(folder)!r}")
        inner = sorted(file.parent for file in folder.glob(f"*/{RECORD}"))
        runs = [folder] if (folder / RECORD).is_file() else inner
        if not runs:
            raise UserError(
                f"no run in {str(folder)!r}: neither it nor a folder in it has a {RECORD}"
            )
        unique += [run for run in runs if run not in unique]
    return unique


def write_evaluation(file: Path, content: Mapping[str, Any]) -> None:
    """Write the results of an evaluation of images."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, content)
    except OSError as error:
        raise ParameterError("output", f"cannot write {str(file)!r}: {error.strerror}") from error


def checkpoint_folders(output: Path) -> list[Path]:
    """A run's checkpoints, complete or not, the newest one first."""
    by_step = {}
    for path in output.glob("checkpoint-*"):
        step = _STEP.fullmatch(path.name)
        if step and path.is_dir():
            by_step[int(step[1])] = path
    return [by_step[step] for step in sorted(by_step, reverse=True)]


def append(log: Path, step: int, values: Mapping[str, Any]) -> None:
    """Append a line to a log."""
    with log.open("a", encoding="utf-8") as file:
        file.write(to_json({"step": step, **values}) + "\n")


def shorten_logs(output: Path, step: int) -> None:
    """Remove the lines of later steps from a run's logs, and an incomplete line that a killed run
    has left.
    """
    for log in (output / LOG, output / SIMILARITY_LOG):
        if log.is_file():
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
            kept = [line for line in lines if _step_of(line).get("step", math.inf) <= step]
            write_text(log, "".join(f"{line}\n" for line in kept))


def read_steps(log: Path) -> Iterator[dict[str, Any]]:
    """The lines of a log, in order; a number that was not finite is None."""
    try:
        lines = log.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"{log} cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        values = _step_of(line)
        if not values:
            raise UserError(f"{log}: line {number} is not the record of a step")
        yield values


def _step_of(line: str) -> dict[str, Any]:
    """Return what a line of a log holds; {} if it is not the line of a step."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    if not isinstance(values, dict) or not isinstance(values.get("step"), int):
        return {}
    return values
