"""The folder of a run: which files are the run's, and how a run resumes or replaces another.

A run owns ``run.json``, ``metrics.jsonl``, ``similarity.jsonl``, ``report.html``, ``audit.json``,
``checkpoint-STEP/``, ``tracker-logs/dystress/``, the model, and the results of its evaluations
(``results.jsonl``, ``vision-DATASET.jsonl``). All other files are the user's. The logs are lines of
JSON objects, each with its ``step``.

``state`` in ``run.json`` says whether a run is new, interrupted (it has a checkpoint) or finished.
Only ``overwrite_output_dir`` replaces a finished run: the new one is trained in a folder inside the
old one's, and its files then replace the old ones. The next start completes a replacement that was
killed.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dystress_text.errors import ParameterError, UserError
from dystress_text.io.atomic import MODEL_STAGING, json_lines, move_files, write_json, write_text
from dystress_text.io.lock import LOCK, locked
from dystress_text.training.run_record import FINISHED, INTERRUPTED, NOT_STARTED, RunRecord
from dystress_text.training.settings import CONFIGURATION_FREE, TRACKER_FOLDER, TrainingSettings

RECORD = "run.json"
REPORT = "report.html"
AUDIT = "audit.json"
LOG = "metrics.jsonl"
SIMILARITY_LOG = "similarity.jsonl"
STAGING = ".checkpoint-writing"
REPLACING = ".replacing"  # a run that is to replace the one in the folder
TRAINED = ".replacing-trained"  # the same folder while its files are moved
TEXT_PROGRAM = "dystress_text/train.py"
IMAGE_PROGRAM = "vision/train.py"
PROGRAMS = (TEXT_PROGRAM, IMAGE_PROGRAM)
# a model has at least one of these
MODEL_FILES = (
    "modules.json",
    "model.safetensors",
    "model-?????-of-?????.safetensors",
    "model.safetensors.index.json",
    "projector.safetensors",
)
# results of evaluations; 0.2 wrote those without an l
RESULTS = ("results.jsonl", "senteval-*.json", "vision-*.jsonl", "vision-*.json")
FILES = (LOG, SIMILARITY_LOG, REPORT, AUDIT, *RESULTS, *MODEL_FILES)
_STEP = re.compile(r"checkpoint-(\d+)")


def describe_changed_options(record: RunRecord, requested: Mapping[str, Any]) -> str:
    """Describe how the requested options differ from those of a run; "" if they do not."""
    compared = requested.keys() - set(CONFIGURATION_FREE)
    return describe_changes(record.settings, {name: requested[name] for name in sorted(compared)})


def describe_changes(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describe how current settings differ from earlier ones; "" if they do not.

    A setting that an earlier version did not have equals one that is off.
    """
    now = json.loads(json.dumps(now))
    changed = [name for name in now if then.get(name) != now[name] and (name in then or now[name])]
    return "; ".join(f"{name} was {then.get(name)}, is {now[name]}" for name in changed)


def write_record(folder: Path, record: RunRecord) -> None:
    write_json(folder / RECORD, record.to_json())


def read_record(folder: Path) -> RunRecord:
    file = folder / RECORD
    try:
        return RunRecord.from_json(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file} cannot be read: {error}") from error
    except (AttributeError, TypeError) as error:
        raise UserError(f"{file} is not the record of a run: {error}") from error


def find_record(folder: Path) -> RunRecord:
    """Return the record of the run in a folder; an empty record if none can be read."""
    try:
        return read_record(folder)
    except UserError:
        return RunRecord()


def run_folders(folders: Iterable[Path]) -> list[Path]:
    """Return the folders of runs, each once: ``folders`` themselves, or those directly in them."""
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
    """Return the folders ``checkpoint-STEP`` of a run, the last step first."""
    by_step = {}
    for path in output.glob("checkpoint-*"):
        step = _STEP.fullmatch(path.name)
        if step and path.is_dir():
            by_step[int(step[1])] = path
    return [by_step[step] for step in sorted(by_step, reverse=True)]


def shorten_logs(output: Path, step: int) -> None:
    """Remove all steps after ``step`` and all damaged lines from the logs of a run."""
    for log in (output / LOG, output / SIMILARITY_LOG):
        if log.is_file():
            lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
            kept = [line for line in lines if 0 < _step_of(_parsed(line)) <= step]
            write_text(log, "".join(f"{line}\n" for line in kept))


def read_steps(log: Path) -> Iterator[dict[str, Any]]:
    """Yield the lines of a log in order. A number that was not finite is None."""
    for number, line in json_lines(log).items():
        if _step_of(line) == 0:
            raise UserError(f"{log}: line {number} is not a step")
        yield line


def _parsed(line: str) -> Any:
    """Return the value of a line of JSON; None if it is damaged."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _step_of(line: Any) -> int:
    """Return the step of a log's line; 0 if the line has none."""
    step = line.get("step") if isinstance(line, dict) else None
    return step if isinstance(step, int) else 0


# ---- where a run lives


@contextmanager
def locked_folder(output: Path) -> Iterator[None]:
    """Lock a folder, and complete a replacement that was killed."""
    with locked(output / LOCK):
        if (output / TRAINED).is_dir():
            finish_replacement(output)
        yield


def choose_folder(
    output: Path,
    settings: TrainingSettings,
    requested: Mapping[str, Any],
    content: Callable[[], Mapping[str, str]] = dict,
) -> tuple[Path, RunRecord | None]:
    """Return the folder to train a run in, and the record of the run if it has finished already.

    Nothing is written. An interrupted replacement is resumed only with the options that it was
    started with.

    Args:
        output: the folder of the run, ``output_dir``.
        settings: the settings of the loop.
        requested: the options by which a finished run is recognised.
        content: as in :func:`finished_record`.

    Raises:
        ParameterError: the folder may not be used.
    """
    record = find_record(output)
    is_run = record.program in PROGRAMS
    occupied = output.is_dir() and any(path.name != LOCK for path in output.iterdir())
    if not is_run:
        if occupied or settings.resume_from_checkpoint == "yes":
            reason = "holds no run of this program; name another folder"
            raise ParameterError("output_dir", f"{str(output)!r} {reason}")
        return output, None
    if settings.overwrite_output_dir:
        return output / REPLACING, None
    if not settings.resumes:
        reason = (
            f"holds a run ({record.state}); add `overwrite_output_dir` or `resume_from_checkpoint`"
        )
        raise ParameterError("output_dir", f"{str(output)!r} {reason}")
    replacing = find_record(output / REPLACING)
    if replacing.program and not describe_changed_options(replacing, requested):
        return output / REPLACING, None
    return output, finished_record(output, requested, content)


def finished_record(
    folder: Path,
    requested: Mapping[str, Any],
    content: Callable[[], Mapping[str, str]] = dict,
) -> RunRecord | None:
    """Return the record of the run in a folder; None if the run has not finished.

    Args:
        folder: the folder of the run.
        requested: options, whose values must equal those of a finished run.
        content: returns checksums of the data and models that the options name, which must equal
            those of a finished run. It is called only if the options do.

    Raises:
        ParameterError: the run has finished with other options, data or models.
    """
    record = find_record(folder)
    if record.state != FINISHED:
        return None
    changed = describe_changed_options(record, requested)
    if not changed and record.content is not None:  # earlier versions did not record it
        changed = describe_changes(record.content, content())
    if changed:
        name = repr(str(folder))
        further = f"to train its model, set `model_name_or_path` {name} and another `output_dir`"
        reason = f"holds a finished run of other settings or data ({changed}); {further}"
        raise ParameterError("output_dir", f"{name} {reason}")
    return record


def prepare_folder(folder: Path, settings: TrainingSettings, record: RunRecord) -> None:
    """Create the folder of a run and write the record.

    Without a checkpoint to resume, remove the files of the earlier run.
    """
    if folder.name == REPLACING and not settings.resumes:
        shutil.rmtree(folder, ignore_errors=True)  # an abandoned replacement
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / STAGING, ignore_errors=True)  # from a killed run
    if settings.resumes and checkpoint_folders(folder):
        record.state = INTERRUPTED
    else:
        record.state = NOT_STARTED
        _remove_run(folder)
    write_record(folder, record)


def finish_replacement(output: Path) -> None:
    """Move the newly trained run into the folder of the one that it replaces.

    After a kill, a second call completes the replacement.
    """
    inside = output / TRAINED
    if (output / REPLACING).is_dir():
        (output / REPLACING).rename(inside)
    if (inside / RECORD).is_file():  # run.json is moved first, after the old run is removed
        _remove_run(output, {path.name for path in inside.iterdir()})
        (inside / RECORD).replace(output / RECORD)
    move_files(inside, output)
    shutil.rmtree(inside)


def _remove_run(folder: Path, replaced: Collection[str] = ()) -> None:
    """Remove the files of a run except those named in ``replaced``. The user's files stay."""
    for pattern in FILES:
        for path in folder.glob(pattern):
            if path.name not in replaced:
                path.unlink()
    tracker = folder / TRACKER_FOLDER / "dystress"
    for inner in (*checkpoint_folders(folder), folder / MODEL_STAGING, tracker):
        shutil.rmtree(inner, ignore_errors=True)
