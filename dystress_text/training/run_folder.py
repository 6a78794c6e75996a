"""The folder of a run: its files, whether it may be used, and what is removed of an older run.

A run owns ``run.json`` (written before the first step, so that the folder is known as a run's), ``metrics.jsonl``,
``similarity.jsonl``, ``report.html``, ``audit.json``, ``checkpoint-STEP/``, ``adapter/``, the trackers'
``tracker-logs/dystress/``, the model, and the results of its evaluations
(``senteval-SUITE-MODE.json``, ``vision-DATASET.json``). All other files are the user's.

The logs hold one JSON object per line with ``step`` in each.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dystress_text.errors import ParameterError, UserError
from dystress_text.files.whole import MODEL_STAGING, to_json, write_json, write_text
from dystress_text.training.settings import EngineSettings

RECORD, REPORT = "run.json", "report.html"
AUDIT = "audit.json"  # what dystress audit writes
LOG, SIMILARITY_LOG = "metrics.jsonl", "similarity.jsonl"
ADAPTER = "adapter"  # the folder of the adapter's own files, inside a model's
TRACKER_FOLDER = "tracker-logs"
STAGING = ".checkpoint-writing"
EVALUATIONS = ("senteval-*.json", "vision-*.json")
PROGRAMS = TEXT_PROGRAM, IMAGE_PROGRAM = "dystress_text/train.py", "vision/train.py"
MODEL_FILES = (  # no model loads without one of them
    "modules.json", "model.safetensors", "model-?????-of-?????.safetensors", "model.safetensors.index.json",
    "projector.safetensors",
)  # fmt: skip
_STEP = re.compile(r"checkpoint-(\d+)")


def check_output(output: Path, engine: EngineSettings) -> None:
    """Check that the folder may be used, before anything is written."""
    existing = next(folder for folder in (output, *output.absolute().parents) if folder.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise ParameterError(
            "output_dir", f"cannot write to {str(output)!r}: {str(existing)!r} is not a writable folder"
        )
    occupied, is_run = output.is_dir() and any(output.iterdir()), read_record(output).get("program") in PROGRAMS
    if occupied and not engine.resumes and not engine.overwrite_output_dir:
        raise ParameterError(
            "output_dir",
            f"{str(output)!r} is not empty and may hold another run; name another folder, or add "
            "--overwrite_output_dir or --resume_from_checkpoint",
        )
    if not is_run and (occupied or engine.resume_from_checkpoint == "yes"):
        raise ParameterError("output_dir", f"{str(output)!r} holds no run of this program; nothing was changed")


def prepare_output(output: Path, engine: EngineSettings, record: Mapping[str, Any]) -> None:
    """Create the folder, remove the old run with --overwrite_output_dir, and write the record of the new run.

    A run that was interrupted before its first checkpoint starts again.
    """
    try:
        output.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(output / STAGING, ignore_errors=True)  # of a run that was killed
        if engine.overwrite_output_dir or (engine.resumes and not checkpoint_folders(output)):
            _remove_run(output)
        write_record(output, record)
    except OSError as error:
        raise ParameterError("output_dir", f"cannot write to {str(output)!r}: {error.strerror}") from error


def write_record(output: Path, record: Mapping[str, Any]) -> None:
    """Write ``run.json``; ``record["program"]`` is one of :data:`PROGRAMS`."""
    write_json(output / RECORD, record)


def read_record(output: Path) -> dict[str, Any]:
    """The content of ``run.json``; {} if there is no such file or it cannot be read."""
    try:
        return read_json(output / RECORD)
    except UserError:
        return {}


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
            raise UserError(f"no run in {str(folder)!r}: neither it nor a folder in it has a {RECORD}")
        unique += [run for run in runs if run not in unique]
    return unique


def evaluation_file(folder: Path, suite: str, mode: str) -> Path:
    """The file to which ``eval/senteval.py`` writes its results; with ``*`` as the suite, a pattern."""
    return folder / f"senteval-{suite}-{mode}.json"


def write_evaluation(file: Path, content: Mapping[str, Any]) -> None:
    """Write the results of an evaluation, to one of these files or where ``--output`` says."""
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_json(file, content)
    except OSError as error:
        raise ParameterError("output", f"cannot write {str(file)!r}: {error.strerror}") from error


def _remove_run(output: Path) -> None:
    for pattern in (LOG, SIMILARITY_LOG, REPORT, AUDIT, *EVALUATIONS, *MODEL_FILES):
        for path in output.glob(pattern):
            path.unlink()
    others = (MODEL_STAGING, ADAPTER, f"{TRACKER_FOLDER}/dystress")
    for folder in (*checkpoint_folders(output), *(output / name for name in others)):
        shutil.rmtree(folder, ignore_errors=True)


def checkpoint_folders(output: Path) -> list[Path]:
    """A run's checkpoints, complete or not, the newest one first."""
    by_step = [(int(match[1]), path) for path in output.glob("checkpoint-*") if (match := _STEP.fullmatch(path.name))]
    return [path for _, path in sorted(by_step, reverse=True) if path.is_dir()]


def append(log: Path, step: int, values: Mapping[str, Any]) -> None:
    """Append a line to a log."""
    with log.open("a", encoding="utf-8") as file:
        file.write(to_json({"step": step, **values}) + "\n")


def shorten_logs(output: Path, step: int) -> None:
    """Remove the lines of later steps from a run's logs, and an incomplete line that a killed run has left."""
    for log in (output / LOG, output / SIMILARITY_LOG):
        if log.is_file():
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
            kept = [line for line in lines if (values := _values_of(line)) is not None and values["step"] <= step]
            write_text(log, "".join(f"{line}\n" for line in kept))


def read_steps(log: Path) -> Iterator[dict[str, Any]]:
    """The lines of a log, in order; a number that was not finite is None."""
    try:
        lines = log.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"{log} cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        values = _values_of(line)
        if values is None:
            raise UserError(f"{log}: line {number} is not the record of a step")
        yield values


def _values_of(line: str) -> dict[str, Any] | None:
    """What a line of a log holds; None if it is not the line of a step."""
    try:
        values: dict[str, Any] = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) and isinstance(values.get("step"), int) else None
