"""The folder of a run: its state, its files, whether it may be used, and how a new run takes the
place of an older one.

A run is new, interrupted (it has a checkpoint) or finished: ``state`` in ``run.json``. A run that
replaces another one lives in a folder inside that one's, so that the old model stands until the new
one is trained to its end.

A run owns ``run.json`` (written before the first step, so that the folder is known as a run's),
``metrics.jsonl``, ``similarity.jsonl``, ``report.html``, ``audit.json``, ``checkpoint-STEP/``, the
trackers' ``tracker-logs/dystress/``, the model, and the results of its evaluations
(``results.jsonl``, ``vision-DATASET.json``). All other files are the user's.

The logs hold one JSON object per line with ``step`` in each.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dystress_text.errors import ParameterError, UserError
from dystress_text.files.claim import LOCK, claimed
from dystress_text.files.whole import MODEL_STAGING, move_files, to_json, write_json, write_text
from dystress_text.training.run_record import FINISHED as FINISHED
from dystress_text.training.run_record import INTERRUPTED as INTERRUPTED
from dystress_text.training.run_record import NEW as NEW
from dystress_text.training.run_record import RunRecord
from dystress_text.training.settings import CONFIGURATION_FREE, DATA_OPTIONS, EngineSettings

RECORD, REPORT = "run.json", "report.html"
AUDIT = "audit.json"  # what dystress audit writes
LOG, SIMILARITY_LOG = "metrics.jsonl", "similarity.jsonl"
TRACKER_FOLDER = "tracker-logs"
STAGING = ".checkpoint-writing"
REPLACING, TRAINED = (
    ".replacing",
    ".replacing-trained",
)  # folders of a run that replaces another one
EVALUATIONS = ("results.jsonl", "senteval-*.json", "vision-*.json")  # of 0.2 the second
PROGRAMS = TEXT_PROGRAM, IMAGE_PROGRAM = "dystress_text/train.py", "vision/train.py"
MODEL_FILES = (  # no model loads without one of them
    "modules.json", "model.safetensors", "model-?????-of-?????.safetensors", "model.safetensors.index.json",
    "projector.safetensors",
)  # fmt: skip
_NAMED = 8  # differences that a message names
_STEP = re.compile(r"checkpoint-(\d+)")


def claim_folder(held: ExitStack, folder: Path) -> None:
    """Let this process alone write a folder until ``held`` is closed; a replacement killed at its
    end is ended.
    """
    try:
        held.enter_context(claimed(folder / LOCK))
        if (folder / TRAINED).is_dir():
            take_place(folder)
    except OSError as error:
        place = (
            lock if (lock := folder / LOCK).exists() else folder
        )  # another user's, or a folder of that name
        raise ParameterError(
            "output_dir", f"cannot write to {str(place)!r}: {error.strerror}"
        ) from error


def open_folder(
    output: Path, engine: EngineSettings, asked: Mapping[str, Any]
) -> tuple[Path, dict[str, Any] | None]:
    """The folder where the run lives, and the record of the one there that is asked to resume and
    has finished.

    It is ``output``, or one inside while the run replaces another one, or a model. A run that
    resumes and was not begun as a replacement with the options ``asked`` is the one in ``output``.
    What may not be used is refused, before anything is written; call it under the folder's lock.
    """
    occupied = output.is_dir() and any(not path.name.startswith(LOCK) for path in output.iterdir())
    record = read_record(output)
    is_run = record.get("program") in PROGRAMS
    if occupied and not engine.resumes and not engine.overwrite_output_dir:
        what = f"holds a run, which is {state_of(record)}" if is_run else "is not empty"
        more = ", or add --overwrite_output_dir or --resume_from_checkpoint" * is_run
        raise ParameterError("output_dir", f"{str(output)!r} {what}; name another folder{more}")
    if not is_run and (occupied or engine.resume_from_checkpoint == "yes"):
        raise ParameterError(
            "output_dir", f"{str(output)!r} holds no run of this program; nothing was changed"
        )
    inside = read_record(output / REPLACING)
    replaces = engine.overwrite_output_dir or (inside and not _changed(inside, asked))
    if not replaces:
        finished_before(output, asked)
        replaces = _begins_again(output)
    folder = output / REPLACING if is_run and replaces else output
    return folder, finished_before(folder, asked) if engine.resumes else None


def _begins_again(output: Path) -> bool:
    """Whether a folder has a model of a run that has neither ended nor left a checkpoint."""
    record = read_record(output)
    unfinished = bool(record) and state_of(record) != FINISHED and not checkpoint_folders(output)
    return unfinished and any(any(output.glob(pattern)) for pattern in MODEL_FILES)


def finished_before(folder: Path, asked: Mapping[str, Any]) -> dict[str, Any] | None:
    """The record of the run in a folder, if it is finished; one that was asked for with other
    options is refused.
    """
    record = read_record(folder)
    check_version(folder, record)
    finished = state_of(record) == FINISHED
    if (finished or _begins_again(folder)) and (changed := _changed(record, asked)):
        reason = f"holds a{' finished' * finished} run with other settings ({changed}); name another folder"
        raise ParameterError("output_dir", f"{str(folder)!r} {reason}")
    return record if finished else None


def _changed(record: Mapping[str, Any], asked: Mapping[str, Any]) -> str:
    """In which options a run differs from those that are asked for, in words; "" for none."""
    then, now = (
        {name: _moved(name, of.get(name)) for name in asked}
        for of in (record.get("settings") or {}, asked)
    )
    return differences(then, now, CONFIGURATION_FREE)


def _moved(name: str, value: Any) -> Any:
    """A setting without the place of data, which may have been moved."""
    if name not in DATA_OPTIONS or value is None:
        return value
    return Path(value).name if isinstance(value, str) else [Path(each).name for each in value]


def differences(then: Mapping[str, Any], now: Mapping[str, Any], but: Collection[str] = ()) -> str:
    """In which of two runs' settings, apart from those in ``but``, they differ, in words; "" for
    none.
    """
    now = json.loads(json.dumps(now))
    names = [
        name for name in {**then, **now} if name not in but and then.get(name) != now.get(name)
    ]
    more = [f"{len(names) - _NAMED} more"] * (len(names) > _NAMED)  # of another program's run
    return "; ".join(
        [*(f"{name} was {then.get(name)}, is {now.get(name)}" for name in names[:_NAMED]), *more]
    )


def check_version(folder: Path, record: Mapping[str, Any]) -> None:
    """Refuse a record of an earlier version, whose options were others."""
    if record.get("program") in PROGRAMS and "version" not in record:
        raise UserError(
            f"{folder / RECORD} was written by dystress-text 0.1.0, and that version reads it"
        )


def state_of(record: Mapping[str, Any]) -> str:
    """The state of a run by its record; an older record, which has none, has figures when the run
    is finished.
    """
    return str(
        record.get("state") or (FINISHED if "trained" in record else INTERRUPTED if record else NEW)
    )


def prepare_folder(folder: Path, engine: EngineSettings, record: dict[str, Any]) -> None:
    """Create the folder of a run, and write its record; a run without a checkpoint starts again."""
    try:
        if folder.name == REPLACING and not engine.resumes:
            shutil.rmtree(folder, ignore_errors=True)  # of a replacement that was given up
        folder.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(folder / STAGING, ignore_errors=True)  # of a run that was killed
        record["state"] = INTERRUPTED if engine.resumes and checkpoint_folders(folder) else NEW
        if record["state"] == NEW:
            _remove_run(folder)
        write_record(folder, record)
    except OSError as error:
        raise ParameterError(
            "output_dir", f"cannot write to {str(folder)!r}: {error.strerror}"
        ) from error


def take_place(output: Path) -> None:
    """Put the trained run inside a folder in the place of the one that the folder holds; call it
    again after a kill.
    """
    inside = output / TRAINED
    if (output / REPLACING).is_dir():
        (output / REPLACING).rename(inside)
    if (inside / RECORD).is_file():  # it is moved first, when the old run is gone
        _remove_run(output, {path.name for path in inside.iterdir()})
        (inside / RECORD).replace(output / RECORD)
    move_files(inside, output)
    shutil.rmtree(inside)


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


def _remove_run(folder: Path, but: Collection[str] = ()) -> None:
    """Remove the files of a run, except those of these names, which are replaced."""
    for pattern in (LOG, SIMILARITY_LOG, REPORT, AUDIT, *EVALUATIONS, *MODEL_FILES):
        for path in folder.glob(pattern):
            if path.name not in but:
                path.unlink()
    others = (MODEL_STAGING, f"{TRACKER_FOLDER}/dystress")
    for inner in (*checkpoint_folders(folder), *(folder / name for name in others)):
        shutil.rmtree(inner, ignore_errors=True)


def checkpoint_folders(output: Path) -> list[Path]:
    """A run's checkpoints, complete or not, the newest one first."""
    by_step = [
        (int(match[1]), path)
        for path in output.glob("checkpoint-*")
        if (match := _STEP.fullmatch(path.name))
    ]
    return [path for _, path in sorted(by_step, reverse=True) if path.is_dir()]


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
            kept = [
                line for line in lines if (values := _values_of(line)) and values["step"] <= step
            ]
            write_text(log, "".join(f"{line}\n" for line in kept))


def read_steps(log: Path) -> Iterator[dict[str, Any]]:
    """The lines of a log, in order; a number that was not finite is None."""
    try:
        lines = log.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"{log} cannot be read: {error}") from error
    for number, line in enumerate(lines, 1):
        if (values := _values_of(line)) is None:
            raise UserError(f"{log}: line {number} is not the record of a step")
        yield values


def _values_of(line: str) -> dict[str, Any] | None:
    """What a line of a log holds; None if it is not the line of a step."""
    try:
        values: dict[str, Any] = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) and isinstance(values.get("step"), int) else None
